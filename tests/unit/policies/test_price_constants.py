"""L and U on logarithms against (23)-(26) as printed, also where plain floats fail."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.utility import Constant, Deadline, Reciprocal, Sigmoid
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.constants import (
    Carries,
    ConstantsLearner,
    ContributionCache,
    Lower,
    LowerConstant,
    PricePool,
    given_constants,
    use_cache,
    worker_slots,
)
from tests.oracles.oasis import constants_as_printed
from tests.support.examples import example_count, sample
from tests.support.workloads import GBPS, GIB, make_cluster, make_job


def linear_jobs(seed: int) -> tuple[object, list[Job]]:
    """Return a cluster and jobs whose utilities stay far above the smallest float."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(
        int(rng.integers(1, 4)), int(rng.integers(1, 4)), gpus=int(rng.integers(1, 9))
    )
    jobs = []
    for index in range(int(rng.integers(1, 9))):
        value = float(rng.uniform(1, 100))
        jobs.append(
            make_job(
                cluster,
                f"job-{index}",
                arrival=int(rng.integers(0, 10)),
                epochs=int(rng.integers(1, 5)),
                chunks=int(rng.integers(1, 5)),
                minibatches=int(rng.integers(1, 30)),
                utility=[
                    Constant(value),
                    Sigmoid(value, float(rng.uniform(0, 0.5)), float(rng.integers(1, 9))),
                    Reciprocal(value),
                ][int(rng.integers(3))],
                worker_amounts={
                    "gpu": int(rng.integers(0, 2)) * 1000,
                    "cpu": int(rng.integers(1, 9)) * 1000,
                    "memory": int(rng.integers(1, 9)) * GIB,
                    "bandwidth": GBPS,
                },
                ps_amounts=None
                if rng.random() < 0.3
                else {"cpu": int(rng.integers(1, 9)) * 1000, "memory": GIB, "bandwidth": 9 * GBPS},
            )
        )
    return cluster, jobs


def due_at_once(job: Job, value: float) -> Job:
    """Return the job, worth something only in the first slot in which it could complete."""
    return replace(job, utility=Deadline(value, job.shortest_slots - 1))


@pytest.mark.parametrize("carries", ["workers", "ps"])
def test_the_constants_are_those_printed_where_floats_suffice(carries: Carries) -> None:
    timespan = 40
    for seed in sample(range(40)):
        on, jobs = linear_jobs(seed)
        members = on.hosts_workers if carries == "workers" else on.hosts_ps  # type: ignore[attr-defined]
        learner = ConstantsLearner(PricePool.of(on, members), carries, timespan, timespan)  # type: ignore[arg-type]
        learner.learn(jobs)
        result = learner.constants()

        def demand(job: Job) -> np.ndarray | None:
            return job.worker if carries == "workers" else job.ps

        if all(demand(job) is None for job in jobs):
            assert result.ln_lower == -math.inf
            assert (result.ln_upper == -math.inf).all()
            continue
        lower, upper = constants_as_printed(
            jobs,
            demand,
            on.capacity[members],
            timespan,
            on.slot_seconds,  # type: ignore[attr-defined]
        )
        assert math.exp(result.ln_lower) == pytest.approx(lower, rel=1e-9)
        for ln_upper, printed in zip(result.ln_upper, upper, strict=True):
            if printed == 0.0:
                assert ln_upper == -math.inf
            else:
                assert math.exp(ln_upper) == pytest.approx(max(printed, lower), rel=1e-9)


def test_a_utility_that_underflows_still_has_a_price() -> None:
    """Decay 5 over 300 slots: f(T - a) is 1e-640, and U / L about e^1480 (reading 3)."""
    cluster = make_cluster(2, 2, horizon=300)
    single_job = make_job(cluster, utility=Sigmoid(50.0, 5.0, 3.0))
    learner = ConstantsLearner(PricePool.of(cluster, cluster.hosts_workers), "workers", 300, 300)
    learner.learn([single_job])
    constants = learner.constants()
    assert math.exp(constants.ln_lower) == 0.0  # a plain float's L
    # ln f(299) = ln 50 - 5 (299 - 3), and the rest of (25) is ordinary.
    expected = math.log(50.0) - 5.0 * 296
    share = 0.25 + 0.125 + 0.125 + 0.04
    use = 8 * share
    eta = 300 * 2 * 4.0 / use  # T times four resources of two equal servers
    assert constants.ln_lower == pytest.approx(expected - math.log(use) - math.log(4 * eta))
    finite = constants.ln_upper[np.isfinite(constants.ln_upper)]
    assert len(finite) == 4
    assert (finite > constants.ln_lower + 1400).all()
    assert np.isfinite(constants.scaled(0.2).ln_upper).sum() == 4


def test_a_job_that_is_worth_nothing_does_not_make_every_price_zero() -> None:
    cluster = make_cluster(2, 2)
    useful = make_job(cluster, utility=Constant(10.0))
    late = make_job(
        cluster, "late", utility=Deadline(5.0, 2.0)
    )  # 0 in most slots: its last worth counts
    learner = ConstantsLearner(PricePool.of(cluster, cluster.hosts_workers), "workers", 30, 30)
    learner.learn([useful, late])
    lower = learner.constants().ln_lower
    assert math.isfinite(lower)
    learner.learn([make_job(cluster, "none", utility=Constant(0.0))])
    assert learner.constants().ln_lower == lower


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("floor", ["theory", "clearing"])
@pytest.mark.parametrize("carries", ["workers", "both"])
def test_jobs_that_are_due_at_once_do_not_make_a_resource_free(
    carries: Carries, floor: Lower, *, known: bool
) -> None:
    """(23), (24) and (3.13) print the utility a slot later, which is 0 for all of them."""
    cluster = make_cluster(2, 0, gpus=4)
    demands = {"worker_amounts": {"gpu": 1000}, "ps_amounts": None}
    jobs = [
        due_at_once(make_job(cluster, f"job-{value}", epochs=3, **demands), value)
        for value in (7.0, 20.0)
    ]
    pool = PricePool.of(cluster, cluster.hosts_workers)
    learner = ConstantsLearner(pool, carries, 30, 30, LowerConstant(floor), known)
    learner.learn(jobs)
    upper = dict(zip(cluster.resources, learner.constants().ln_upper, strict=True))
    assert upper.pop("gpu") == pytest.approx(math.log(20.0 / 0.25))
    assert set(upper.values()) == {-math.inf}
    assert all(learner.covers(job, learner.constants()) for job in jobs)
    # One job that is worth something a slot later: U as printed.
    learner.learn([make_job(cluster, "later", utility=Constant(3.0), **demands)])
    upper = dict(zip(cluster.resources, learner.constants().ln_upper, strict=True))
    assert upper["gpu"] == pytest.approx(math.log(3.0 / 0.25))


@pytest.mark.parametrize("known", [True, False])
def test_demand_that_is_due_at_once_clears_as_demand_with_a_slot_of_slack(*, known: bool) -> None:
    cluster = make_cluster(1, 0, gpus=2, horizon=2)
    demands = {"worker_amounts": {"gpu": 1000}, "ps_amounts": None, "epochs": 1, "chunks": 1}
    pool = PricePool.of(cluster, cluster.hosts_workers)
    learners = []
    for slack in (0, 1):
        learner = ConstantsLearner(pool, "workers", 2, 2, LowerConstant("clearing"), known)
        for index, value in enumerate((1.0, 8.0, 4.0, 2.0, 16.0, 32.0)):
            job = make_job(cluster, f"job-{index}", **demands)
            deadline = Deadline(value, job.shortest_slots - 1 + slack)
            learner.learn([replace(job, utility=deadline)])
        learners.append(learner)
    at_once, later = (learner.constants() for learner in learners)
    assert at_once.ln_lower == pytest.approx(later.ln_lower)
    assert at_once.ln_upper == pytest.approx(later.ln_upper)
    if known:
        # Four of the six one-slot jobs fill two GPUs for two slots: the last is worth 4.
        assert at_once.ln_lower == pytest.approx(math.log(4.0 / 0.5))


def test_the_clearing_price_only_ever_raises_the_lower_price() -> None:
    cluster = make_cluster(1, 1)
    pool = PricePool.of(cluster, cluster.hosts_workers)
    steep = [
        make_job(cluster, f"job-{index}", utility=Sigmoid(50.0, 5.0, 3.0)) for index in range(40)
    ]
    theory, clearing = (
        ConstantsLearner(pool, "workers", 30, 30, LowerConstant(kind))
        for kind in ("theory", "clearing")
    )
    for learner in (theory, clearing):
        learner.learn(steep[:1])  # room for one: there is nothing to clear
    assert clearing.constants().ln_lower == theory.constants().ln_lower
    for learner in (theory, clearing):
        learner.learn(steep[1:])  # 320 worker-slots; four at once fill the GPUs, 120 in 30 slots
    density = math.log(50.0 / (1.0 + math.exp(5.0 * (2 - 3)))) - math.log(8 * 0.54)
    assert clearing.constants().ln_lower == pytest.approx(density)
    assert theory.constants().ln_lower < density - 100
    assert list(clearing.constants().ln_upper) == list(theory.constants().ln_upper)


def test_the_window_bounds_what_is_learnt() -> None:
    """Without a timespan T is the horizon; a job that arrives after T teaches nothing."""
    cluster = make_cluster(2, 2)
    pool = PricePool.of(cluster, cluster.hosts_workers)
    single_job = make_job(cluster, utility=Reciprocal(10.0))
    open_ended = ConstantsLearner(pool, "workers", 30, None)
    bounded = ConstantsLearner(pool, "workers", 300, 30)
    for learner in (open_ended, bounded):
        learner.learn([single_job])
    assert open_ended.constants().ln_lower == bounded.constants().ln_lower
    before = bounded.constants()
    assert not bounded.learn([replace(single_job, arrival=30, utility=Constant(1e9))])
    assert list(bounded.constants().ln_upper) == list(before.ln_upper)


def test_a_curve_counts_at_its_most_wasteful_number_of_workers() -> None:
    cluster = make_cluster(2, 2)
    single_job = make_job(cluster)
    curved = replace(
        single_job,
        required=12,
        worker_counts=np.array([1, 4]),
        gains=np.array([3, 4]),
        internal_gains=np.array([3, 4]),
        ps_counts=np.array([1, 1]),
    )
    assert worker_slots(single_job) == 8
    assert worker_slots(curved) == 12  # 4 workers for 3 slots; one alone would take 4


def test_units_do_not_matter() -> None:
    """Prices are per share (reading 4): in bytes or in milli-bytes, the constants are the same."""
    results = []
    for unit in (1, 1000):
        cluster = make_cluster(2, 2)
        cluster = replace(cluster, capacity=cluster.capacity * np.array([1, 1, unit, 1]))
        job = make_job(cluster)
        job = replace(job, worker=job.worker * np.array([1, 1, unit, 1]))
        learner = ConstantsLearner(PricePool.of(cluster, cluster.hosts_workers), "workers", 30, 30)
        learner.learn([job])
        results.append(learner.constants())
    assert results[0].ln_lower == pytest.approx(results[1].ln_lower, rel=1e-9)
    assert results[0].ln_upper == pytest.approx(results[1].ln_upper, rel=1e-9)


def test_given_constants_are_taken_as_they_are() -> None:
    constants = given_constants(0.5, {"gpu": 8.0}, ("gpu", "cpu"))
    assert constants.ln_lower == math.log(0.5)
    assert list(constants.ln_upper) == [math.log(8.0), -math.inf]
    assert constants.record(("gpu", "cpu")) == {
        "ln_L": math.log(0.5),
        "ln_U": {"gpu": math.log(8.0)},
    }
    assert list(constants.scaled(2.0).ln_upper) == [pytest.approx(math.log(16.0)), -math.inf]


@pytest.mark.parametrize(
    ("floor", "known"), [("theory", True), ("theory", False), ("clearing", True)]
)
@pytest.mark.parametrize("seed", sample(range(6)))
def test_predicted_change_of_constants_equals_the_actual_one(
    seed: int, known: bool, floor: str
) -> None:
    cluster = make_cluster(1, 1)
    rng = np.random.default_rng(seed)
    pool = PricePool.of(cluster, cluster.hosts_workers)
    learner = ConstantsLearner(pool, "workers", 12, None, LowerConstant(floor), known)  # type: ignore[arg-type]
    changes = 0
    for index in range(60):
        utility = Constant(float(rng.uniform(1, 100)))
        chunks = int(rng.integers(1, 5))
        single_job = make_job(
            cluster, f"job-{index}", arrival=index // 4, chunks=chunks, utility=utility
        )
        other = replace(single_job, utility=Constant(float(rng.uniform(1, 1e4))))
        for shown in (single_job, other, single_job):
            before, twin = learner.constants(), copy(learner)
            shown_constants = learner.constants_with(shown)
            assert not learner.constants().differ(before)
            assert twin.learn([shown]) == shown_constants.differ(before)
            changes += shown_constants.differ(before)
            assert not shown_constants.differ(twin.constants())
        learner.learn([single_job])
    assert changes


@pytest.mark.parametrize("floor", ["theory", "guaranteed", "clearing"])
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(1, 9**6))),
    later=st.integers(0, 30),
)
@settings(max_examples=example_count(40), deadline=None, derandomize=True)
def test_removed_job_leaves_no_trace(
    floor: Lower, arrivals: list[tuple[int, bool, int]], later: int
) -> None:
    """For any value, and whatever else was learnt and forgotten in between."""
    cluster = make_cluster(1, 1)
    pool = PricePool.of(cluster, cluster.hosts_workers)
    lower = LowerConstant(floor, StandaloneValue(cluster, cluster.hosts_workers, cluster.hosts_ps))
    attacked, spared = (
        ConstantsLearner(pool, "workers", 12, None, lower, known=False) for _ in range(2)
    )
    hostile = []
    for index, (arrival, is_hostile, value) in enumerate(sorted(arrivals)):
        single_job = make_job(
            cluster, f"job-{index}", arrival=arrival, utility=Constant(float(value))
        )
        attacked, spared = attacked.at(arrival), spared.at(arrival)
        attacked.learn([single_job])
        if is_hostile:
            hostile.append(single_job.name)
        else:
            spared.learn([single_job])
    for name in hostile:
        attacked = attacked.without(name)
    slot = max((arrival for arrival, *_ in arrivals), default=0) + later
    assert not attacked.at(slot).constants().differ(spared.at(slot).constants())


def test_after_an_idle_horizon_prices_are_those_of_a_new_service() -> None:
    cluster = make_cluster(1, 1)
    pool = PricePool.of(cluster, cluster.hosts_workers)
    learner = ConstantsLearner(pool, "workers", 12, None, LowerConstant("clearing"), known=False)
    fresh = copy(learner)
    for index in range(40):
        learner.learn(
            [make_job(cluster, f"job-{index}", arrival=index // 8, utility=Constant(1e5))]
        )
    lower = [learner.at(slot).constants().ln_lower for slot in range(5, 17)]
    assert lower[0] > math.log(1.0)
    assert all(later <= earlier for earlier, later in pairwise(lower))
    assert learner.at(16).constants().differ(fresh.at(16).constants()) is False


@pytest.mark.parametrize("floor", ["theory", "guaranteed", "clearing"])
@pytest.mark.parametrize("carries", ["workers", "ps"])
@pytest.mark.parametrize("exact", [False, True])
def test_summary_of_other_jobs_gives_the_constants_of_all(
    floor: Lower, carries: Carries, *, exact: bool
) -> None:
    on, jobs = linear_jobs(5)
    assert isinstance(on, Cluster)
    if exact:
        jobs = [due_at_once(job, 5.0 + index) for index, job in enumerate(jobs)]
    assert len(jobs) > 3
    members = on.hosts_workers, on.hosts_ps
    pool = PricePool.of(on, members[carries == "ps"])
    distinct = set()
    for index in range(len(jobs)):
        others = ContributionCache(index)
        for factor in (1.0, 0.5, 30.0, 1e4):
            one = replace(jobs[index], utility=Constant(factor * 20.0))
            one = due_at_once(one, factor * 20.0) if exact else one
            changed = [*jobs[:index], one, *jobs[index + 1 :]]
            lower = LowerConstant(floor, StandaloneValue(on, *members))
            plain = ConstantsLearner(pool, carries, 12, None, lower)
            plain.learn(changed)
            with use_cache(others):
                quick = ConstantsLearner(pool, carries, 12, None, lower)
            quick.learn_all(changed)
            expected, actual = plain.constants(), quick.constants()
            assert expected.ln_lower == actual.ln_lower
            assert list(expected.ln_upper) == list(actual.ln_upper)
            distinct.add((expected.ln_lower, *expected.ln_upper))
    assert len(distinct) > 1, "no change is of consequence"


@pytest.mark.parametrize("floor", ["theory", "clearing"])
@pytest.mark.parametrize("carries", ["workers", "ps", "both"])
@pytest.mark.parametrize("exact", [False, True])
def test_constants_for_new_servers_equal_learning_there(
    carries: Carries, floor: Lower, *, exact: bool
) -> None:
    """Larger or smaller in each resource, without some, or with some for the first time.

    And once more, on the earlier servers.
    """
    count = 0
    for seed in range(60):
        on, jobs = linear_jobs(seed)
        assert isinstance(on, Cluster)
        rng = np.random.default_rng(seed)
        some = [
            replace(job, worker=job.worker * rng.integers(0, 2, len(on.resources)))
            for job in jobs * 4
        ]
        requests = [job for job in jobs if carries != "ps" or job.ps is not None]
        if not requests:
            continue
        jobs = [*some, *requests[-1:], *requests[-1:]]
        if exact:
            jobs = [due_at_once(job, 5.0 + index) for index, job in enumerate(jobs)]
        members = np.ones(on.servers, dtype=np.bool_)
        if carries != "both":
            members = on.hosts_workers if carries == "workers" else on.hosts_ps
        sizes = [on.capacity]
        for _ in range(2):
            factors = rng.integers(0, 4, (len(members), len(on.resources)))
            sizes.append(on.capacity * factors // 2)
        here, there, elsewhere = (
            PricePool.of(replace(on, capacity=capacity), members) for capacity in sizes
        )
        learner = ConstantsLearner(here, carries, 12, None, LowerConstant(floor), known=False)
        learner.learn(jobs[:-2])
        steps = learner.moved(there), learner.moved(there).moved(elsewhere).moved(here)
        other = learner.moved(elsewhere)
        other.learn(jobs[-2:-1])
        for pool, moved, before, last in (
            (there, steps[0], jobs[:-2], jobs[-2]),
            (here, steps[1], jobs[:-2], jobs[-2]),
            (there, other.moved(there), jobs[:-1], jobs[-1]),
        ):
            twin = ConstantsLearner(pool, carries, 12, None, LowerConstant(floor), known=False)
            twin.learn(before)
            for one in (twin, moved):  # no job sets the clearing price that it has to pay
                one.learn([last])
            constants, expected = moved.constants(), twin.constants()
            assert constants.ln_lower == pytest.approx(expected.ln_lower, rel=1e-12)
            assert constants.ln_upper == pytest.approx(expected.ln_upper, rel=1e-12)
            count += math.isfinite(expected.ln_lower)
    assert count > 60


@pytest.mark.parametrize("floor", ["theory", "guaranteed", "clearing"])
def test_a_job_teaches_up_to_the_points_of_its_tenant(floor: Lower) -> None:
    cluster = make_cluster(1, 1)
    pool = PricePool.of(cluster, cluster.hosts_workers)
    lower = LowerConstant(floor, StandaloneValue(cluster, cluster.hosts_workers, cluster.hosts_ps))
    rich, poor = (make_job(cluster, "job", utility=Constant(value)) for value in (1e5, 3.0))
    learnt = []
    for job in (replace(rich, points=3.0), poor):
        learner = ConstantsLearner(pool, "workers", 12, None, lower, known=False)
        learner.learn([job])
        learnt.append(learner.constants())
    assert learnt[0].ln_lower == learnt[1].ln_lower
    assert list(learnt[0].ln_upper) == list(learnt[1].ln_upper)
    penniless = ConstantsLearner(pool, "workers", 12, None, lower, known=False)
    assert not penniless.learn([replace(rich, points=0.0)])
