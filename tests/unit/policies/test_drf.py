"""DRF: max-min dominant shares, against a plain filling, and no usable capacity left free."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.engine import Engine
from shadowprice.kernels.reactive.dominant_share import Widths, fill
from shadowprice.kernels.reactive.places import SAME, PlacementTable
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.oracles.progressive_filling import progressive_filling, useful
from tests.support.examples import example_count
from tests.support.policy_runs import SlotObserver, run_policy
from tests.support.workloads import GBPS, GIB, make_cluster, make_job, random_job

SEEDS = st.integers(0, 2**32 - 1)


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_matches_progressive_filling_if_placement_is_irrelevant(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(1, 1, gpus=int(rng.integers(2, 17)))
    jobs = [random_job(cluster, rng, f"job-{index}") for index in range(int(rng.integers(1, 12)))]

    def watch(engine: Engine, slot: int) -> None:
        open_jobs = [record.job for record in engine.open_jobs.values()]
        wanted = progressive_filling(cluster, open_jobs)
        placed = [engine.running.get(job.name) for job in open_jobs]
        assert [0 if p is None else p.total_workers for p in placed] == wanted

    policy = make_policy("drf", PolicyContext(cluster), {})
    engine = Simulation(cluster, jobs, policy).run([SlotObserver(watch)])
    assert all(
        record.status in {Status.FINISHED, Status.REFUSED} for record in engine.jobs.values()
    )


def room_for(engine: Engine, demand: np.ndarray, hosts: np.ndarray) -> int:
    free = engine.ledger.capacity - engine.ledger.used[0]
    up = hosts & np.array([index not in engine.lost for index in range(engine.cluster.servers)])
    demanded = demand > 0
    return int((free[up][:, demanded] // demand[demanded]).min(axis=1, initial=10**6).sum())


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_no_job_can_be_given_more_without_taking_from_another(seed: int) -> None:
    def watch(engine: Engine, slot: int) -> None:
        for name, record in engine.open_jobs.items():
            job, placement = record.job, engine.running.get(name)
            workers = 0 if placement is None else placement.total_workers
            larger = [count for count in useful(job) if count > workers]
            if not larger:
                continue
            more = larger[0] - workers
            servers = job.ps_needed(larger[0]) - job.ps_needed(workers)
            fits = room_for(engine, job.worker, engine.cluster.hosts_workers) >= more
            if job.ps is not None:
                fits &= room_for(engine, job.ps, engine.cluster.hosts_ps) >= servers
            assert not fits

    assert not run_policy("drf", seed, {}, watch, both=False).open_jobs


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_every_job_ends_on_machines_that_carry_both(seed: int) -> None:
    engine = run_policy("drf", seed, {})
    assert not engine.open_jobs
    assert all(r.status is not Status.DROPPED for r in engine.jobs.values())


def workers_in_first_slot(cluster: Cluster, jobs: list[Job]) -> list[int]:
    seen: list[int] = []

    def watch(engine: Engine, slot: int) -> None:
        if slot == 0:
            seen.extend(placement.total_workers for placement in engine.running.values())

    policy = make_policy("drf", PolicyContext(cluster), {})
    Simulation(cluster, jobs, policy).run([SlotObserver(watch)])
    return seen


def test_the_example_of_the_paper() -> None:
    # Nine CPUs and 18 GB; tasks of <1 CPU, 4 GB> and <3 CPUs, 1 GB>: three and two of them.
    cluster = make_cluster(1, 1)
    capacity = cluster.capacity.copy()
    capacity[0, cluster.column["cpu"]], capacity[0, cluster.column["memory"]] = 9_000, 18 * GIB
    capacity[1, cluster.column["cpu"]] = capacity[1, cluster.column["memory"]] = 0
    small = Cluster(
        cluster.slot_seconds,
        cluster.horizon,
        cluster.resources,
        cluster.dimensions,
        cluster.names,
        cluster.roles,
        capacity,
    )
    tasks = [{"cpu": 1000, "memory": 4 * GIB}, {"cpu": 3000, "memory": GIB}]
    jobs = [
        make_job(small, f"user-{index}", chunks=20, worker_amounts=task, ps_amounts=None)
        for index, task in enumerate(tasks)
    ]
    assert workers_in_first_slot(small, jobs) == [3, 2]


def test_workers_without_speedup_are_not_granted() -> None:
    cluster = make_cluster(4, 1, gpus=8)
    speed = {1: Fraction(1, 10), 2: Fraction(2, 10), 4: Fraction(2, 10), 8: Fraction(1, 10)}
    worker = {"gpu": 1000, "cpu": 1000, "memory": GIB, "bandwidth": GBPS}
    single_job = make_job(cluster, chunks=8, speed=speed, worker_amounts=worker, ps_amounts=None)
    assert workers_in_first_slot(cluster, [single_job]) == [2]


def test_a_settled_job_stays_where_it_is() -> None:
    cluster = make_cluster(4, 1, gpus=4)
    worker = {"gpu": 1000}
    jobs = [
        make_job(
            cluster,
            f"j{index}",
            chunks=3,
            arrival=index,
            epochs=6,
            worker_amounts=worker,
            ps_amounts=None,
        )
        for index in range(4)
    ]
    seen: dict[str, set[object]] = {}

    def watch(engine: Engine, slot: int) -> None:
        for name, placement in engine.running.items():
            seen.setdefault(name, set()).add(placement)

    policy = make_policy("drf", PolicyContext(cluster), {})
    Simulation(cluster, jobs, policy).run([SlotObserver(watch)])
    assert all(len(placements) == 1 for placements in seen.values())


def test_drf_has_no_parameters() -> None:
    with pytest.raises(InputError, match="theta"):
        make_policy("drf", PolicyContext(make_cluster()), {"theta": 1})


def test_a_running_job_keeps_its_servers_if_an_equal_one_fits_nowhere() -> None:
    # Round robin can't place three workers and a PS, in either order.
    worker, ps = np.array([1, 2]), np.array([2, 3])
    free = np.array([[4, 5], [2, 5], [1, 0]])
    current_workers, current_ps = np.array([[0, 0, 0], [1, 2, 0]]), np.array([[0, 0, 0], [1, 0, 0]])
    every = np.ones(3, np.bool_)
    places = PlacementTable(
        np.array([worker, worker]), np.array([ps, ps]), every, every, current_workers, current_ps,
        np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int64), np.array([False, True]),
    )  # fmt: skip
    nothing, one = np.array([0, 0]), np.array([1, 1])
    widths = Widths(nothing, one, np.array([3]), np.array([1]), nothing)
    change = np.empty(2, np.int64)
    total = free.sum(axis=0).astype(np.float64)
    fill(free.copy(), total, np.array([0, 1]), places, widths, np.array([0, 1]), change)
    assert change.tolist() == [SAME, SAME]
    assert places.new_workers.tolist() == current_workers.tolist()
    assert places.new_ps.tolist() == current_ps.tolist()
