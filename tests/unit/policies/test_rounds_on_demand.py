"""Rounds on demand: their start and end, the jobs that join them, and the shares of tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from shadowprice.core.cluster import Cluster, Tenant
from shadowprice.core.errors import InputError
from shadowprice.core.events import (
    CapacityChanged,
    JobEnded,
    JobRevised,
    JobsArrived,
    ServerBack,
    ServerLost,
    SlotBegan,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RevisionRefusedError
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.astraea.market import RoundMarket, TenantPool
from shadowprice.policies.registry import make_policy
from tests.support.astraea_cases import shared_cluster, shared_job

TENANTS: Final = {"a": {"worker": 1, "ps": 1}, "b": {"worker": 1, "ps": 1}}
ROUNDS: Final = ("astraea", "batchsche")


class Service:
    """An engine without known jobs, and the slots in which its jobs ran."""

    def __init__(self, policy: str, cluster: Cluster, parameters: Mapping[str, Any] | None = None):
        context = PolicyContext(cluster, None, None, 0)
        self.on = cluster
        self.engine = Engine(
            cluster, make_policy(policy, context, parameters or {}), acknowledges=True
        )
        self.ran: dict[str, list[int]] = {}

    def job(self, name: str, tenant: str | None, slots: int, *, workers: int = 1) -> Job:
        """Return a job of a number of slots that may also run faster with more workers."""
        made = shared_job(
            self.on, name, tenant, ps=None, chunks=workers, epochs=slots, minibatches=1
        )
        return replace(made, utility=Constant(10.0))

    def submit(self, *jobs: Job) -> None:
        slot = self.engine.slot
        self.engine.handle(JobsArrived(slot, tuple(replace(job, arrival=slot) for job in jobs)))

    def run(self, slots: int, overruns: Sequence[str] = ()) -> None:
        """Run slots in which jobs progress as stated, except for those that overrun."""
        engine = self.engine
        for slot in range(engine.slot, engine.slot + slots):
            engine.handle(SlotBegan(slot))
            progress = {}
            for name, placement in engine.running.items():
                self.ran.setdefault(name, []).append(slot)
                record = engine.jobs[name]
                gain = record.job.gain(placement.total_workers, colocated=placement.colocated)
                progress[name] = min(gain, record.remaining - 1)
            engine.handle(SlotEnded(slot, progress))
            for name in sorted(progress):
                record = engine.jobs[name]
                if record.remaining == 1 and name not in overruns:
                    engine.handle(JobEnded(slot + 1, name, record.generation))

    def start(self, name: str) -> int:
        return self.ran[name][0]

    def theta(self) -> Any:
        """Return theta in force."""
        in_force: Any = self.engine.policy.parameters_in_force()["theta"]
        return in_force["in_force"]


@pytest.mark.parametrize("policy", ROUNDS)
@pytest.mark.parametrize("idle", [0, 1, 11, 300])
def test_a_job_on_an_idle_cluster_starts_at_once(policy: str, idle: int) -> None:
    service = Service(policy, shared_cluster(2, TENANTS, worker=1, horizon=64))
    service.run(idle)
    service.submit(service.job("first", "a", 5), service.job("second", "b", 5))
    service.run(6)
    assert service.start("first") == service.start("second") == idle
    assert service.engine.jobs["first"].status is Status.FINISHED


def test_a_short_job_joins_a_round_in_progress_and_a_longer_one_waits_for_its_end() -> None:
    service = Service("astraea", shared_cluster(2, TENANTS, worker=1, horizon=64))
    service.submit(service.job("long", "a", 16))
    service.run(3)
    service.submit(service.job("short", "b", 4), service.job("too long", "b", 14))
    service.run(30)
    # A joining job starts when it is cheapest, which is anywhere in the round.
    assert 3 <= service.start("short") <= 12
    assert service.start("too long") == 16


def test_a_round_ends_with_its_last_gang() -> None:
    service = Service("astraea", shared_cluster(2, TENANTS, worker=1, horizon=64))
    service.submit(service.job("first", "a", 5), service.job("other", "b", 5))
    service.run(2)
    service.engine.handle(JobEnded(2, "first", 1))
    service.submit(service.job("next", "a", 4))
    service.run(1)
    service.engine.handle(JobEnded(3, "other", 1))
    service.run(5)
    assert service.ran["next"] == [3, 4, 5, 6]


def test_a_tenant_gets_its_whole_share_by_the_end_of_the_round() -> None:
    tenants = {"a": {"worker": 1, "ps": 0}, "b": {"worker": 3, "ps": 0}}
    service = Service("astraea", shared_cluster(2, tenants, ps=0, horizon=64), {"workers": "rigid"})
    service.submit(*(service.job(f"borrower {number}", "a", 8) for number in range(2)))
    service.run(2)
    # Borrowers keep arriving, each with less work than the rest of the round.
    service.submit(replace(service.job("wide", "b", 4, workers=3)))
    for number in range(2, 12):
        service.submit(service.job(f"borrower {number}", "a", 3))
        service.run(1)
    service.run(4)
    assert service.start("wide") == 8
    assert any(service.start(name) in range(2, 6) for name in service.ran if name != "wide")
    before = (end for name, slots in service.ran.items() for end in slots if slots[0] < 8)
    assert max(before) < 8


def test_batchsche_s_tenants_have_rounds_of_their_own() -> None:
    service = Service("batchsche", shared_cluster(2, TENANTS, worker=1, horizon=64))
    service.submit(service.job("long", "a", 16))
    service.run(3)
    service.submit(service.job("other", "b", 14))
    service.run(15)
    assert service.start("other") == 3


@pytest.mark.parametrize("calendar", ["demand", "doubling"])
def test_rounds_continue_after_a_job_of_enormous_value(calendar: str) -> None:
    cluster = shared_cluster(16, worker=8, ps=8, horizon=64)
    service = Service("astraea", cluster, {"calendar": calendar})
    jobs = [replace(service.job(name, None, 30), utility=Constant(1e12)) for name in ("a", "b")]
    service.submit(*jobs)
    service.run(300)
    assert {record.status for record in service.engine.jobs.values()} == {Status.FINISHED}


@pytest.mark.parametrize("policy", ROUNDS)
def test_rounds_continue_after_a_job_without_a_plan_ends(policy: str) -> None:
    """Its report comes after its slot was accounted, and after its server was lost."""
    tenants = {"a": {"worker": 2, "ps": 2}}
    service = Service(policy, shared_cluster(2, tenants, worker=1, horizon=64))
    service.submit(service.job("first", "a", 2))
    service.run(1)
    engine = service.engine
    for name in service.on.names:
        engine.handle(ServerLost(1, name))
    engine.handle(JobEnded(1, "first", engine.jobs["first"].generation))
    assert engine.jobs["first"].status is Status.FINISHED
    service.submit(service.job("second", "a", 2))
    for name in service.on.names:
        engine.handle(ServerBack(1, name))
    service.run(3)
    assert service.ran["second"] == [1, 2]


@pytest.mark.parametrize("policy", ROUNDS)
@pytest.mark.parametrize("runs", [False, True])
def test_rounds_refuse_a_revision_to_processes_that_no_place_holds(policy: str, runs: bool) -> None:
    service = Service(policy, shared_cluster(2, {"a": {"worker": 2, "ps": 2}}, worker=1))
    service.submit(service.job("first", "a", 3))
    if runs:
        service.run(1)
    engine = service.engine
    job = engine.jobs["first"].job
    larger = replace(job, worker=2 * job.worker)
    digest = engine.state_digest()
    with pytest.raises(RevisionRefusedError, match="a worker takes one place of worker here"):
        engine.handle(JobRevised(engine.slot, larger, admission=True))
    assert engine.state_digest() == digest
    # Measured demands aren't an admission: the job waits until it is revised again.
    engine.handle(JobRevised(engine.slot, larger))
    service.run(2)
    assert engine.jobs["first"].status is Status.QUEUED
    engine.handle(JobRevised(engine.slot, job))
    service.run(3)
    assert engine.jobs["first"].status is Status.FINISHED


def test_jobs_that_wait_for_servers_cost_one_market_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = shared_cluster(2, worker=1, horizon=64)
    service = Service("astraea", cluster)
    opened = []
    open_market = TenantPool.open

    def count(pool: TenantPool, slots: int, *arguments: Any, **options: Any) -> RoundMarket:
        opened.append(slots)
        return open_market(pool, slots, *arguments, **options)

    monkeypatch.setattr(TenantPool, "open", count)
    for name in cluster.names:
        service.engine.handle(ServerLost(0, name))
    service.submit(*(service.job(f"job {slots}", None, slots) for slots in range(1, 20)))
    service.run(3)
    assert opened == [1, 1, 1]
    service.engine.handle(ServerBack(3, cluster.names[0]))
    service.run(1)
    assert service.ran == {"job 1": [3]}


def test_theta_that_no_round_could_count_is_refused() -> None:
    on = shared_cluster(16, worker=8, ps=8, horizon=64)
    for kind, other in (("worker", "ps"), ("ps", "worker")):
        theta = {kind: 1e10, other: 2.0}
        with pytest.raises(
            InputError, match=rf"theta.{kind}: prices at 1e\+10 .*at most 5.62e\+08"
        ):
            Service("astraea", on, {"theta": theta})
        Service("astraea", on, {"theta": {kind: 5.6e8, other: 2.0}})


def test_batchsche_s_tenants_keep_their_own_theta_when_another_one_leaves() -> None:
    service = Service("batchsche", shared_cluster(2, TENANTS, worker=1, horizon=64))
    service.submit(replace(service.job("dear", "a", 1), utility=Constant(1e6)))
    service.submit(service.job("job", "b", 2))
    service.run(3)
    before = service.theta()
    assert before["a"]["worker"] > 1e5 > before["b"]["worker"]
    share = Tenant("b", {"worker": 2000, "ps": 2000})
    service.engine.handle(CapacityChanged(3, {}, (share,)))
    assert service.theta() == {"b": before["b"]}


@pytest.mark.parametrize("policy", ROUNDS)
def test_a_gang_that_loses_its_server_starts_again_as_soon_as_a_server_is_free(policy: str) -> None:
    tenants = {"a": {"worker": 2, "ps": 2}}
    service = Service(policy, shared_cluster(2, tenants, worker=1, horizon=64))
    service.submit(service.job("first", "a", 8))
    service.run(2)
    (server,) = service.engine.running["first"].servers
    service.engine.handle(ServerLost(2, service.on.names[server]))
    service.run(7)
    assert service.ran["first"] == list(range(8))
    assert service.engine.jobs["first"].status is Status.FINISHED


def test_the_first_job_starts_although_each_round_begins_with_overrunning_gangs() -> None:
    tenants = {"a": {"worker": 2, "ps": 0}}
    service = Service(
        "astraea", shared_cluster(2, tenants, worker=1, ps=0, horizon=64), {"workers": "rigid"}
    )
    service.submit(service.job("narrow", "a", 4))
    service.run(1)
    service.submit(service.job("wide", "a", 4, workers=2))
    for number in range(60):
        # There is always a narrow job that waits, and each runs for a slot longer than stated.
        service.submit(service.job(f"narrow {number}", "a", 4))
        done = [name for name, slots in service.ran.items() if len(slots) == 4]
        service.run(1, [name for name in service.engine.running if name not in done])
    assert service.start("wide") < 30


def test_known_workload_uses_the_calendar_of_the_paper_by_default() -> None:
    on = shared_cluster(2, TENANTS, worker=1)
    known = [replace(shared_job(on, "a", "a", ps=None), utility=Constant(1.0))]
    for jobs, parameters, calendar in (
        (known, {}, "doubling"),
        (None, {}, "demand"),
        (known, {"calendar": "demand"}, "demand"),
        (None, {"calendar": "doubling"}, "doubling"),
    ):
        policy: Any = make_policy("astraea", PolicyContext(on, jobs), parameters)
        assert policy.parameters_in_force()["calendar"] == calendar
