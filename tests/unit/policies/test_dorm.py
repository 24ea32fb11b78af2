"""Dorm: the program against brute force; fairness, adjustments and survival over whole runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.schedule import Placement
from shadowprice.engine import Engine
from shadowprice.policies.dorm.recomputation import DormInstance, JobItem, solve
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Incident, Simulation
from tests.oracles.progressive_filling import progressive_filling
from tests.support.examples import example_count, sample
from tests.support.policy_runs import SlotObserver, run_policy
from tests.support.workloads import make_cluster, make_job, random_job

SEEDS = st.integers(0, 2**32 - 1)
Layout = tuple[tuple[int, ...], tuple[int, ...]]


# ------------------------------------------------------------------ the program


def layouts(item: JobItem, groups: int) -> Iterator[tuple[Layout | None, float, float, bool]]:
    """Yield all possible placements of a job: units, gain, loss, and whether it is a change."""
    yield None, item.current_utilisation, item.current_loss, False
    for index, (workers, ps) in enumerate(zip(item.counts, item.ps_counts, strict=True)):
        for on in product(range(workers + 1), repeat=groups):
            for beside in product(range(ps + 1), repeat=groups):
                if sum(on) == workers and sum(beside) == ps:
                    changed = item.current is not None and (
                        on != tuple(item.current[0]) or beside != tuple(item.current[1])
                    )
                    yield (
                        (on, beside),
                        float(item.utilisation[index]),
                        float(item.loss[index]),
                        changed,
                    )


def brute_force(instance: DormInstance) -> float:
    """Return the maximum utilisation by enumeration."""
    groups, resources = instance.free.shape
    best = -np.inf
    for picked in product(*(list(layouts(item, groups)) for item in instance.items)):
        used = np.zeros((groups, resources), dtype=np.int64)
        for item, (places, *_) in zip(instance.items, picked, strict=True):
            on = item.current if places is None else places
            if on is not None:
                used += np.array(on[0])[:, None] * item.worker
                used += np.array(on[1])[:, None] * item.ps
        if (
            (used <= instance.free)[instance.limited].all()
            and sum(loss for *_, loss, _ in picked) <= instance.fairness + 1e-9
            and sum(changed for *_, changed in picked) <= instance.adjustments
        ):
            best = max(best, sum(gain for _, gain, *_ in picked))
    return best


def random_instance(rng: np.random.Generator) -> DormInstance:
    groups, resources = int(rng.integers(1, 3)), 2
    free = rng.integers(2, 9, (groups, resources))
    room = free.copy()
    items = []
    fairness = 0.0
    for _ in range(int(rng.integers(1, 4))):
        worker = rng.integers(0, 3, resources)
        ps = rng.integers(0, 2, resources)
        most = int(rng.integers(1, 4))
        counts = np.array(sorted(rng.permutation(np.arange(1, most + 1))[: rng.integers(1, 4)]))
        ps_counts = np.minimum(counts, 1) * int(rng.integers(2))
        shares = (counts[:, None] * worker + ps_counts[:, None] * ps) / free.sum(axis=0)
        fair = float(rng.uniform(0, 0.6))
        standing = None
        gain, loss = 0.0, fair
        at = int(rng.integers(len(counts)))
        on = rng.multinomial(counts[at], np.ones(groups) / groups)
        beside = rng.multinomial(ps_counts[at], np.ones(groups) / groups)
        taken = on[:, None] * worker + beside[:, None] * ps
        if rng.random() < 0.6 and (taken <= room).all():
            room -= taken
            standing = (on, beside)
            gain, loss = float(shares[at].sum()), abs(float(shares[at].max()) - fair)
        fairness += loss
        items.append(
            JobItem(
                counts,
                ps_counts,
                worker,
                ps,
                shares.sum(axis=1),
                np.abs(shares.max(axis=1) - fair),
                standing,
                gain,
                loss,
            )
        )
    many = np.full((len(items), groups), 9)
    return DormInstance(
        items=items,
        free=free,
        limited=np.ones_like(free, dtype=np.bool_),
        max_workers_by_group=many,
        max_ps_by_group=many,
        # From the present placements up to any others.
        fairness=fairness + float(rng.choice([0.0, 0.1, 9.0])),
        adjustments=int(rng.integers(3)),
    )


@settings(deadline=None, derandomize=True, max_examples=example_count(120))
@given(SEEDS)
def test_the_program_finds_the_largest_utilisation(seed: int) -> None:
    instance = random_instance(np.random.default_rng(seed))
    solution = solve(instance, node_limit=10_000, gap=0.0)
    assert solution.optimal
    assert solution.utilisation == pytest.approx(brute_force(instance), abs=1e-6)


def test_interrupted_search_keeps_the_current_placement() -> None:
    for seed in sample(range(20)):
        instance = random_instance(np.random.default_rng(seed))
        placed = sum(item.current_utilisation for item in instance.items)
        assert solve(instance, node_limit=1, gap=0.0).utilisation >= placed - 1e-9


# ------------------------------------------------------------------ whole runs


class Bounds:
    """Checks every slot of a run against both bounds, from the recorded placements alone."""

    def __init__(self, theta_1: float, theta_2: float) -> None:
        self.theta = (theta_1, theta_2)
        self.before: dict[str, Placement] = {}
        self.adjusted = 0

    def __call__(self, engine: Engine, slot: int) -> None:
        jobs = [record.job for record in engine.open_jobs.values()]
        now = dict(engine.running)
        before = {job.name: self.before[job.name] for job in jobs if job.name in self.before}
        changed = [name for name, placement in before.items() if now.get(name) != placement]
        assert len(changed) <= math.ceil(self.theta[1] * len(before) - 1e-9)
        assert before.keys() <= now.keys()  # no running job is stopped
        capacity = engine.cluster.capacity
        totals = [sum(column) if max(column) < UNLIMITED else 0 for column in capacity.T.tolist()]
        fair = [
            share(job, workers, totals)
            for job, workers in zip(jobs, progressive_filling(engine.cluster, jobs), strict=True)
        ]
        allowed = math.ceil(self.theta[0] * 2 * sum(total > 0 for total in totals) - 1e-9)
        still = loss(jobs, fair, before, totals)
        assert loss(jobs, fair, now, totals) <= max(allowed, still) + 1e-9
        self.adjusted += len(changed)
        self.before = now


def share(job: Job, workers: int, whole: list[int]) -> float:
    ps = np.zeros_like(job.worker) if job.ps is None else job.ps
    used = workers * job.worker + job.ps_needed(workers) * ps
    return max(float(a) / total for a, total in zip(used, whole, strict=True) if total)


def loss(
    jobs: list[Job], fair: list[float], on: Mapping[str, Placement], whole: list[int]
) -> float:
    had = [share(job, on[job.name].total_workers if job.name in on else 0, whole) for job in jobs]
    return math.fsum(abs(a - b) for a, b in zip(had, fair, strict=True))


@pytest.mark.extended
@pytest.mark.parametrize(("theta_1", "theta_2"), [(0.1, 0.1), (0.02, 0.5), (0.0, 1.0), (1.0, 0.0)])
def test_every_recomputation_keeps_both_bounds(theta_1: float, theta_2: float) -> None:
    adjusted = 0
    for seed in sample(range(8)):
        rng = np.random.default_rng(seed)
        cluster = make_cluster(1, 1, gpus=int(rng.integers(2, 9)))
        jobs = [random_job(cluster, rng, f"job-{index}", latest=9) for index in range(14)]
        watch = Bounds(theta_1, theta_2)
        setting = {"fairness_loss": theta_1, "adjustment_overhead": theta_2}
        policy = make_policy("dorm", PolicyContext(cluster), setting)
        engine = Simulation(cluster, jobs, policy).run([SlotObserver(watch)])
        assert not engine.open_jobs
        counted = policy.parameters_in_force()["statistics"]
        assert isinstance(counted, dict)
        assert counted["beyond_fairness"] == 0
        adjusted += watch.adjusted
    assert (adjusted > 0) == (theta_2 > 0)


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS, st.sampled_from([0, 8]))
def test_every_job_is_admitted_and_ends(seed: int, exact_servers: int) -> None:
    engine = run_policy(
        "dorm", seed, {"exact_servers": exact_servers, "window": 4, "adjustable": 3}
    )
    assert not engine.open_jobs
    assert all(record.status is not Status.DROPPED for record in engine.jobs.values())


@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS)
def test_classes_of_servers_keep_within_the_adjustments_too(seed: int) -> None:
    before: dict[str, Placement] = {}

    def watch(engine: Engine, slot: int) -> None:
        had = {name: before[name] for name in before if name in engine.open_jobs}
        assert had.keys() <= engine.running.keys()
        changed = sum(engine.running[name] != placement for name, placement in had.items())
        assert changed <= math.ceil(0.3 * len(had) - 1e-9)
        before.clear()
        before.update(engine.running)

    setting = {"exact_servers": 0, "adjustment_overhead": 0.3, "fairness_loss": 0.0}
    assert not run_policy("dorm", seed, setting, watch, incidents=False).open_jobs


def test_equal_runs_give_equal_results() -> None:
    digests = {run_policy("dorm", 5, {"exact_servers": 0}).state_digest() for _ in range(2)}
    assert len(digests) == 1


def placements(
    cluster: Cluster, jobs: list[Job], incidents: Sequence[Incident] = (), **parameters: float
) -> list[dict[str, int]]:
    """Return each slot's workers by job, checked against the servers that are up."""
    seen: list[dict[str, int]] = []

    def watch(engine: Engine, slot: int) -> None:
        assert not any(set(p.servers) & engine.lost for p in engine.running.values())
        seen.append({name: p.total_workers for name, p in engine.running.items()})

    policy = make_policy("dorm", PolicyContext(cluster), parameters)
    Simulation(cluster, jobs, policy, incidents=incidents).run([SlotObserver(watch)])
    return seen


def wide(cluster: Cluster, name: str, chunks: int = 4, arrival: int = 0) -> Job:
    return make_job(
        cluster,
        name,
        arrival=arrival,
        chunks=chunks,
        epochs=20,
        worker_amounts={"gpu": 1000},
        ps_amounts=None,
    )


def test_displaced_job_restarts_immediately_on_free_capacity() -> None:
    cluster = make_cluster(2, 1, gpus=4)
    seen = placements(
        cluster,
        [wide(cluster, "one")],
        (ServerLost(1, cluster.names[0]), ServerBack(3, cluster.names[0])),
    )
    assert [slot["one"] for slot in seen[:5]] == [4, 4, 4, 4, 4]


def test_cancelled_job_frees_capacity() -> None:
    cluster = make_cluster(1, 1, gpus=4)
    jobs = [wide(cluster, "first"), wide(cluster, "second")]
    seen = placements(cluster, jobs, (JobCancelled(2, "first"),))
    assert seen[2] == {"second": 4}


@pytest.mark.parametrize(("theta_2", "expected"), [(0.1, [3, 1]), (0.0, [4, None])])
def test_running_job_is_preempted_for_higher_utilisation(
    theta_2: float, expected: list[int | None]
) -> None:
    # A worker of the second takes the CPUs that all of the first's leave idle.
    cluster = make_cluster(1, 1, gpus=4)
    greedy = {"gpu": 1000, "cpu": 16_000}
    second = make_job(
        cluster, "second", arrival=2, chunks=1, worker_amounts=greedy, ps_amounts=None
    )
    seen = placements(cluster, [wide(cluster, "first"), second], adjustment_overhead=theta_2)
    assert [seen[2].get("first"), seen[2].get("second")] == expected


def test_running_job_is_not_moved_without_gain() -> None:
    cluster = make_cluster(1, 1, gpus=4)
    seen = placements(cluster, [wide(cluster, "first"), wide(cluster, "second", arrival=2)])
    assert seen[2] == {"first": 4}


def test_jobs_beyond_the_window_wait_in_order_of_arrival() -> None:
    cluster = make_cluster(1, 1, gpus=4)
    jobs = [wide(cluster, f"job-{index}") for index in range(6)]
    assert placements(cluster, jobs, window=2, fairness_loss=1)[0].keys() <= {"job-0", "job-1"}
