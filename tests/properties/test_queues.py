"""FIFO, shortest remaining time, least attained service and backfilling, against slow twins."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobCancelled
from shadowprice.core.job import Job, StepModel
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.engine import Engine
from shadowprice.kernels.reactive.backfill import QueueArrays, ReleasedCapacity, backfill
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.oracles.queues import (
    Asked,
    Timeline,
    TwoQueues,
    batch,
    in_line,
    preemptive,
    reservations,
    shortest,
)
from tests.support.examples import example_count, sample
from tests.support.policy_runs import SlotObserver, run_policy
from tests.support.waiting import WAIT_LIMIT_SECONDS
from tests.support.workloads import gpu_pool, make_job

SEEDS = st.integers(0, 2**32 - 1)


def gang(cluster: Cluster, requests: Asked, **changes: Any) -> Job:
    """Return a job that runs at its full width or not at all, for a number of slots."""
    made = make_job(
        cluster,
        requests.name,
        arrival=requests.arrival,
        epochs=requests.slots * requests.faster,
        chunks=requests.width,
        minibatches=10,
        speed=StepModel(Fraction(60)),
        worker_range=(requests.width, requests.width),
        worker_amounts={"gpu": 1000},
        ps_amounts=None,
        priority=requests.priority,
        walltime=requests.walltime,
        **changes,
    )
    return replace(made, internal_gains=made.gains * requests.faster)


def random_requests(seed: int, places: int) -> tuple[list[Asked], dict[str, int]]:
    """Return jobs that arrive faster than they can run, and the times of cancellations."""
    rng = np.random.default_rng(seed)
    requests = []
    for number in range(int(rng.integers(1, 16))):
        slots = int(rng.integers(1, 9))
        stated = rng.random()
        requests.append(
            Asked(
                f"job-{number}",
                int(rng.integers(0, 12)),
                int(rng.integers(1, places + 1)),
                slots,
                float(rng.integers(0, 3)),
                None if stated < 0.5 else max(1, slots + int(rng.integers(-1, 4))),
            )
        )
    cancels = {
        request.name: request.arrival + int(rng.integers(1, 8))
        for request in requests
        if rng.random() < 0.15
    }
    return requests, cancels


def run(
    name: str, places: int, requests: list[Asked], cancels: dict[str, int], **settings_: Any
) -> tuple[Timeline, Engine]:
    """Return the jobs that ran in each slot under a policy."""
    on = gpu_pool(places)
    jobs = [gang(on, entry) for entry in requests]
    ran: Timeline = {}

    def watch(engine: Engine, slot: int) -> None:
        if engine.running:
            ran[slot] = set(engine.running)

    policy = make_policy(name, PolicyContext(on), settings_)
    incidents = [JobCancelled(slot, job) for job, slot in cancels.items()]
    engine = Simulation(on, jobs, policy, incidents=incidents).run([SlotObserver(watch)])
    return ran, engine


@settings(deadline=None, derandomize=True, max_examples=example_count(300))
@given(seed=SEEDS, places=st.integers(4, 12), reach=st.integers(0, 3))
def test_fifo_matches_its_reference(seed: int, places: int, reach: int) -> None:
    requests, cancels = random_requests(seed, places)
    ran, _ = run("fifo", places, requests, cancels, backfill=reach)
    assert ran == in_line(requests, places, reach, cancels)


@settings(deadline=None, derandomize=True, max_examples=example_count(120))
@given(seed=SEEDS, places=st.integers(1, 8), by=st.sampled_from(["time", "service"]))
def test_srtf_matches_its_reference(seed: int, places: int, by: str) -> None:
    requests, cancels = random_requests(seed, places)
    rng = np.random.default_rng(seed)
    for one in requests:
        one.faster = int(rng.choice([1, 1, 3, 10]))
    ran, _ = run("srtf", places, requests, cancels, by=by)
    assert ran == preemptive(requests, places, shortest(by == "service"), cancels)


@settings(deadline=None, derandomize=True, max_examples=example_count(100))
@given(
    seed=SEEDS,
    places=st.integers(1, 8),
    threshold=st.sampled_from([1, 2, 3.5, 6, 40]),
    promote=st.sampled_from([0, 0.5, 1, 2, 8]),
)
def test_las_matches_its_reference(
    seed: int, places: int, threshold: float, promote: float
) -> None:
    requests, cancels = random_requests(seed, places)
    setting = {"threshold": f"{threshold * 600}s", "promote": promote}
    ran, _ = run("las", places, requests, cancels, **setting)
    assert ran == preemptive(requests, places, TwoQueues(threshold, promote), cancels)


@settings(deadline=None, derandomize=True, max_examples=example_count(100))
@given(
    seed=SEEDS,
    places=st.integers(1, 8),
    mode=st.sampled_from(["easy", "conservative"]),
    rule=st.sampled_from(["multifactor", "arrival", "shortest", "small"]),
)
def test_backfill_matches_its_reference(seed: int, places: int, mode: str, rule: str) -> None:
    requests, cancels = random_requests(seed, places)
    came = {
        one.name: index for index, one in enumerate(sorted(requests, key=lambda one: one.arrival))
    }
    small = rule == "small"
    settings_: dict[str, Any] = {"mode": mode, "rule": "multifactor" if small else rule}
    if small:
        settings_ |= {"size_weight": -70.0, "age_weight": 10.0, "max_age": "5 slots"}
        settings_ |= {"priority_weight": 0.0}

    def priority(one: Asked, slot: int) -> Any:
        if rule == "arrival":
            return -came[one.name]
        if rule == "shortest":
            # Ties go to the first arrival; lengths are whole numbers.
            return -(one.length + came[one.name] / 1000)
        age = min((slot - one.arrival) / (5 if small else 1008), 1.0)
        if small:
            score = 10.0 * age - 70.0 * (one.width / places)
        else:
            score = 1000.0 * age + 1000.0 * one.priority
        return score - came[one.name] * 1e-9

    ran, engine = run("backfill", places, requests, cancels, **settings_)
    wanted, dropped = batch(requests, places, mode == "conservative", priority, cancels)
    assert ran == wanted
    assert {n for n, r in engine.jobs.items() if r.status is Status.DROPPED} == dropped


@settings(deadline=None, derandomize=True, max_examples=example_count(150))
@given(seed=SEEDS, most=st.sampled_from([1, 2, 99]))
def test_reservations_on_servers_are_those_of_a_table_of_slots(seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    servers, resources = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    now = int(rng.integers(0, 4))
    free = rng.integers(0, 7, (servers, resources))
    hosts = [(bool(rng.random() < 0.8), bool(rng.random() < 0.7)) for _ in range(servers)]
    ends = [
        (now + int(rng.integers(1, 8)), rng.integers(0, 4, (servers, resources)))
        for _ in range(int(rng.integers(0, 4)))
    ]
    count = int(rng.integers(1, 9))
    worker = rng.integers(0, 4, (count, resources))
    ps = rng.integers(0, 3, (count, resources))
    workers, needed = rng.integers(1, 4, count), rng.integers(0, 3, count)
    lengths = rng.integers(1, 7, count)
    cursors = rng.integers(0, servers, 2)

    ends.sort(key=lambda one: one[0])
    back = np.concatenate([np.zeros((0, resources), np.int64), *(back for _, back in ends)])
    ending = ReleasedCapacity(
        np.repeat(np.array([end for end, _ in ends], np.int64), servers),
        np.tile(np.arange(servers), len(ends)),
        back,
    )
    starts = np.empty(count, dtype=np.int64)
    moved = cursors.copy()
    flags = np.array(hosts, dtype=np.bool_).T.copy()
    queued = QueueArrays(worker, ps, workers, needed, lengths, flags[0], flags[1])
    result = backfill(now, free.copy(), ending, queued, moved, most, starts).tolist()
    wanted, placed, cursors_then = reservations(
        now,
        [(end, back.tolist()) for end, back in ends],
        free.tolist(),
        hosts,
        cursors.tolist(),
        [
            (worker[j].tolist(), ps[j].tolist(), int(workers[j]), int(needed[j]), int(lengths[j]))
            for j in range(count)
        ],
        most,
    )
    assert starts.tolist() == wanted
    assert moved.tolist() == cursors_then
    for j in range(count):
        assert [tuple(entry[1:]) for entry in result if entry[0] == j] == placed.get(j, [])


RESERVING_ON_MANY_SERVERS = """
import resource
import numpy as np
from shadowprice.kernels.reactive.backfill import QueueArrays, ReleasedCapacity, backfill
from tests.support.waiting import WAIT_LIMIT_SECONDS

def reserve(servers, jobs):
    one, all_servers = np.ones((jobs, 1), np.int64), np.arange(servers)
    counts, hosts = np.ones(jobs, np.int64), np.ones(servers, np.bool_)
    queued = QueueArrays(one, 0 * one, counts, 0 * counts, 9 * counts, hosts, hosts)
    ending = ReleasedCapacity(0 * all_servers + 4, all_servers, np.ones((servers, 1), np.int64))
    starts, cursors = np.empty(jobs, np.int64), np.zeros(2, np.int64)
    free = np.zeros((servers, 1), np.int64)
    backfill(0, free, ending, queued, cursors, jobs, starts)
    return starts

reserve(1, 1)  # compiles
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert (reserve(50_000, 400) == 4).all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_reservations_take_no_memory_for_every_server() -> None:
    # Another process, because this one may have used more memory before.
    words = [sys.executable, "-c", RESERVING_ON_MANY_SERVERS]
    output = subprocess.check_output(words, text=True, timeout=WAIT_LIMIT_SECONDS)
    kib = int(output)
    assert kib < 64 << 10  # the free capacity at the start of each of them takes 156 MiB


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(seed=SEEDS, places=st.integers(1, 8))
def test_conservative_backfilling_keeps_the_first_promise(seed: int, places: int) -> None:
    # By arrival and with true estimates, no job starts later than the time that its arrival could
    # have been promised. EASY doesn't always keep that.
    requests, _ = random_requests(seed, places)
    for one in requests:
        one.walltime = None
    promised = {}
    for last in range(len(requests)):
        first = sorted(requests, key=lambda one: one.arrival)[: last + 1]
        known = [Asked(entry.name, entry.arrival, entry.width, entry.slots) for entry in first]
        ran, _ = batch(known, places, True, lambda one, _: -_order(requests, one), {})
        name = first[-1].name
        promised[name] = min(slot for slot, names in ran.items() if name in names)
    _, engine = run("backfill", places, requests, {}, mode="conservative", rule="arrival")
    for name, record in engine.jobs.items():
        assert record.started is not None
        assert record.started <= promised[name]


def _order(requests: list[Asked], one: Asked) -> int:
    names = [other.name for other in sorted(requests, key=lambda other: other.arrival)]
    return names.index(one.name)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("srtf", {}),
        ("srtf", {"by": "service", "workers": "max"}),
        ("las", {}),
        ("las", {"threshold": "1 slots", "promote": 1}),
        ("backfill", {}),
        ("backfill", {"mode": "conservative", "depth": 3}),
        ("backfill", {"rule": "shortest", "workers": "min"}),
    ],
)
def test_every_job_completes_despite_incidents(name: str, setting: dict[str, Any]) -> None:
    for seed in sample(range(25)):
        engine = run_policy(name, seed, setting)
        assert not engine.open_jobs
        assert run_policy(name, seed, setting).state_digest() == engine.state_digest()
