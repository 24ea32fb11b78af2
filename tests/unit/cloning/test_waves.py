from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from shadowprice.cloning.api import Distribution, LogNormal, Pareto, TaskGroup, Weibull
from shadowprice.cloning.waves import (
    GRID,
    WaveJobs,
    WaveResult,
    WaveRule,
    WaveRuleKind,
    break_even_age,
    jobs_from_records,
    poisson_jobs,
    simulate_waves,
    tabulate_distributions,
)
from shadowprice.core.errors import InputError
from shadowprice.kernels.cloning.saving import Gains, Tasks, assess
from tests.oracles.waves import PlainWaves

HEAVY = [TaskGroup(6, Pareto.of_mean(1.8, 10.0)), TaskGroup(2, LogNormal.of_mean(1.0, 6.0))]


def drawn(load: float, jobs: int = 40, machines: int = 10, seed: int = 1) -> WaveJobs:
    return poisson_jobs(HEAVY, machines=machines, load=load, jobs=jobs, seed=seed, spread=2.0)


def waves(
    jobs: WaveJobs, rule: WaveRuleKind, machines: int = 10, **parameters: float
) -> WaveResult:
    return simulate_waves(jobs, machines, WaveRule(rule, **parameters))  # type: ignore[arg-type]


@pytest.mark.parametrize("load", [0.2, 0.9, 1.5])
@pytest.mark.parametrize("rule", [WaveRuleKind.NONE, WaveRuleKind.FULL, WaveRuleKind.DETECT])
@pytest.mark.parametrize("copies", [2, 3])
def test_the_history_equals_that_of_a_plain_simulation(
    load: float, rule: WaveRuleKind, copies: int
) -> None:
    jobs = drawn(load)
    priority = np.random.default_rng(3).integers(0, 3, jobs.jobs).astype(float)
    jobs = WaveJobs(
        jobs.arrival,
        priority,
        jobs.first,
        jobs.distributions,
        jobs.distribution,
        jobs.scale,
        jobs.durations,
    )
    parameters = WaveRule(rule, copies=copies, check_period=2.5)
    flow, work, copies_begun = PlainWaves(jobs, 10, parameters, 2.5).run()
    result = simulate_waves(jobs, 10, parameters)
    np.testing.assert_allclose(result.flowtime, flow, rtol=1e-12)
    np.testing.assert_allclose(result.work, work, rtol=1e-12)
    assert result.copies.tolist() == copies_begun


@pytest.mark.parametrize("rule", WaveRuleKind)
@pytest.mark.parametrize("load", [0.3, 1.2])
def test_machine_time_is_conserved(rule: WaveRuleKind, load: float) -> None:
    jobs = drawn(load, jobs=80)
    result = waves(jobs, rule)
    assert np.all(result.flowtime > 0)
    assert result.started.min() >= 0
    assert result.machine_time <= 10 * result.makespan * (1 + 1e-12)
    assert result.copies.min() >= 1
    assert result.copies.max() <= 2
    assert 0 <= result.wasted < result.machine_time
    if rule is WaveRuleKind.NONE:
        assert result.wasted == 0
        assert result.machine_time == pytest.approx(float(jobs.durations[:, 0].sum()))
        assert result.helped == 0
    again = waves(jobs, rule)
    np.testing.assert_array_equal(result.flowtime, again.flowtime)


def test_with_unlimited_machines_every_job_runs_alone() -> None:
    jobs = drawn(0.5)
    many = simulate_waves(jobs, 10_000, WaveRule(WaveRuleKind.NONE))
    longest = [jobs.durations[begin:end, 0].max() for begin, end in itertools.pairwise(jobs.first)]
    np.testing.assert_allclose(many.flowtime, longest)
    cloned = simulate_waves(jobs, 10_000, WaveRule(WaveRuleKind.FULL))
    least = jobs.durations[:, :2].min(axis=1)
    longest = [least[begin:end].max() for begin, end in itertools.pairwise(jobs.first)]
    np.testing.assert_allclose(cloned.flowtime, longest)
    np.testing.assert_allclose(cloned.machine_time, 2 * least.sum())


def test_one_machine_is_a_textbook_queue() -> None:
    """M/M/1 at load 0.6: mean flowtime 1 / (mu - lambda) = 25 s."""
    jobs = poisson_jobs(
        [TaskGroup(1, Weibull(1.0, 10.0))], machines=1, load=0.6, jobs=40_000, seed=2, max_copies=1
    )
    result = simulate_waves(jobs, 1, WaveRule(WaveRuleKind.NONE))
    assert result.mean_flowtime == pytest.approx(25.0, rel=0.05)


def test_lindley_recursion_on_one_machine() -> None:
    jobs = poisson_jobs(HEAVY, machines=1, load=0.8, jobs=60, seed=4, max_copies=1)
    result = simulate_waves(jobs, 1, WaveRule(WaveRuleKind.NONE))
    work = np.add.reduceat(jobs.durations[:, 0], jobs.first[:-1])
    end = 0.0
    for job in range(60):
        end = max(end, jobs.arrival[job]) + work[job]
        assert result.flowtime[job] == pytest.approx(end - jobs.arrival[job])


def test_higher_priority_goes_first() -> None:
    jobs = drawn(1.5)
    late = jobs.jobs - 1
    priority = np.zeros(jobs.jobs)
    priority[late] = 1.0
    urgent = WaveJobs(
        jobs.arrival,
        priority,
        jobs.first,
        jobs.distributions,
        jobs.distribution,
        jobs.scale,
        jobs.durations,
    )
    before, after = waves(jobs, WaveRuleKind.NONE), waves(urgent, WaveRuleKind.NONE)
    assert after.started[late] < before.started[late]


def test_no_copy_is_started_if_it_cannot_pay() -> None:
    """Exponential tasks have no age at which a copy pays; a machine second at a high price."""
    groups = [TaskGroup(5, Weibull(1.0, 10.0, 2.0))]
    assert break_even_age(groups[0].duration) == np.inf
    jobs = poisson_jobs(groups, machines=10, load=0.5, jobs=50, seed=1)
    dear = waves(jobs, WaveRuleKind.SAVING, machine_price=1e6)
    none = waves(jobs, WaveRuleKind.NONE)
    assert dear.copies.tolist() == none.copies.tolist()
    np.testing.assert_array_equal(dear.flowtime, none.flowtime)
    free = waves(jobs, WaveRuleKind.SAVING, machine_price=0.0)
    assert free.copies.mean() > 1.3
    assert free.mean_flowtime < none.mean_flowtime


@pytest.mark.parametrize("load", [0.2, 0.6, 0.9, 1.2])
def test_saving_beats_no_copies_and_full_cloning(load: float) -> None:
    jobs = poisson_jobs(HEAVY, machines=20, load=load, jobs=400, seed=5)
    saving = waves(jobs, WaveRuleKind.SAVING, 20)
    none, full = waves(jobs, WaveRuleKind.NONE, 20), waves(jobs, WaveRuleKind.FULL, 20)
    assert saving.mean_flowtime < none.mean_flowtime
    assert saving.machine_time < full.machine_time
    if load >= 0.9:
        assert saving.mean_flowtime < full.mean_flowtime


def test_copies_thin_out_as_load_rises() -> None:
    shares = [
        waves(
            poisson_jobs(HEAVY, machines=20, load=load, jobs=300, seed=6), WaveRuleKind.SAVING, 20
        ).copies.mean()
        for load in (0.2, 0.8, 1.3)
    ]  # fmt: skip
    assert shares[0] > shares[1] > shares[2] > 1.0


def naive_gain(
    distributions: list[Distribution], ages: list[list[float]], target: int, most: int
) -> tuple[float, float]:
    """Saving and extra machine time by adaptive quadrature, straight from their definition."""

    def rest(task: int, time: float) -> float:
        distribution, value = distributions[task], 1.0
        for age in ages[task]:
            value *= float(distribution.survival(age + time)) / float(distribution.survival(age))
        return value

    def wait(task: int) -> float:
        if len(ages[task]) >= most:
            return np.inf
        return max(break_even_age(distributions[task]) - ages[task][-1], 0.0)

    waits = [wait(task) for task in range(len(distributions))]

    def without(task: int, time: float) -> float:
        value = rest(task, time)
        if time > waits[task]:
            value *= float(distributions[task].survival(time - waits[task]))
        return value

    def own(time: float) -> float:
        return rest(target, time) if waits[target] == 0 else without(target, time)

    def both(time: float) -> float:
        return rest(target, time) * float(distributions[target].survival(time))

    def sooner(time: float) -> float:
        value = own(time) - both(time)
        for task in range(len(distributions)):
            if task != target:
                value *= 1.0 - without(task, time)
        return value

    count = len(ages[target])

    def longer(time: float) -> float:
        running = count + 1 if 0 < waits[target] < time else count
        return (count + 1) * both(time) - running * own(time)

    edges = np.unique([0.0, *np.geomspace(0.01, 1e4, 40), *(w for w in waits if w < 1e4)])
    pieces = list(itertools.pairwise(edges))
    return (
        sum(quad(sooner, a, b, epsabs=1e-9, epsrel=1e-6)[0] for a, b in pieces),
        sum(quad(longer, a, b, epsabs=1e-9, epsrel=1e-6)[0] for a, b in pieces),
    )


def test_savings_follow_their_definition() -> None:
    distributions: list[Distribution] = [
        LogNormal.of_mean(1.0, 8.0), LogNormal.of_mean(1.2, 12.0), LogNormal.of_mean(0.8, 5.0),
    ]  # fmt: skip
    ages = [[30.0], [4.0, 1.0], [0.0]]
    begun = np.zeros((3, 3))
    for task, copies in enumerate(ages):
        begun[task, : len(copies)] = [100.0 - age for age in copies]
    tasks = Tasks(np.arange(3), np.ones(3), np.zeros(3, dtype=np.bool_), np.array([1, 2, 1]), begun)

    def gains(grid: np.ndarray) -> Gains:
        result = Gains(np.zeros(3), np.zeros(3))
        assess(0, 3, True, 100.0, tasks, tabulate_distributions(distributions), grid, result)
        return result

    saving, extra = gains(np.concatenate([[0.0], np.geomspace(1e-3, 100.0, 800)]))
    coarse, coarse_extra = gains(GRID)
    for task in range(3):
        expected_saving, expected_extra = naive_gain(distributions, ages, task, 3)
        assert saving[task] == pytest.approx(expected_saving, rel=5e-3, abs=5e-3)
        assert extra[task] == pytest.approx(expected_extra, rel=5e-3, abs=2e-2)
        # The grid that runs use is coarse, and good enough to choose by.
        assert coarse[task] == pytest.approx(expected_saving, rel=0.1, abs=0.15)
        assert coarse_extra[task] == pytest.approx(expected_extra, rel=0.1, abs=0.3)


def test_paying_age_minimises_the_machine_time() -> None:
    distribution = Pareto.of_mean(1.8, 10.0)
    best = break_even_age(distribution)
    rng = np.random.default_rng(8)
    first, second = (distribution.inverse_survival(1.0 - rng.random(2_000_000)) for _ in range(2))

    def work(age: float) -> float:
        copied = first > age
        both = np.minimum(first - age, second)
        return float(np.where(copied, age + 2.0 * both, first).mean())

    assert work(best) < min(work(0.4 * best), work(2.5 * best), work(1e9))


def test_measured_times_become_jobs() -> None:
    rng = np.random.default_rng(0)
    times = rng.gamma(20.0, 1.0, (30, 5))
    jobs = jobs_from_records(times[15:], times[:15], machines=10, load=0.8, jobs=40, seed=1)
    np.testing.assert_array_equal(jobs.durations[:75, 0], times[15:].ravel())
    np.testing.assert_array_equal(jobs.durations[75:80, 0], times[15])
    assert set(jobs.durations.ravel()) <= set(times[15:].ravel())
    assert waves(jobs, WaveRuleKind.SAVING).mean_flowtime > 0


def test_the_load_is_the_requested_one() -> None:
    jobs = poisson_jobs(HEAVY, machines=25, load=0.8, jobs=20_000, seed=3, spread=3.0, max_copies=1)
    means = np.array([distribution.mean for distribution in jobs.distributions])
    work = float(means[jobs.distribution] @ jobs.scale)  # expected, with one copy of each task
    assert work / (25 * jobs.arrival[-1]) == pytest.approx(0.8, rel=0.03)
    assert jobs.durations.mean() * len(jobs.distribution) == pytest.approx(work, rel=0.1)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: drawn(0.0), "load"),
        (lambda: drawn(math.nan), "load"),
        (lambda: drawn(0.5, jobs=0), "jobs"),
        (lambda: poisson_jobs(HEAVY, machines=1, load=1, jobs=1, spread=0.5), "spread"),
        (lambda: WaveRule(WaveRuleKind.FULL, copies=0), "copies"),
        (lambda: WaveRule(WaveRuleKind.DETECT, late_factor=0.0), "late_factor"),
        (lambda: WaveRule(WaveRuleKind.DETECT, late_share=1.5), "late_share"),
        (lambda: WaveRule(WaveRuleKind.SAVING, machine_price=-1.0), "machine_price"),
        (lambda: WaveRule(WaveRuleKind.SAVING, machine_price=math.nan), "machine_price"),
        # Idle machines would check again and again at the same moment.
        (lambda: WaveRule(WaveRuleKind.SAVING, check_period=0.0), "check_period"),
        (lambda: waves(drawn(0.5), WaveRuleKind.FULL, machines=0), "machines"),
        (lambda: waves(drawn(0.5), WaveRuleKind.FULL, copies=9), "max_copies=9"),
    ],
)
def test_numbers_out_of_range_are_refused(make: object, word: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=word):
        make()
