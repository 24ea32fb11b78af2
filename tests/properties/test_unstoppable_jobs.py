"""Live jobs without checkpoints can't move. Policies that place the next slot plan around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.events import (
    CapacityChanged,
    JobEnded,
    JobRevised,
    JobsArrived,
    ServerState,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.core.utility import Constant, Deadline
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from tests.support.examples import sample
from tests.support.validation import validate_state

SLOTS: Final = 60

FIXED: Final = {"srtf", "las", "rrh"}  # policies with a fixed worker count
GANGS: Final = {"gandiva_fair", "hived"}


def build_world(policy: str, rng: np.random.Generator) -> tuple[Cluster, list[Job], list[int]]:
    """Return servers, jobs without checkpoints, and the workers that fit on each server."""
    sizes = rng.integers(1, 5, int(rng.integers(2, 5))).tolist()
    resource = "worker" if policy in GANGS else "gpu"
    servers = [{"name": f"s{row}", "capacity": {resource: n}} for row, n in enumerate(sizes)]
    document = {"slot": "1h", "horizon": SLOTS, "servers": servers}
    cluster = ClusterSpec.model_validate(document).resolve()
    jobs = []
    for number in range(10):
        width = int(rng.integers(1, max(sizes) + 1))
        record = {
            "name": f"job-{number}",
            "arrival": f"{int(rng.integers(0, 10))} slots",
            "chunks": width,
            "epochs": int(rng.integers(1, 12)),
            "minibatch_time": "1h",
            "worker": {resource: 1},
            "workers": {"min": width if policy in FIXED | GANGS else 1, "max": width},
            "utility": {"kind": "constant", "value": 5},
        }
        job = JobSpec.model_validate(record).resolve(cluster)
        utility = Deadline(10.0, float(rng.integers(20, 50))) if rng.random() < 0.5 else Constant(5)
        jobs.append(replace(job, resumable=None, utility=utility))
    return cluster, jobs, sizes


@pytest.mark.parametrize("cordons", [False, True])
@pytest.mark.parametrize("policy", [*sorted(FIXED | GANGS), "drf", "elasticflow", "dorm"])
def test_no_job_waits_beside_free_servers_that_could_run_it(policy: str, cordons: bool) -> None:
    for seed in sample(range(12)):
        rng = np.random.default_rng(seed)
        cluster, jobs, sizes = build_world(policy, rng)
        setting = {"workers": "max"} if policy in FIXED | GANGS else {}
        engine = Engine(
            cluster, make_policy(policy, PolicyContext(cluster), setting), acknowledges=True
        )
        for slot in range(SLOTS):
            engine.handle(JobsArrived(slot, tuple(job for job in jobs if job.arrival == slot)))
            if cordons and slot == 4:
                row = int(rng.integers(len(sizes)))
                amounts = dict(zip(cluster.resources, cluster.capacity[row].tolist(), strict=True))
                state = ServerState(Role.ANY, amounts, cordoned=True)
                engine.handle(CapacityChanged(slot, {cluster.names[row]: state}))
            before = dict(engine.running)
            engine.handle(SlotBegan(slot))
            validate_state(engine.state)
            assert before.items() <= engine.running.items()
            check_waiting_jobs(engine)
            progress = {}
            for name, placement in engine.running.items():
                record = engine.jobs[name]
                gain = record.job.gain(placement.total_workers)
                progress[name] = min(gain, record.remaining - 1)
            engine.handle(SlotEnded(slot, progress))
            for name in progress:
                record = engine.jobs[name]
                if record.remaining == 1:
                    engine.handle(JobEnded(slot + 1, name, record.generation))


def check_waiting_jobs(engine: Engine) -> None:
    """Check that no waiting job fits the free capacity."""
    up = [not engine.view.is_lost(row) for row in range(engine.cluster.servers)]
    free = int((engine.ledger.capacity - engine.ledger.used[0])[up, 0].sum()) // 1000
    for name, record in engine.open_jobs.items():
        assert name in engine.running or record.job.worker_counts[0] > free, name


@pytest.mark.parametrize("policy", ["hived", "srtf"])
def test_a_job_gives_way_once_it_is_known_to_save_its_progress(policy: str) -> None:
    tenants = ("a", "b") if policy == "hived" else ()
    resource = "worker" if policy == "hived" else "gpu"
    document = {
        "slot": "1h",
        "horizon": SLOTS,
        "servers": [{"name": "s", "capacity": {resource: 2}}],
        "tenants": [{"name": name, "share": {resource: 1}} for name in tenants],
    }
    cluster = ClusterSpec.model_validate(document).resolve()
    jobs = [
        replace(
            JobSpec.model_validate(
                {
                    "name": name,
                    "tenant": tenant if tenants else None,
                    "epochs": slots,
                    "chunks": 1,
                    "minibatch_time": "1h",
                    "worker": {resource: 1},
                    "utility": {"kind": "constant", "value": 5},
                }
            ).resolve(cluster),
            resumable=None,
        )
        for name, tenant, slots in (("own", "a", 9), ("long", "a", 20), ("owner", "b", 8))
    ]
    engine = Engine(cluster, make_policy(policy, PolicyContext(cluster), {}), acknowledges=True)
    engine.handle(JobsArrived(0, tuple(jobs[:2])))
    for slot in range(5):
        if slot == 1:
            engine.handle(JobsArrived(1, (replace(jobs[2], arrival=1),)))
        if slot == 4:
            engine.handle(JobRevised(4, replace(jobs[1], resumable=True)))
        engine.handle(SlotBegan(slot))
        assert set(engine.running) == ({"own", "long"} if slot < 4 else {"own", "owner"})
        engine.handle(SlotEnded(slot, dict.fromkeys(engine.running, 1)))
