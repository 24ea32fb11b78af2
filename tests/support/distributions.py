"""Task-time distributions of all kinds."""

from __future__ import annotations

import numpy as np

from shadowprice.cloning.api import (
    Distribution,
    Empirical,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
    fit_pareto_tail,
)

SAMPLE = 3.0 * np.random.default_rng(5).pareto(1.7, 800) + 3.0
DISTRIBUTIONS: dict[str, Distribution] = {
    "pareto": Pareto.of_mean(2.0, 12.0),
    "pareto, order 1.1": Pareto.of_mean(1.1, 12.0),
    "weibull": Weibull(0.5, 12.0),
    "weibull, minimum": Weibull(0.7, 12.0, 2.0),
    "exponential": Weibull(1.0, 12.0, 1.0),
    "hyper-exponential": HyperExponential((0.9, 0.1), (5.0, 60.0), 1.0),
    "hyper-exponential, wide": HyperExponential((0.5, 0.4, 0.1), (0.01, 1.0, 1000.0)),
    "log-normal, narrow": LogNormal.of_mean(0.1, 12.0),
    "log-normal": LogNormal.of_mean(1.0, 12.0, 1.0),
    "log-normal, wide": LogNormal.of_mean(2.5, 12.0),
    "empirical": Empirical(SAMPLE, fit_pareto_tail(SAMPLE)),
    "empirical, scaled": Empirical(SAMPLE, fit_pareto_tail(SAMPLE), factor=2.5),
    "empirical, no tail": Empirical(SAMPLE, None),
}
