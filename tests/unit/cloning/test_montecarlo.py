from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from shadowprice.cloning.api import CloningProblem, SamplingMethod, TaskGroup, simulate, solve
from shadowprice.cloning.montecarlo import clopper_pearson
from shadowprice.core.errors import InputError
from tests.support.distributions import DISTRIBUTIONS

# The standard error is meaningful only if the variance with two copies is finite.
STEADY = [name for name in DISTRIBUTIONS if name != "pareto, order 1.1"]


@pytest.mark.parametrize("draw", SamplingMethod)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_runs_agree_with_the_formulas(name: str, draw: SamplingMethod) -> None:
    distribution = DISTRIBUTIONS[name]
    deadline = float(distribution.inverse_survival(0.04))
    problem = CloningProblem(
        [TaskGroup(6, distribution), TaskGroup(3, distribution)], 60, deadline, 0.3
    )
    copies = np.array([1, 2, 3, 1, 2, 3, 2, 2, 3])
    measured = simulate(problem, copies, trials=20_000, seed=7, draw=draw, confidence=0.9999)
    low, high = measured.interval
    assert low < measured.predicted_miss < high
    if name in STEADY:
        apart = measured.machine_time - measured.predicted_machine_time
        assert abs(apart) < 4.5 * measured.machine_time_error


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_both_methods_of_drawing_have_the_same_distribution(name: str) -> None:
    problem = CloningProblem([TaskGroup(5, DISTRIBUTIONS[name])], 60, 1e6, 0.3)
    copies = np.array([1, 2, 2, 3, 4])
    first = simulate(problem, copies, trials=4000, seed=1)
    second = simulate(problem, copies, trials=4000, seed=2, draw=SamplingMethod.WINNER)
    for one, other in (
        (first.flowtimes, second.flowtimes),
        (first.machine_times, second.machine_times),
    ):
        assert stats.ks_2samp(one, other).pvalue > 1e-4


def test_a_run_equals_drawing_every_copy_separately() -> None:
    """The kernel against plain numpy on the same uniform numbers."""
    problem = CloningProblem(
        [TaskGroup(2, DISTRIBUTIONS["pareto"]), TaskGroup(1, DISTRIBUTIONS["log-normal"])],
        20,
        60.0,
        0.1,
    )
    copies = np.array([2, 1, 3])
    measured = simulate(problem, copies, trials=50, seed=3)
    uniforms = np.random.default_rng(3).random((50, 6))
    for trial in range(50):
        u = 1.0 - uniforms[trial]
        times = [
            DISTRIBUTIONS["pareto"].inverse_survival(u[:2]).min(),
            DISTRIBUTIONS["pareto"].inverse_survival(u[2:3]).min(),
            DISTRIBUTIONS["log-normal"].inverse_survival(u[3:]).min(),
        ]
        assert measured.flowtimes[trial] == pytest.approx(max(times), rel=1e-12)
        assert measured.machine_times[trial] == pytest.approx(copies @ times, rel=1e-12)


def test_same_seed_same_runs_and_more_trials_only_append() -> None:
    problem = CloningProblem([TaskGroup(4, DISTRIBUTIONS["weibull"])], 20, 60.0, 0.1)
    copies = solve(problem).copies
    first = simulate(problem, copies, trials=300, seed=5)
    again = simulate(problem, copies, trials=300, seed=5)
    longer = simulate(problem, copies, trials=500, seed=5)
    other = simulate(problem, copies, trials=300, seed=6)
    np.testing.assert_array_equal(first.flowtimes, again.flowtimes)
    np.testing.assert_array_equal(first.flowtimes, longer.flowtimes[:300])
    assert not np.array_equal(first.flowtimes, other.flowtimes)


def test_solutions_hold_their_deadline() -> None:
    problem = CloningProblem([TaskGroup(30, DISTRIBUTIONS["pareto"])], 200, 80.0, 0.05)
    solution = solve(problem)
    measured = simulate(problem, solution.copies, trials=20_000, seed=1, confidence=0.9999)
    assert measured.interval[0] < solution.miss_probability < measured.interval[1]
    assert measured.interval[0] < 0.05


def test_interval_is_exact() -> None:
    np.testing.assert_allclose(clopper_pearson(0, 100, 0.95), (0.0, 1 - 0.025**0.01))
    np.testing.assert_allclose(clopper_pearson(100, 100, 0.95), (0.025**0.01, 1.0))
    low, high = clopper_pearson(7, 50, 0.9)
    assert stats.binom.sf(6, 50, low) == pytest.approx(0.05)
    assert stats.binom.cdf(7, 50, high) == pytest.approx(0.05)


def test_nothing_to_run_is_refused() -> None:
    problem = CloningProblem([TaskGroup(4, DISTRIBUTIONS["weibull"])], 20, 60.0, 0.1)
    with pytest.raises(InputError, match="trials"):
        simulate(problem, np.ones(4, dtype=np.int64), trials=0)
    with pytest.raises(InputError, match="one copy"):
        simulate(problem, np.array([1, 0, 1, 1]))
