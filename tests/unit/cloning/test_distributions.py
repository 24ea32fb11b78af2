from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from shadowprice.cloning.api import (
    CloningProblem,
    Distribution,
    Empirical,
    HyperExponential,
    LogNormal,
    Pareto,
    TaskGroup,
    Weibull,
    fit_pareto_tail,
)
from shadowprice.cloning.solver import costs
from shadowprice.core.errors import InputError
from tests.oracles.cloning import cost_by_quadrature
from tests.support.distributions import DISTRIBUTIONS, SAMPLE


def curve_at(distribution: Distribution, ratio: float) -> float:
    problem = CloningProblem([TaskGroup(1, distribution)], 1000, 1e4, 0.5)
    return float(costs(problem.arrays, np.zeros(1, dtype=np.int64), np.array([ratio]))[0])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("ratio", [1.0, 1.37, 2.0, 3.9, 17.3, 400.0])
def test_cost_curve_agrees_with_adaptive_quadrature(name: str, ratio: float) -> None:
    distribution = DISTRIBUTIONS[name]
    assert curve_at(distribution, ratio) == pytest.approx(
        cost_by_quadrature(distribution, ratio),
        rel=1e-9,
        abs=2e-9 * distribution.mean * (name == "exponential"),
    )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_one_copy_costs_the_mean(name: str) -> None:
    assert curve_at(DISTRIBUTIONS[name], 1.0) == pytest.approx(DISTRIBUTIONS[name].mean, rel=1e-9)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_inverse_survival_inverts(name: str) -> None:
    distribution = DISTRIBUTIONS[name]
    probability = np.array([0.999, 0.7, 0.31, 0.02, 1e-4])
    time = distribution.inverse_survival(probability)
    if isinstance(distribution, Empirical):
        # A step function: the time is the first at which at most the probability is left.
        assert np.all(distribution.survival(time) <= probability * (1 + 1e-12))
        assert np.all(distribution.survival(time * (1 - 1e-9)) >= probability * (1 - 1e-9))
    else:
        np.testing.assert_allclose(distribution.survival(time), probability, rtol=1e-9)


def test_distributions_agree_with_scipy() -> None:
    time = np.array([0.5, 3.0, 11.0, 70.0])
    reference = {
        "pareto": stats.pareto(2.0, scale=6.0),
        "weibull": stats.weibull_min(0.5, scale=12.0 / math.gamma(3.0)),
        "exponential": stats.expon(1.0, 11.0),
        "log-normal": stats.lognorm(1.0, 1.0, 11.0 * math.exp(-0.5)),
    }
    for name, distribution in reference.items():
        np.testing.assert_allclose(
            DISTRIBUTIONS[name].survival(time), distribution.sf(time), rtol=1e-12
        )


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Pareto(1.0, 3.0), "no mean"),
        (lambda: Pareto(0.8, 3.0), "above 1"),
        (lambda: Weibull(1.5, 3.0), "Lemma 1"),
        (lambda: Weibull(0.5, 3.0, 3.0), "longer than the shortest"),
        (lambda: HyperExponential((0.5, 0.4), (1.0, 2.0)), "sum to 1"),
        (lambda: HyperExponential((0.5, 0.5), (1.0, 0.0)), "positive"),
        (lambda: LogNormal(0.0, 1.0), "positive sigma"),
        (lambda: Empirical(np.array([1.0, -2.0]), None), "all positive"),
        (lambda: Empirical(SAMPLE[:1], None), "two durations"),
        (lambda: fit_pareto_tail(SAMPLE[:8]), "tail: none"),
    ],
)
def test_impossible_distributions_are_refused(make: object, word: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=word):
        make()


def test_durations_that_differ_by_rounding_have_no_tail() -> None:
    sample = np.repeat([5.0, np.nextafter(5.0, 6.0)], 20)
    with pytest.raises(InputError, match=r"beyond the shortest one, the sample has 0; write tail"):
        fit_pareto_tail(sample)


def test_tail_without_mean_is_refused() -> None:
    sample = np.random.default_rng(1).pareto(0.7, 2000) + 1.0
    tail = fit_pareto_tail(sample)
    assert tail.order < 1.0
    with pytest.raises(InputError, match="no mean"):
        Empirical(sample, tail)


def test_tail_fit_finds_order_and_threshold() -> None:
    rng = np.random.default_rng(3)
    # A uniform body below 10, a Pareto tail of order 2.5 above it.
    sample = np.concatenate([rng.uniform(1.0, 10.0, 6000), 10.0 * (1 + rng.pareto(2.5, 4000))])
    tail = fit_pareto_tail(sample)
    assert abs(tail.order - 2.5) < 4 * tail.error
    assert 9.0 < tail.threshold < 14.0
    assert tail.against_exponential > 0
    light = fit_pareto_tail(rng.exponential(1.0, 4000) + 1.0)
    assert light.order > 3.0


def test_tail_fit_is_hill_on_a_grid_of_thresholds() -> None:
    sample = np.sort(SAMPLE)[:200]
    tail = fit_pareto_tail(sample)
    best = math.inf
    for threshold in np.unique(sample)[:-10]:
        beyond = sample[sample > threshold]
        order = 1.0 / np.mean(np.log(beyond / threshold))
        distribution = stats.pareto(order, scale=threshold)
        best = min(best, float(stats.kstest(beyond, distribution.cdf).statistic))
    assert tail.distance == pytest.approx(best, rel=1e-9)
