"""Jobs that run faster if all of their processes are on one server, under `rolling`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobsArrived, Place, Promise, Resize, SlotBegan, SlotEnded, Start
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Constant, Deadline, Reciprocal
from shadowprice.engine import Engine
from shadowprice.policies.milp import LinearProgram, weighted
from shadowprice.policies.registry import make_policy
from shadowprice.policies.rolling.open_jobs import ColocationFit
from shadowprice.simulator.driver import Simulation
from tests.support.examples import sample
from tests.support.workloads import faster_together, make_cluster, make_job, random_job


def machines(number: int, gpus: int) -> Cluster:
    """Return servers of both roles, each with a number of GPUs."""
    return make_cluster(0, 0, number, gpus=gpus)


def training(cluster: Cluster, name: str, times: int, **values: Any) -> Job:
    """Return an all-reduce job with a factor of its speed on one server."""
    single_job = make_job(cluster, name, ps_amounts=None, **values)
    return replace(single_job, internal_gains=single_job.gains * times)


def placed(
    cluster: Cluster, jobs: Sequence[Job], slots: int, **settings: Any
) -> list[dict[str, Place]]:
    """Run jobs for some slots; return the servers of each in each slot."""
    policy = make_policy("rolling", PolicyContext(cluster), settings)
    engine = Engine(cluster, policy)
    placements = []
    for slot in range(slots):
        arriving = tuple(job for job in jobs if job.arrival == slot)
        if arriving:
            engine.handle(JobsArrived(slot, arriving))
        engine.handle(SlotBegan(slot))
        placements.append(dict(engine.running))
        gained = {
            name: min(
                engine.jobs[name].job.gain(placement.total_workers, colocated=placement.colocated),
                engine.jobs[name].remaining,
            )
            for name, placement in engine.running.items()
        }
        engine.handle(SlotEnded(slot, gained))
    return placements  # type: ignore[return-value]


def test_workers_and_parameter_servers_that_fit_on_one_server() -> None:
    cluster = make_cluster(2, 2, 1, gpus=4)
    rng = np.random.default_rng(5)
    result = set()
    for index in range(200):
        (one,) = faster_together([random_job(cluster, rng, f"job-{index}")], rng)
        hosts = cluster.hosts_workers & (cluster.hosts_ps if one.ps is not None else True)
        expected = [
            n
            for n, (count, servers) in enumerate(zip(one.worker_counts, one.ps_counts, strict=True))
            if any(
                (count * one.worker + (0 if one.ps is None else servers * one.ps) <= room).all()
                for room in cluster.capacity[hosts]
            )
        ]
        if not one.two_rates:
            expected = []
        assert ColocationFit(cluster).choices(one).tolist() == expected
        result.add((len(expected) > 0, len(expected) < len(one.worker_counts)))
    assert len(result) >= 3


def test_job_faster_on_one_server_is_co_located() -> None:
    on = machines(3, 4)
    job = training(on, "a", 5, epochs=40, chunks=12, worker_range=(1, 12), utility=Reciprocal(10.0))
    slots = placed(on, [job], 2)
    assert slots[0]["a"].servers == (0,)
    assert slots[0]["a"].workers == (4,)


def test_job_hardly_faster_on_one_server_is_spread() -> None:
    on = machines(3, 4)
    job = training(on, "a", 1, epochs=40, chunks=12, worker_range=(1, 12), utility=Reciprocal(10.0))
    job = replace(job, internal_gains=job.gains + job.gains // 2)  # 4 workers count as 6, 12 as 12
    slots = placed(on, [job], 1)
    assert sum(slots[0]["a"].workers) == 12


@pytest.mark.parametrize("seed", sample(range(40)))
def test_alone_a_job_completes_as_soon_as_it_can(seed: int) -> None:
    """In each slot the better of the best on one server and the best over all of them."""
    rng = np.random.default_rng(seed)
    number, gpus = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    on = machines(number, gpus)
    job = training(
        on,
        "a",
        int(rng.integers(1, 6)),
        epochs=int(rng.integers(1, 60)),
        chunks=12,
        worker_range=(1, int(rng.integers(1, 13))),
        utility=Reciprocal(10.0),
    )
    if job.worker_counts[0] > number * gpus:
        return
    spread = job.gains[job.worker_counts <= number * gpus]
    whole = job.internal_gains[job.worker_counts <= gpus]
    best = max(spread.max(), whole.max(initial=0))
    # Promised at once, however few other jobs are known.
    policy = make_policy("rolling", PolicyContext(on), {"evidence": 1e6})
    engine = Simulation(on, [job], policy).run([])
    assert engine.jobs["a"].completion == -(-job.required // int(best)) - 1


def together(number: int, gpus: int, jobs: Sequence[Job]) -> bool:
    """Whether all jobs can meet their deadlines on equal servers, as an integer program.

    Workers are a GPU each, so that spread ones fit wherever any are left.
    """
    program = LinearProgram()
    end = max(int(job.utility.by) for job in jobs) + 1  # type: ignore[attr-defined]
    used: list[list[tuple[int, float]]] = [[] for _ in range(end)]
    on_server: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for job in jobs:
        gained: list[tuple[int, float]] = []
        for slot in range(int(job.utility.by) + 1):  # type: ignore[attr-defined]
            every: list[int] = []
            counts = job.worker_counts.tolist()
            for count, gain in zip(counts, job.gains.tolist(), strict=True):
                choice = program.column(upper=1.0)
                every.append(choice)
                used[slot].append((choice, count))
                gained.append((choice, gain))
            for server in range(number):
                for count, gain in zip(counts, job.internal_gains.tolist(), strict=True):
                    choice = program.column(upper=1.0)
                    every.append(choice)
                    room = on_server.setdefault((slot, server), [])
                    for workers in (used[slot], room):
                        workers.append((choice, count))
                    gained.append((choice, gain))
            program.row(weighted(every), upper=1.0)
        program.row(gained, lower=float(job.required))
    for workers in used:
        program.row(workers, upper=float(number * gpus))
    for workers in on_server.values():
        program.row(workers, upper=float(gpus))
    return program.solve().feasible


def test_verdicts_are_those_of_an_exact_program() -> None:
    """Jobs that are promised together always fit; refused ones seldom would have."""
    rng = np.random.default_rng(3)
    refused = missed = whole = 0
    for _ in range(40):
        number, gpus = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        on = machines(number, gpus)
        jobs: Mapping[str, Job] = {
            f"job-{index}": training(
                on,
                f"job-{index}",
                int(rng.integers(1, 4)),
                epochs=1,
                chunks=int(rng.integers(3, 9)),
                minibatches=10,
                worker_range=(1, int(rng.integers(1, 4))),
                utility=Deadline(10.0, float(rng.integers(1, 5))),
            )
            for index in range(int(rng.integers(3, 8)))
        }
        policy = make_policy("rolling", PolicyContext(on), {"prices": "given"})
        commands = Engine(on, policy).handle(JobsArrived(0, tuple(jobs.values())))
        kept: list[Job] = []
        for command in commands:
            decision = command.decision  # type: ignore[union-attr]
            job = jobs[decision.job]
            if isinstance(decision, Promise):
                kept.append(job)
                whole += job.two_rates
                continue
            refused += 1
            missed += together(number, gpus, [*kept, job])
        assert not kept or together(number, gpus, kept)
    assert refused > 40 < whole
    assert missed <= 0.08 * refused


def test_co_located_job_scales_up_in_place_and_moves_only_for_a_gain() -> None:
    """Two jobs with time to spare share one server; when one is done the other takes it all."""
    on = machines(1, 4)
    jobs = [
        training(
            on, name, 2, epochs=epochs, chunks=8, minibatches=10, worker_range=(1, 4),
            utility=Constant(5.0),
        )
        for name, epochs in (("a", 4), ("b", 16))
    ]  # fmt: skip
    slots = placed(on, jobs, 12, evidence=1e6)
    for running in slots:
        assert sum(sum(placement.workers) for placement in running.values()) in (0, 4)
    alone = [running["b"].workers for running in slots if set(running) == {"b"}]
    assert alone
    assert set(alone) == {(4,)}


def test_without_spare_allocation_a_co_located_job_has_the_minimum_workers() -> None:
    on = machines(2, 4)
    job = training(
        on, "a", 3, epochs=12, chunks=4, minibatches=10, worker_range=(1, 4),
        utility=Deadline(5.0, 30.0),
    )  # fmt: skip
    # In the first slot it runs as in its offer; then it is placed by its promise.
    fewest = placed(on, [job], 2, spare=False, evidence=1e6)[1]
    most = placed(on, [job], 2, evidence=1e6)[1]
    assert fewest["a"].workers == (1,)
    assert most["a"].workers == (4,)


def test_parameter_servers_are_co_located_with_their_workers() -> None:
    cluster = make_cluster(2, 2, 2, gpus=4)
    rng = np.random.default_rng(0)
    whole = 0
    for index in range(30):
        (job,) = faster_together([random_job(cluster, rng, f"job-{index}", latest=0)], rng)
        if job.ps is None or not job.two_rates or not len(ColocationFit(cluster).choices(job)):
            continue
        job = replace(job, utility=Reciprocal(10.0), arrival=0)
        engine = Engine(cluster, make_policy("rolling", PolicyContext(cluster), {}))
        engine.handle(JobsArrived(0, (job,)))
        commands = engine.handle(SlotBegan(0))
        for command in commands:
            if isinstance(command, Start | Resize) and command.placement.colocated:
                whole += 1
                assert command.placement.total_ps >= 1
    assert whole > 3
