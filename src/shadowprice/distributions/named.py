"""Distributions by their names in files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from shadowprice.core.bag import DurationDistribution
from shadowprice.distributions.empirical import Empirical
from shadowprice.distributions.parametric import (
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
)
from shadowprice.distributions.tail import fit_pareto_tail

DISTRIBUTIONS: Final[Mapping[str, type[Any]]] = {
    distribution.label: distribution
    for distribution in (Pareto, Weibull, HyperExponential, LogNormal)
}
"""Distributions by `DurationDistribution.name`; `Empirical` is built from its sample instead."""


def build_distribution(distribution: DurationDistribution) -> Distribution:
    """Return the distribution of a specification, in seconds; equal ones share an instance.

    Raises `InputError` if a parameter is not allowed, such as a fitted tail that has no mean.
    """
    return _distribution(distribution.name, tuple(sorted(distribution.parameters.items())))


@lru_cache(maxsize=4096)
def _distribution(name: str, parameters: tuple[tuple[str, Any], ...]) -> Distribution:
    named = dict(parameters)
    if name == Empirical.label:
        durations = np.array(named.pop("durations"))
        tail = fit_pareto_tail(durations) if named.pop("tail") == "pareto" else None
        return Empirical(durations, tail, **named)
    distribution: Distribution = DISTRIBUTIONS[name](**named)
    return distribution
