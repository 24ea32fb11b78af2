"""Policies after a resync, which each revision of a job causes: what they keep and replace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import (
    JobCancelled,
    JobRevised,
    JobsArrived,
    ServerLost,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job, StepModel
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RevisionRefusedError
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from tests.support.astraea_cases import random_jobs, shared_cluster
from tests.support.workloads import gpu_pool, make_job

POOL = gpu_pool(4)


def pool_job(name: str, slots: int, workers: int = 4, **changes: Any) -> Job:
    """Return a job of some slots with a fixed number of workers."""
    return make_job(
        POOL,
        name,
        epochs=slots,
        chunks=workers,
        minibatches=10,
        speed=StepModel(Fraction(60)),
        worker_range=(workers, workers),
        worker_amounts={"gpu": 1000},
        ps_amounts=None,
        **changes,
    )


class Slots:
    """An engine whose slots go as planned."""

    def __init__(self, policy: str, cluster: Cluster, jobs: Sequence[Job], **setting: Any) -> None:
        self.engine = Engine(cluster, make_policy(policy, PolicyContext(cluster), setting))
        self.jobs = jobs
        self.slot = 0
        self.arrive()

    def arrive(self) -> None:
        """Report the arrivals of the slot to the engine."""
        self.engine.handle(
            JobsArrived(self.slot, tuple(job for job in self.jobs if job.arrival == self.slot))
        )

    def begin(self) -> None:
        """Begin the slot."""
        self.engine.handle(SlotBegan(self.slot))

    def end(self) -> set[str]:
        """End the slot; return the jobs that ran in it."""
        progress = {}
        for name, placement in self.engine.running.items():
            record = self.engine.jobs[name]
            gain = record.job.gain(placement.total_workers, colocated=placement.colocated)
            progress[name] = min(gain, record.remaining)
        self.engine.handle(SlotEnded(self.slot, progress))
        self.slot += 1
        self.arrive()
        return set(progress)

    def run(self) -> set[str]:
        """Run a slot; return the jobs that ran in it."""
        self.begin()
        return self.end()

    def revise(self, name: str, **changes: Any) -> None:
        """Revise a job before the next slot."""
        job = replace(self.engine.jobs[name].job, **changes)
        self.engine.handle(JobRevised(self.slot, job))


def test_srtf_orders_a_revised_job_by_its_new_workers() -> None:
    slots = Slots("srtf", POOL, [pool_job("long", 9), pool_job("revised", 6)])
    slots.engine.handle(JobRevised(0, pool_job("revised", 12, workers=2)))
    assert slots.run() == {"long"}


def test_las_counts_the_gpu_time_of_a_revised_job_by_its_new_workers() -> None:
    jobs = [pool_job("revised", 9), pool_job("other", 9)]
    # The threshold is reached after one slot with 4 workers, and after two with 2.
    slots = Slots("las", POOL, jobs, threshold="40min")
    narrow = pool_job("revised", 18, workers=2)
    slots.engine.handle(JobRevised(0, narrow))
    ran = [slots.run() for _ in range(3)]
    assert ran == [{"revised"}, {"revised"}, {"other"}]


def test_las_puts_arrivals_after_waiting_jobs_despite_a_revision() -> None:
    jobs = [pool_job(f"job-{number}", 1) for number in range(6)]
    jobs += [pool_job(f"late-{number}", 1, arrival=1) for number in range(3)]
    slots = Slots("las", POOL, jobs, threshold="900h")
    assert slots.run() == {"job-0"}
    # Units of jobs that left are free, and arrivals must not take them.
    for name in ("job-1", "job-2", "job-3", "late-0"):
        slots.engine.handle(JobCancelled(1, name))
    slots.revise("job-5", utility=Constant(7.0))
    slots.engine.handle(JobsArrived(1, (pool_job("last", 1, arrival=1),)))
    order = [slots.run() for _ in range(5)]
    assert order == [{"job-4"}, {"job-5"}, {"late-1"}, {"late-2"}, {"last"}]


@pytest.mark.parametrize(("walltime", "ran"), [(5, 5), (2, 2), (None, 6)])
def test_backfill_ends_a_job_at_its_revised_walltime(walltime: int | None, ran: int) -> None:
    slots = Slots("backfill", POOL, [pool_job("job", 6, walltime=3)])
    for _ in range(2):
        assert slots.run()
    slots.revise("job", walltime=walltime)
    assert sum(bool(slots.run()) for _ in range(8)) == ran - 2
    done = slots.engine.jobs["job"].status is Status.FINISHED
    assert done == (walltime is None)


def test_backfill_expects_a_revised_job_to_end_with_its_new_work() -> None:
    # The first waiting job needs all servers, so that another one must end before it can start.
    jobs = [
        pool_job("running", 4, workers=3),
        pool_job("first", 1, arrival=1),
        pool_job("filler", 2, workers=1, arrival=1),
    ]
    slots = Slots("backfill", POOL, jobs)
    assert slots.run() == {"running"}
    slots.revise("running", epochs=2, required=6)
    # One slot remains, so the filler would delay the first job.
    assert [slots.run() for _ in range(3)] == [{"running"}, {"first"}, {"filler"}]


def test_hived_moves_no_gang_on_its_tenant_s_cells_when_a_job_is_revised() -> None:
    tenants = {"a": {"worker": 3, "ps": 2}, "b": {"worker": 4, "ps": 1}, "c": {"worker": 1}}
    cluster = shared_cluster(4, tenants | {"c": {"worker": 1, "ps": 1}})
    kept = 0
    for seed in range(6):
        slots = Slots("hived", cluster, random_jobs(cluster, 14, seed))
        for _ in range(12):
            engine = slots.engine
            guaranteed: Any = getattr(engine.session.policy, "_guaranteed")  # noqa: B009
            before = {name: engine.running[name] for name in guaranteed if name in engine.running}
            if engine.open_jobs:
                slots.revise(list(engine.open_jobs)[-1], utility=Constant(50.0 + slots.slot))
            slots.begin()
            for name, placement in before.items():
                if name in engine.open_jobs:
                    kept += 1
                    assert engine.running[name] == placement
            slots.end()
    assert kept > 20


def test_hived_gives_up_cells_of_gangs_that_lost_their_server_unnoticed() -> None:
    cluster = shared_cluster(4, {"a": {"worker": 8, "ps": 4}})
    slots = Slots("hived", cluster, random_jobs(cluster, 6, 0, latest=0))
    slots.run()
    engine = slots.engine
    assert len(engine.running) > 1
    pickled = engine.session.dump_state()
    for name in cluster.names[:3]:
        engine.handle(ServerLost(slots.slot, name))
    # As after a restart with an older state of the policy.
    engine.session.load_state(pickled)
    engine.session.resync()
    slots.begin()
    assert {row for placement in engine.running.values() for row in placement.servers} <= {3}


@pytest.mark.parametrize("policy", ["gandiva_fair", "hived"])
@pytest.mark.parametrize("resync", [False, True])
@pytest.mark.parametrize("change", ["demand", "counts"])
def test_gangs_revised_to_what_no_server_holds_wait(policy: str, resync: bool, change: str) -> None:
    cluster = shared_cluster(2, {"a": {"worker": 4, "ps": 2}})
    jobs = random_jobs(cluster, 4, 0, latest=0)
    slots = Slots(policy, cluster, jobs)
    slots.run()
    engine = slots.engine
    name = next(iter(engine.running))
    job = engine.jobs[name].job
    unfit: dict[str, Any] = {"worker": 2 * job.worker}
    if change == "counts":
        unfit = {
            "worker_counts": job.worker_counts + 100,
            "ps_counts": job.ps_counts + 100,
        }
    with pytest.raises(RevisionRefusedError):
        engine.handle(JobRevised(slots.slot, replace(job, **unfit), admission=True))
    assert name in engine.running
    slots.revise(name, **unfit)
    if resync:
        engine.session.resync()
    for _ in range(2):
        assert name not in slots.run()
    slots.revise(name, **{field: getattr(job, field) for field in unfit})
    while name in engine.open_jobs:
        slots.run()
    assert engine.jobs[name].status is Status.FINISHED


@pytest.mark.parametrize("policy", ["fifo", "las", "dorm"])
def test_queues_refuse_a_revision_to_workers_that_no_server_holds(policy: str) -> None:
    slots = Slots(policy, POOL, [pool_job("first", 2)])
    larger = replace(slots.engine.jobs["first"].job, worker=POOL.capacity[0] + 1)
    with pytest.raises(RevisionRefusedError, match="even in the empty cluster"):
        slots.engine.handle(JobRevised(0, larger, admission=True))
    assert slots.run() == {"first"}
