"""The certificate's bound exceeds every schedule's utility, and is close to the optimum."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.certificate.bound import Bound, Stop, never, upper_bound
from shadowprice.certificate.certify import certify
from shadowprice.certificate.relaxation import Relaxation
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.events import Command, Completed, DriverEvent
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.schedule import Schedule
from shadowprice.core.time_limit import Clock
from shadowprice.core.utility import Constant, utility_value
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.offline.problem import full_problem
from shadowprice.policies.offline.solver import solve
from shadowprice.policies.pricing.posted import PostedPrices, build_limits, read_posted_prices
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.scenario import Scenario, record_run
from shadowprice.simulator.starts import completed_schedules
from tests.oracles.lagrangian import lagrangian_bound
from tests.support.bag_cases import build_bag, place_cluster
from tests.support.examples import example_count, sample
from tests.support.workloads import make_cluster, make_job, random_job

SEEDS = st.integers(0, 2**32 - 1)


def bounded(cluster: Cluster, jobs: list[Job], until: int | None, tolerance: float = 1e-3) -> Bound:
    return upper_bound(Relaxation(cluster, jobs, until), tolerance=tolerance)


def value(relaxation: Relaxation, prices: np.ndarray) -> float:
    payoffs = (relaxation.price(index, prices)[0] for index in range(relaxation.jobs))
    return float((relaxation.capacity * prices).sum()) + sum(max(0.0, payoff) for payoff in payoffs)


def some_jobs(cluster: Cluster, rng: np.random.Generator, count: int = 5) -> list[Job]:
    return [random_job(cluster, rng, f"job-{index}", latest=3) for index in range(count)]


@pytest.mark.extended
@pytest.mark.parametrize("all_slots", [True, False])
@pytest.mark.parametrize(("horizon", "until"), [(6, 6), (2, 9), (2, None)])
@settings(deadline=None, derandomize=True, max_examples=example_count(15))
@given(seed=SEEDS)
def test_any_prices_bound_the_optimum(
    horizon: int, until: int | None, all_slots: bool, seed: int
) -> None:
    """With a search of every slot that has a gain, and with limited search windows."""
    rng = np.random.default_rng(seed)
    machines = int(rng.integers(0, 2)), int(rng.integers(1, 5))
    cluster = make_cluster(2, 1, machines[0], gpus=machines[1], horizon=horizon)
    jobs = some_jobs(cluster, rng)
    best = solve(full_problem(cluster, jobs, until))
    assert best.optimal
    floor = best.utility * (1 - 1e-6) - 1e-6
    with pytest.MonkeyPatch.context() as patch:
        if not all_slots:  # force limited search windows
            patch.setattr("shadowprice.certificate.relaxation._PAIRS", 0)
        relaxation = Relaxation(cluster, jobs, until)
        result = bounded(cluster, jobs, until)
    assert not all_slots or all(window.tail <= 1e-9 for window in relaxation.windows)
    for scale in (0.0, 1.0, 20.0):
        assert value(relaxation, rng.uniform(0, scale, relaxation.shape)) >= floor
    assert result.value >= floor
    assert result.value <= value(relaxation, np.zeros(relaxation.shape)) + 1e-9
    assert result.master <= result.value * (1 + 1e-9) + 1e-9


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_an_independent_implementation_gives_the_same_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 1, int(rng.integers(0, 2)), gpus=int(rng.integers(1, 5)), horizon=6)
    jobs = some_jobs(cluster, rng, 4)
    result = bounded(cluster, jobs, 6)
    relaxation = Relaxation(cluster, jobs, 6)
    plain = [index for index, limit in enumerate(relaxation.limits[0]) if not limit.parts]
    names = [relaxation.limits[0][at].resource for at in plain]
    # The other implementation prices whole resources only.
    prices = np.zeros((6, len(relaxation.limits), len(names)))
    kept = np.zeros(relaxation.shape)
    for pool, limits in enumerate(relaxation.limits):
        for index, limit in enumerate(limits):
            if not limit.parts and relaxation.counted[pool, index] and limit.resource in names:
                price = result.prices[:, pool, index]
                kept[:, pool, index] = price
                begin = relaxation.start
                prices[begin : begin + len(price), pool, names.index(limit.resource)] = price
    expected = lagrangian_bound(cluster, jobs, 6, prices, names)
    assert value(relaxation, kept) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_jobs_priced_together_are_priced_as_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 1, int(rng.integers(0, 2)), gpus=int(rng.integers(1, 5)), horizon=6)
    relaxation = Relaxation(cluster, some_jobs(cluster, rng, 6), None)
    prices = rng.uniform(0, rng.choice([1.0, 20.0]), relaxation.shape)
    members = np.flatnonzero(rng.random(relaxation.jobs) < 0.8)
    alone = [relaxation.price(member, prices) for member in members.tolist()]
    use = np.zeros(relaxation.shape)
    for payoff, column in alone:
        if column is not None and payoff > 0:
            use[column.first : column.first + len(column.use)] += column.use
    together = relaxation.price_all(members, prices)
    payoffs = [max(0.0, payoff) for payoff, _ in alone]
    assert together.payoffs[members] == pytest.approx(payoffs, rel=1e-6, abs=1e-6)
    assert together.total == pytest.approx(sum(payoffs), rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(together.use, use, atol=1e-9)
    # A gap saves time, and may only raise the bound.
    with_gap = relaxation.price_all(members, prices, 0.05)
    assert together.total * (1 - 1e-6) - 1e-6 <= with_gap.total <= together.total / 0.94 + 1e-6


@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS)
def test_the_volume_algorithm_bounds_the_optimum(seed: int) -> None:
    """Column generation ends at the best prices; those of the volume algorithm come close."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 1, int(rng.integers(0, 2)), gpus=int(rng.integers(1, 5)), horizon=6)
    jobs = some_jobs(cluster, rng, 8)
    best = bounded(cluster, jobs, 6)
    with pytest.MonkeyPatch.context() as patch:
        # No column generation: the volume algorithm computes the prices.
        patch.setattr("shadowprice.certificate.bound._MAX_COLUMN_GENERATION_JOBS", 0)
        result = bounded(cluster, jobs, 6)
        patch.setattr("shadowprice.certificate.bound._MIN_SAMPLE_JOBS", 1)
        sampled = bounded(cluster, jobs, 6)
    optimum = solve(full_problem(cluster, jobs, 6)).utility
    for one in (result, sampled):
        assert one.value >= optimum * (1 - 1e-6) - 1e-6
        assert one.value >= best.master * (1 - 1e-6) - 1e-6
        assert one.value <= best.value * 1.1 + 1e-6


@pytest.mark.parametrize("until", [None, 40, 7])
def test_a_job_longer_than_the_horizon_counts_for_what_it_can_earn(until: int | None) -> None:
    """Its utility counts in full if it can complete before the end, else not at all."""
    cluster = make_cluster(1, 0, gpus=1, horizon=5)
    single_job = make_job(cluster, ps=None, epochs=8, chunks=1, minibatches=10)
    worth = 0.0 if until == 7 else 10.0
    result = certify(cluster, [single_job], until, gap=0.0, seconds=60, clock=Clock.PROCESSOR)
    assert (result.bound, result.best) == (pytest.approx(worth), worth)


def test_jobs_that_outlast_their_windows_are_placed_behind_them() -> None:
    """Six jobs of two slots on one GPU, each searched for in eight slots."""
    cluster = make_cluster(1, 0, gpus=1, horizon=2)
    jobs = [
        make_job(
            cluster,
            f"job-{index}",
            ps=None,
            epochs=2,
            chunks=1,
            minibatches=10,
            utility=Constant(10.0),
        )
        for index in range(6)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shadowprice.certificate.relaxation._PAIRS", 0)
        result = certify(cluster, jobs, gap=0.0, seconds=60, clock=Clock.PROCESSOR)
    assert (result.bound, result.best) == (pytest.approx(60.0), 60.0)
    assert max(schedule.completion for schedule in result.schedules.values()) == 11


@pytest.mark.parametrize("policy", ["rolling", "fifo"])
@settings(deadline=None, derandomize=True, max_examples=example_count(15))
@given(seed=SEEDS)
def test_best_is_at_least_the_initial_schedules(policy: str, seed: int) -> None:
    """Includes utility that is earned beyond the horizon, and by jobs that restarts slow down."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 1, int(rng.integers(0, 2)), gpus=int(rng.integers(1, 3)), horizon=2)
    jobs = [replace(job, restart=Fraction(1, 2)) for job in some_jobs(cluster, rng)]
    scenario = Scenario(cluster, tuple(jobs), None)
    begun = completed_schedules(scenario, PolicyChoice(policy).build(scenario.context()), never)
    by = {job.name: job for job in jobs}
    earned = sum(
        utility_value(by[name].utility, plan.completion - by[name].arrival)
        for name, plan in begun.items()
    )
    result = certify(
        cluster, jobs, gap=0.0, seconds=0.2, clock=Clock.PROCESSOR, starts=lambda stop: [begun]
    )
    assert result.best >= earned * (1 - 1e-9)
    assert result.bound >= result.best * (1 - 1e-9)


class Finished(Observer):
    """Notes which jobs completed, and when."""

    def __init__(self) -> None:
        self.when: list[tuple[str, int]] = []

    def on_event(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        del event
        self.when += [
            (command.job, command.slot) for command in commands if isinstance(command, Completed)
        ]


POLICIES = ("fifo", "drf", "rrh", "srtf", "las", "backfill", "oasis", "pdors")


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_exceeds_the_bound(name: str) -> None:
    """Hundreds of random runs, with a timespan and without, which may outlast every horizon."""
    for seed in sample(range(40)):
        rng = np.random.default_rng(seed)
        cluster = make_cluster(2, 2, gpus=int(rng.integers(1, 4)), horizon=int(rng.integers(4, 9)))
        jobs = some_jobs(cluster, rng, int(rng.integers(1, 9)))
        by = {job.name: job for job in jobs}
        until = 8 if seed % 2 else None
        bound = bounded(cluster, jobs, until, tolerance=0.02).value
        context = PolicyContext(cluster, jobs, until, seed)
        finished = Finished()
        Simulation(cluster, jobs, make_policy(name, context, {}), until).run([finished])
        worth = sum(
            utility_value(by[job].utility, slot - by[job].arrival) for job, slot in finished.when
        )
        assert worth <= bound * (1 + 1e-9) + 1e-9, (name, seed)


def ten_jobs(cluster: Cluster) -> list[Job]:
    """Return ten jobs that fill the server for two slots each; five of them fit in ten slots."""
    return [
        make_job(
            cluster,
            f"job-{worth}",
            chunks=1,
            epochs=2,
            minibatches=10,
            worker_amounts={"gpu": 4000},
            ps_amounts=None,
            utility=Constant(float(worth)),
        )
        for worth in range(1, 11)
    ]


def test_the_price_clears_one_machine() -> None:
    cluster = make_cluster(1, 0, gpus=4, horizon=10)
    result = certify(cluster, ten_jobs(cluster), 10, gap=1e-6, seconds=600, clock=Clock.PROCESSOR)
    assert result.bound == pytest.approx(10 + 9 + 8 + 7 + 6, rel=1e-6)
    assert result.best == 10 + 9 + 8 + 7 + 6
    assert result.gap <= 1e-6


def test_integral_machines_limit_shares() -> None:
    # Two servers of 4 GPUs and workers of 3: shares alone would let 2.67 of them run.
    cluster = make_cluster(2, 0, gpus=4, horizon=1)
    jobs = [
        make_job(
            cluster,
            f"job-{index}",
            chunks=1,
            epochs=1,
            minibatches=10,
            worker_amounts={"gpu": 3000},
            ps_amounts=None,
        )
        for index in range(3)
    ]
    assert bounded(cluster, jobs, 1, tolerance=1e-9).value == pytest.approx(20.0)


@settings(deadline=None, derandomize=True, max_examples=example_count(100))
@given(SEEDS)
def test_every_placement_respects_every_limit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 1, 2, gpus=int(rng.integers(1, 9)))
    members = cluster.hosts_workers
    limits = build_limits(cluster, members)
    free = cluster.capacity[members].copy()
    taken = np.zeros(len(limits))
    for _ in range(20):
        demand = np.array(
            [int(rng.integers(0, top + 1)) for top in cluster.capacity[members].max(axis=0)]
        )
        demand //= int(rng.integers(1, 5))
        server = int(rng.integers(len(free)))
        if (demand <= free[server]).all():
            free[server] -= demand
            taken += [limit.share(demand) for limit in limits]
    assert (taken <= 1 + 1e-9).all()


@pytest.mark.extended
@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS)
def test_the_best_schedule_is_valid(seed: int) -> None:
    """Capacities, progress, roles and earnings are computed again from the schedules alone."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 1, int(rng.integers(0, 2)), gpus=int(rng.integers(1, 5)), horizon=6)
    jobs = some_jobs(cluster, rng, 6)
    result = certify(cluster, jobs, 6, gap=0.0, seconds=0.3, clock=Clock.PROCESSOR)
    used = np.zeros((6, *cluster.capacity.shape), dtype=np.int64)
    total = 0.0
    for job in jobs:
        plan = result.schedules.get(job.name)
        if plan is None:
            continue
        made = 0
        for slot, placement in plan.placements():
            assert job.arrival <= slot < 6
            made += job.gain(placement.total_workers)
            assert placement.total_ps >= job.ps_needed(placement.total_workers)
            for server, workers, ps in zip(
                placement.servers, placement.workers, placement.ps, strict=True
            ):
                assert not workers or cluster.hosts_workers[server]
                assert not ps or cluster.hosts_ps[server]
                used[slot, server] += workers * job.worker
                if job.ps is not None:
                    used[slot, server] += ps * job.ps
        assert made >= job.required
        total += utility_value(job.utility, plan.completion - job.arrival)
    assert (used <= cluster.capacity).all()
    assert result.best == pytest.approx(total)
    optimum = solve(full_problem(cluster, jobs, 6)).utility
    assert result.best <= optimum * (1 + 1e-6) + 1e-6
    assert result.bound >= optimum * (1 - 1e-6) - 1e-6


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_search_that_finds_nothing_better_ends(seed: int) -> None:
    """The gap can't close here. The search stops before its time limit."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 1, gpus=2, horizon=6)
    jobs = some_jobs(cluster, rng, 6)
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 10_000

    result = certify(cluster, jobs, 6, gap=0.0, seconds=1e9, stop=stop)
    assert result.gap > 0.01
    assert calls < 5_000


@pytest.mark.parametrize("seed", sample(range(3)))
def test_the_search_starts_from_a_policy_s_schedules(seed: int) -> None:
    """A run's schedules earn what the run earned, and a search from them finds no worse one."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(3, 2, int(rng.integers(0, 2)), gpus=2, horizon=12)
    jobs = [random_job(cluster, rng, f"job-{index}", latest=8) for index in range(20)]
    scenario = Scenario(cluster, jobs, 12, seed)
    run = record_run(scenario, "rolling", PolicyChoice("rolling").build(scenario.context()))
    left = completed_schedules(scenario, PolicyChoice("rolling").build(scenario.context()), never)
    by_name = {job.name: job for job in jobs}
    earns = sum(
        utility_value(by_name[name].utility, plan.completion - by_name[name].arrival)
        for name, plan in left.items()
    )
    assert earns == pytest.approx(run.info["summary"]["total_utility"])
    assert earns > 0
    begun = False

    def starts(stop: Stop) -> Iterator[Mapping[str, Schedule]]:
        nonlocal begun
        yield left
        begun = True

    result = certify(cluster, jobs, 12, seconds=1e9, starts=starts, stop=lambda: begun)
    assert result.best >= earns * (1 - 1e-9)


def test_a_stopped_run_gives_its_completed_schedules() -> None:
    cluster = make_cluster(1, 0, gpus=4, horizon=10)
    scenario = Scenario(cluster, ten_jobs(cluster), 10, 0)
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 13

    some = completed_schedules(scenario, PolicyChoice("rolling").build(scenario.context()), stop)
    assert calls == 14
    assert (
        0
        < len(some)
        < len(
            completed_schedules(scenario, PolicyChoice("rolling").build(scenario.context()), never)
        )
    )


def test_processor_time_stops_during_a_wait() -> None:
    began = {clock: clock.now() for clock in Clock}
    time.sleep(0.2)
    passed = {clock: clock.now() - began[clock] for clock in Clock}
    assert passed[Clock.WALL] >= 0.2
    assert passed[Clock.PROCESSOR] < 0.1


def test_no_jobs_earn_nothing() -> None:
    assert certify(make_cluster(), []).bound == 0.0


def test_a_bag_has_no_certificate() -> None:
    on = place_cluster()
    with pytest.raises(InputError, match="best schedule of a bag of tasks can't be proved"):
        certify(on, [build_bag(on)])


@pytest.mark.parametrize("gap", [-0.01, float("nan"), float("inf")])
def test_a_gap_must_be_finite_and_not_negative(gap: float) -> None:
    with pytest.raises(InputError, match="gap"):
        certify(make_cluster(), [], gap=gap)


def test_stopping_immediately_gives_a_valid_bound() -> None:
    cluster = make_cluster(1, 0, gpus=4, horizon=10)
    result = certify(cluster, ten_jobs(cluster), 10, stop=lambda: True)
    assert result.bound >= 40
    assert result.best <= 40


# ---------------------------------------------------------------- files of prices


def written(tmp_path: Path, cluster: Cluster, jobs: list[Job]) -> tuple[Path, PostedPrices]:
    prices = certify(cluster, jobs, 10, seconds=600, clock=Clock.PROCESSOR).prices
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(prices.document(cluster)), encoding="utf-8")
    return path, prices


def test_prices_are_read_back(tmp_path: Path) -> None:
    cluster = make_cluster(1, 0, gpus=4, horizon=10)
    jobs = ten_jobs(cluster)
    path, prices = written(tmp_path, cluster, jobs)
    back = read_posted_prices(path, cluster)
    assert back.prices.any()
    np.testing.assert_array_equal(back.costs(jobs[0], 0, 12), prices.costs(jobs[0], 0, 12))
    assert (back.costs(jobs[0], 0, 12)[10:] == 0).all()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-9], "damaged"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "damaged"),
        (lambda text: text.replace('"total": "1"', '"total": "1/0"'), "another cluster"),
        (lambda text: text.replace('"first": 0', '"first": 5'), "out of its range"),
        (lambda text: "[" * 100_000, "damaged"),
        (lambda text: text.replace('"slot_seconds": "600"', '"slot_seconds": "60"'), "another"),
    ],
)
def test_damaged_prices_are_refused(tmp_path: Path, damage, words: str) -> None:  # type: ignore[no-untyped-def]
    cluster = make_cluster(1, 0, gpus=4, horizon=10)
    path, _ = written(tmp_path, cluster, ten_jobs(cluster))
    path.write_text(damage(path.read_text()), encoding="utf-8")
    with pytest.raises(InputError, match=words):
        read_posted_prices(path, cluster)


def test_prices_of_another_cluster_are_refused(tmp_path: Path) -> None:
    path, _ = written(tmp_path, on := make_cluster(1, 0, gpus=4, horizon=10), ten_jobs(on))
    with pytest.raises(InputError, match="another cluster"):
        read_posted_prices(path, make_cluster(2, 0, gpus=4, horizon=10))
