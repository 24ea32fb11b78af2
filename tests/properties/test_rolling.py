"""Invariants of `rolling` for any arrivals: promises are kept, or their breach is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster, Role, Tenant
from shadowprice.core.events import (
    Completed,
    JobCancelled,
    JobsArrived,
    Promise,
    Resize,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.schedule import Placement
from shadowprice.core.utility import Constant, Deadline, Linear, Reciprocal, Sigmoid, Utility
from shadowprice.engine import Engine
from shadowprice.kernels.replanning.timeline import PS_ROLE, WORKER_ROLE
from shadowprice.policies.registry import make_policy
from shadowprice.policies.rolling import open_jobs
from shadowprice.policies.rolling.open_jobs import MIN_UTILITY_SHARE, NO_LAST_SLOT, OpenJobs
from shadowprice.policies.rolling.quotas import build_quotas
from shadowprice.results.recorder import Recorder
from shadowprice.simulator.driver import Incident, Simulation
from shadowprice.simulator.execution import ExactExecution, ExecutionModel
from tests.oracles.promises import completions
from tests.oracles.standing import put_on
from tests.support.examples import example_count
from tests.support.policy_runs import SlotObserver, random_world
from tests.support.workloads import faster_together, make_cluster, make_job, mixed, random_job

SEEDS = st.integers(0, 2**32 - 1)
CARRIES = {Role.WORKER: WORKER_ROLE, Role.PS: PS_ROLE, Role.ANY: WORKER_ROLE | PS_ROLE}


def run(
    cluster: Cluster,
    jobs: Sequence[Job],
    incidents: Sequence[Incident] = (),
    *,
    until: int | None = None,
    execution: ExecutionModel | None = None,
    **parameters: object,
) -> tuple[Engine, Recorder, list[tuple[int, Promise]]]:
    policy = make_policy("rolling", PolicyContext(cluster, None, until), parameters)
    recorder = Recorder(cluster, jobs, policy)
    simulation = Simulation(
        cluster,
        jobs,
        policy,
        until=until,
        incidents=incidents,
        execution=execution or ExactExecution(),
    )
    engine = simulation.run([recorder])
    promises = [(slot, made) for slot, made in recorder.decisions if isinstance(made, Promise)]
    return engine, recorder, promises


UTILITIES = st.one_of(
    st.builds(Constant, st.floats(0, 100)),
    st.builds(
        Sigmoid, st.floats(0, 100), st.sampled_from([0.0, 1e-6, 0.01, 5.0]), st.floats(0, 1e3)
    ),
    st.builds(Reciprocal, st.floats(0, 100)),
    st.builds(Linear, st.floats(0, 100), st.sampled_from([0.0, -1e-5, -0.3])),
    st.builds(Deadline, st.floats(0, 100), st.integers(0, 400).map(float)),
)


@settings(deadline=None, derandomize=True, max_examples=example_count(200))
@given(UTILITIES, st.integers(0, 2000), st.none() | st.integers(1, 4000))
def test_the_last_useful_slot_is_the_last_that_is_worth_something(
    utility: Utility, arrival: int, until: int | None
) -> None:
    cluster = make_cluster()
    one = replace(make_job(cluster), utility=utility, arrival=arrival)
    jobs = OpenJobs(cluster, until, build_quotas(cluster, enabled=False))
    last = jobs._last_slot(one, jobs.final_slot)
    shortest = one.min_slots_colocated - 1

    def worth(slot: int) -> bool:
        ages = np.array([shortest, slot - arrival], np.float64)
        best, now = utility.values(ages).tolist()
        return bool(best > 0 and now >= MIN_UTILITY_SHARE * best)

    end = NO_LAST_SLOT if until is None else until - 1
    if last < arrival + shortest:
        assert arrival + shortest > end or not worth(arrival + shortest)
    else:
        assert worth(last)
        assert last == end or not worth(last + 1)


def moving(jobs: Sequence[Job], seed: int) -> list[Job]:
    """Return jobs of which some lose a part of a slot whenever they move."""
    rng = np.random.default_rng(seed)
    shares = [Fraction(0), Fraction(1, 40), Fraction(1, 4), Fraction(3, 4), Fraction(1)]
    return [replace(job, restart=shares[int(rng.integers(5))]) for job in jobs]


@pytest.mark.extended
@settings(deadline=None, derandomize=True, max_examples=example_count(150))
@given(SEEDS, st.sampled_from([1, 2, 4]), st.booleans(), st.booleans())
def test_no_job_waits_beside_free_capacity(
    seed: int, kinds: int, moves: bool, shares: bool
) -> None:
    """However plans were packed:

    a job that keeps its servers leaves other capacity than planned.
    """
    rng = np.random.default_rng(seed)
    cluster = make_cluster(*(int(rng.integers(*span)) for span in ((1, 5), (1, 3), (0, 4))))
    parts = rng.integers(4 - kinds, 4, cluster.servers) + 1
    cluster = replace(cluster, capacity=cluster.capacity * parts[:, None] // 4)
    if shares:
        half = int(cluster.capacity[:, cluster.resources.index("gpu")].sum()) // 2
        cluster = replace(
            cluster, tenants=(Tenant("a", {"gpu": half}), Tenant("b", {"gpu": half // 2}))
        )
    jobs = [
        random_job(cluster, rng, f"job-{index}", latest=8)
        for index in range(int(rng.integers(4, 20)))
    ]
    if shares:
        names = [tenant.name for tenant in cluster.tenants]
        jobs = [replace(job, tenant=names[int(rng.integers(len(names)))]) for job in jobs]
    if moves:
        jobs = moving(jobs, seed)
    policy = make_policy("rolling", PolicyContext(cluster), {})

    def watch(engine: Engine, slot: int) -> None:
        room = (engine.ledger.capacity - engine.ledger.used).reshape(cluster.servers, -1)
        for name, record in engine.open_jobs.items():
            row = policy._state.jobs.rows[name]
            if name in engine.running or policy._state.jobs.promise[row] >= 0:
                continue  # a job with a later promise may have to wait for it
            one = record.job
            worker, count = one.worker, int(one.worker_counts[0])
            ps, count_ps = (worker * 0, 0) if one.ps is None else (one.ps, int(one.ps_counts[0]))
            requests = [(WORKER_ROLE, worker, count), (PS_ROLE, ps, count_ps)]
            for order in (requests, requests[::-1]):
                free = room.copy()
                none = np.zeros(cluster.servers, np.int64)
                fits = all(put_on(free, carries, *each, none.copy()) for each in order)
                assert not fits, (slot, name)

    carries = np.array([CARRIES[role] for role in cluster.roles])
    Simulation(cluster, jobs, policy).run([SlotObserver(watch)])


@settings(deadline=None, derandomize=True, max_examples=example_count(120))
@given(
    SEEDS,
    st.sampled_from(["none", "moves", "starts"]),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_without_faults_every_promise_is_kept(
    seed: int, restarts: str, restart_limit: float, revision: bool, steady: bool, together: bool
) -> None:
    cluster, jobs, _ = random_world(seed, incidents=False)
    if together:
        jobs = faster_together(jobs, np.random.default_rng(seed))
    cluster = replace(cluster, restart_first=restarts == "starts")
    if restarts != "none":
        jobs = moving(jobs, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_jobs, "_MAX_COUNTED_RESTART", restart_limit)
        _, recorder, promises = run(cluster, jobs, revision=revision, steady=steady)
    done = completions(jobs, recorder.segments(), first=cluster.restart_first)
    assert done == recorder.completions
    for _, promise in promises:
        assert promise.completion is not None
        assert done[promise.job] <= promise.completion
    # A promise is given once, and never changes.
    assert len({promise.job for _, promise in promises}) == len(promises)


@settings(deadline=None, derandomize=True, max_examples=example_count(160))
@given(SEEDS, st.booleans())
def test_promises_are_kept_where_servers_of_several_roles_are_alike(
    seed: int, together: bool
) -> None:
    cluster, jobs, _ = random_world(seed, incidents=False)
    cluster = mixed(cluster, np.random.default_rng(seed))
    if together:
        jobs = faster_together(jobs, np.random.default_rng(seed))
    _, recorder, promises = run(cluster, jobs)
    assert len({promise.job for _, promise in promises}) == len(promises)
    assert recorder.completions == completions(jobs, recorder.segments())
    for _, promise in promises:
        assert promise.completion is not None
        assert recorder.completions[promise.job] <= promise.completion


def live(cluster: Cluster, jobs: Sequence[Job], steady: bool) -> tuple[int, float]:
    """Let jobs arrive within slots, as they do live; return the number of moves, and the earnings.

    Jobs progress as declared.
    """
    engine = Engine(
        cluster,
        make_policy("rolling", PolicyContext(cluster, None), {"steady": steady}),
        saves_policy_state=False,
    )
    moved, earned = 0, 0.0
    for slot in range(500):
        commands = engine.handle(SlotBegan(slot))
        arriving = tuple(job for job in jobs if job.arrival == slot + 1)
        if arriving:
            engine.handle(JobsArrived(slot + 1, arriving))
        gained = {}
        for name, placement in engine.running.items():
            record = engine.jobs[name]
            whole = record.job.gain(placement.total_workers, colocated=placement.colocated)
            gained[name] = min(whole, record.remaining)
        commands += engine.handle(SlotEnded(slot, gained))
        moved += sum(isinstance(command, Resize) for command in commands)
        earned += sum(command.utility for command in commands if isinstance(command, Completed))
    assert not engine.open_jobs
    return moved, earned


@pytest.mark.extended
def test_steady_plans_move_jobs_less_and_earn_no_less() -> None:
    """Running jobs stay as planned, unless another job needs the capacity."""
    moved, earned = {False: 0, True: 0}, {False: 0.0, True: 0.0}
    rng = np.random.default_rng(1)
    cluster = make_cluster(workers=4, ps=0, both=0, gpus=8, horizon=120)
    jobs = [
        make_job(
            cluster,
            f"job-{index}",
            arrival=1 + index,
            epochs=1,
            chunks=int(rng.choice([2, 4, 8])),
            minibatches=int(rng.choice([200, 600, 1200])),
            ps_amounts=None,
            utility=Sigmoid(float(rng.uniform(5, 50)), 0.1, float(rng.choice([20, 40, 80]))),
        )
        for index in range(60)
    ]
    for steady in moved:
        moves, value = live(cluster, jobs, steady)
        moved[steady] += moves
        earned[steady] += value
    assert moved[True] < 0.75 * moved[False]
    assert earned[True] >= 0.99 * earned[False]


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS, st.integers(4, 20))
def test_promises_end_with_the_timespan(seed: int, until: int) -> None:
    cluster, jobs, _ = random_world(seed, incidents=False)
    _, recorder, promises = run(cluster, jobs, until=until)
    done = completions(jobs, recorder.segments())
    for _, promise in promises:
        assert promise.completion is not None
        assert done[promise.job] <= promise.completion < until


@settings(deadline=None, derandomize=True, max_examples=example_count(120))
@given(SEEDS, st.booleans())
def test_with_faults_the_last_promise_is_kept(seed: int, together: bool) -> None:
    cluster, jobs, incidents = random_world(seed)
    if together:
        jobs = faster_together(jobs, np.random.default_rng(seed))
    _, recorder, promises = run(cluster, jobs, incidents)
    cancelled = {event.job for event in recorder.incidents if isinstance(event, JobCancelled)}
    last: dict[str, tuple[int, Promise]] = {}
    for slot, promise in promises:
        if promise.job in last:  # reported at once, when the job could not know better
            before = last[promise.job][1].completion
            assert before is None or slot <= before + 1
        last[promise.job] = (slot, promise)
    for name, (_, promise) in last.items():
        if promise.completion is None:
            continue
        if name in cancelled and name not in recorder.completions:
            continue
        assert recorder.completions[name] <= promise.completion
    assert completions(jobs, recorder.segments()).keys() >= recorder.completions.keys()


class Slower(ExecutionModel):
    """Jobs run at half the speed they stated."""

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return half of the job model's progress."""
        return -(-ExactExecution().progress(job, placement, slot, moved=moved) // 2)


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS, st.booleans())
def test_misstated_work_changes_promises_and_stops_nothing(seed: int, together: bool) -> None:
    cluster, jobs, _ = random_world(seed, incidents=False)
    if together:
        jobs = faster_together(jobs, np.random.default_rng(seed))
    engine, recorder, promises = run(cluster, jobs, execution=Slower())
    final: dict[str, int | None] = {promise.job: promise.completion for _, promise in promises}
    for name, completion in final.items():
        if completion is not None:
            assert recorder.completions[name] <= completion
    assert not engine.open_jobs


@pytest.mark.extended
@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_nothing_that_a_waiting_job_could_use_stays_idle(seed: int) -> None:
    """With workers of one shape, capacity of a slot is a number, and none is free while a job
    waits.
    """
    rng = np.random.default_rng(seed)
    cluster = make_cluster(int(rng.integers(1, 4)), 0, gpus=int(rng.integers(1, 5)))
    jobs = [
        make_job(
            cluster,
            f"job-{index}",
            ps_amounts=None,
            arrival=int(rng.integers(6)),
            epochs=int(rng.integers(1, 30)),
            worker_range=(1, int(rng.integers(1, 5))),
            utility=random_job(cluster, rng, "drawn").utility,
        )
        for index in range(int(rng.integers(1, 12)))
    ]
    places = int((cluster.capacity[:, cluster.column["gpu"]] // 1000).sum())

    def watch(engine: Engine, slot: int) -> None:
        used = sum(placement.total_workers for placement in engine.running.values())
        for name, record in engine.open_jobs.items():
            running = engine.running.get(name)
            workers = 0 if running is None else running.total_workers
            if workers < min(record.job.max_workers, record.remaining):
                assert used == places, (slot, name)

    policy = make_policy("rolling", PolicyContext(cluster), {})
    Simulation(cluster, jobs, policy).run([SlotObserver(watch)])
