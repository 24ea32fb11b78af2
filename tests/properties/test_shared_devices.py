"""Shares of devices: what fits by the sum of parts fits device by device."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shadowprice.core.amounts import MILLI
from shadowprice.core.devices import PARTS, whole_parts
from shadowprice.core.policy import PolicyContext
from shadowprice.core.program import Program
from shadowprice.core.utility import Reciprocal
from shadowprice.engine import Engine
from shadowprice.engine.validation import never_fits
from shadowprice.executors.contract import GenerationSpec, ServerAllocation, ServerInfo
from shadowprice.executors.local.machine import MachineAllocator
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.support.examples import sample
from tests.support.policy_runs import SlotObserver
from tests.support.workloads import make_cluster, make_job

DEVICES = 3
SHARES = (50, 100, 200, 250, 300, 400, 500, 600, 700, 1000, 1500)


def test_each_part_divides_the_next_one() -> None:
    assert all(larger % smaller == 0 for smaller, larger in pairwise(PARTS))
    assert [whole_parts(n) for n in (0, 1, 300, 500, 600, 1000, 1500, 2600)] == [
        0, 1, 500, 500, 1000, 1000, 1500, 3000,
    ]  # fmt: skip


def one_process(number: int, share: int) -> GenerationSpec:
    return GenerationSpec(
        command=number,
        job=f"job-{number}",
        generation=1,
        placement=(ServerAllocation("box", 1),),
        program=Program(("true",)),
        worker={"gpu": share},
    )


@pytest.mark.parametrize("seed", sample(range(40)))
def test_the_local_executor_starts_processes_whose_parts_add_up_to_its_devices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    machine = MachineAllocator([0], ("a", "b", "c"))
    machine.set_servers([ServerInfo("box", {"gpu": DEVICES * MILLI})])
    free, held = DEVICES * MILLI, list[dict[str, Any]]()
    for number in range(200):
        share = int(rng.choice(SHARES))
        if whole_parts(share) > free:
            continue
        free -= whole_parts(share)
        [allocation] = machine.allocate(one_process(number, share), held)
        held.append(allocation.record())
    used: dict[str, int] = {}
    for record in held:
        for name, amount in record["devices"].items():
            used[name] = used.get(name, 0) + amount
    assert max(used.values()) <= MILLI


def test_three_workers_that_cannot_share_two_devices_never_fit() -> None:
    cluster = make_cluster(0, 0, both=1, gpus=2)
    workers: dict[str, Any] = {"chunks": 3, "worker_range": (3, 3), "ps": None}
    gang = make_job(cluster, worker_amounts={"gpu": 600, "cpu": 1000}, **workers)
    refusal = never_fits(gang, cluster)
    assert refusal is not None
    assert refusal.message == "needs room for 3 workers, the empty cluster has room for 2"
    assert (
        never_fits(make_job(cluster, worker_amounts={"gpu": 500, "cpu": 1000}, **workers), cluster)
        is None
    )


@pytest.mark.parametrize("policy", ["fifo", "drf", "oasis", "rolling"])
def test_policies_run_no_more_shares_than_devices_hold(policy: str) -> None:
    cluster = make_cluster(0, 0, both=2, gpus=2, horizon=60)
    rng = np.random.default_rng(1)
    jobs = []
    for number in range(16):
        amounts = {"gpu": int(rng.choice((300, 500, 600, 700, 1000))), "cpu": 1000}
        jobs.append(
            make_job(
                cluster,
                f"job-{number}",
                arrival=int(rng.integers(3)),
                chunks=1,
                worker_amounts=amounts,
                ps=None,
                utility=Reciprocal(100.0),
            )
        )
    ran: set[str] = set()

    def watch(engine: Engine, slot: int) -> None:
        del slot
        parts = dict.fromkeys(range(cluster.servers), 0)
        larger = dict.fromkeys(range(cluster.servers), 0)
        for name, placement in engine.running.items():
            ran.add(name)
            share = int(engine.jobs[name].job.worker[cluster.column["gpu"]])
            assert share in PARTS
            for server, workers in zip(placement.servers, placement.workers, strict=True):
                parts[server] += workers * share
                larger[server] += workers * (share > MILLI // 2)
        assert max(parts.values()) <= 2 * MILLI
        assert max(larger.values()) <= 2

    Simulation(cluster, jobs, make_policy(policy, PolicyContext(cluster, jobs), {})).run(
        [SlotObserver(watch)]
    )
    assert len(ran) == len(jobs)
