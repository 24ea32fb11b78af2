"""Events within a slot: arrivals, losses, failures, reports, acknowledgements."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from shadowprice.core.cluster import Role
from shadowprice.core.errors import EventError, PolicyError
from shadowprice.core.events import (
    Acknowledged,
    CapacityChanged,
    Commit,
    Completed,
    Decision,
    Displaced,
    Drop,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    JobsDisplaced,
    Place,
    PolicyEvent,
    ProgressMeasured,
    Promise,
    Resize,
    ServerBack,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
    Start,
    StartFailed,
    Stop,
    TimespanChanged,
)
from shadowprice.core.job import MICRO, StepModel
from shadowprice.core.policy import PolicyContext, Status, View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement
from shadowprice.core.utility import Constant, Deadline
from shadowprice.engine import Engine
from shadowprice.engine.engine import StagedEvent
from shadowprice.engine.snapshot import restore, snapshot
from shadowprice.policies.registry import make_policy
from tests.support.policies import EarliestPlanner
from tests.support.scripted_policy import Scripted, commit
from tests.support.validation import recompute_usage, validate_state
from tests.support.workloads import make_cluster, make_job

ON = make_cluster(3, 0)


def alone(name: str, **changes: Any) -> Any:
    """Return an all-reduce job of eight worker-slots, up to four workers wide."""
    return make_job(ON, name, **({"ps_amounts": None} | changes))


class Resuming(EarliestPlanner):
    """The earliest planner, which keeps no state of its own."""

    def resume(self, view: View) -> None:
        """Read the view the next time, as always."""


def engine(*, acknowledges: bool = False) -> Engine:
    return Engine(ON, Resuming(), acknowledges=acknowledges)


def kinds(commands: Iterable[Any]) -> list[str]:
    return [type(command).__name__ for command in commands]


def test_arrivals_within_a_slot_are_decided_for_the_next() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("early"),)))
    made.handle(SlotBegan(0))
    made.handle(JobsArrived(1, (alone("late", arrival=1),)))
    assert made.jobs["late"].plan.start == 1
    assert made.view.slot == made.slot == 1
    made.handle(JobCancelled(1, "late"))
    made.handle(JobsArrived(1, (alone("later", arrival=1),)))
    assert made.running.keys() == {"early"}
    made.handle(SlotEnded(0, {"early": 4}))
    assert "Start" in kinds(made.handle(SlotBegan(1)))


def test_a_server_lost_while_a_slot_runs_ends_what_runs_there() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one"), alone("two"))))
    made.handle(SlotBegan(0))
    here = made.cluster.names[made.running["one"].servers[0]]
    commands = made.handle(ServerLost(1, here))
    stop = next(command for command in commands if isinstance(command, Stop))
    assert (stop.job, stop.generation, stop.frees) == ("one", 1, (here,))
    assert Displaced(1, "one", f"{here} was lost") in commands
    assert made.handle(ServerLost(1, here)) == []
    # Its earlier progress counts, and it starts again elsewhere.
    made.handle(SlotEnded(0, {"one": 2, "two": 4}))
    assert made.jobs["one"].progress == 2
    start = next(c for c in made.handle(SlotBegan(1)) if getattr(c, "job", "") == "one")
    assert isinstance(start, Start)
    assert start.generation == 2
    assert here not in start.servers
    assert made.handle(ServerBack(2, here)) == []
    assert made.handle(ServerBack(2, here)) == []
    assert (made.ledger.capacity == ON.capacity).all()


def test_a_drained_server_is_left_after_the_running_slot() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one"),)))
    made.handle(SlotBegan(0))
    row = made.running["one"].servers[0]
    name = ON.names[row]
    state = ServerState(
        Role.WORKER, dict(zip(ON.resources, ON.capacity[row].tolist(), strict=True))
    )
    commands = made.handle(CapacityChanged(1, {name: replace(state, drained=True)}))
    assert not any(isinstance(command, Stop) for command in commands)
    assert made.running["one"].servers == (row,)
    made.handle(SlotEnded(0, {"one": 4}))
    (moved,) = made.handle(SlotBegan(1))
    assert isinstance(moved, Resize)
    assert name not in moved.servers
    made.handle(CapacityChanged(2, {name: state}))
    assert not made.lost


def test_servers_are_added_shrunk_and_removed() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one"), alone("two"), alone("three"))))
    amounts = dict(zip(ON.resources, ON.capacity[0].tolist(), strict=True))
    made.handle(CapacityChanged(0, {"new": ServerState(Role.WORKER, amounts)}))
    made.handle(JobsArrived(0, (alone("four"),)))
    assert {made.cluster.names[row] for row in made.jobs["four"].plan.servers} == {"new"}
    commands = made.handle(CapacityChanged(0, {"gpu-1": None}))
    assert made.cluster.names == ("gpu-0", "gpu-2", "new")
    # Rows moved, names did not.
    assert {made.cluster.names[row] for row in made.jobs["four"].plan.servers} == {"new"}
    assert Displaced(0, "two", "the servers changed") in commands
    assert made.jobs["two"].status is Status.ADMITTED
    small = {resource: amount // 2 for resource, amount in amounts.items()}
    commands = made.handle(CapacityChanged(0, {"new": ServerState(Role.WORKER, small)}))
    assert [c.job for c in commands if isinstance(c, Displaced)]
    assert (recompute_usage(made.ledger) == made.ledger.used).all()
    assert (made.ledger.used <= made.ledger.capacity).all()
    again = made.handle(CapacityChanged(0, {"new": ServerState(Role.WORKER, small)}))
    assert again == []


def test_a_failed_generation_starts_again_until_it_is_given_up() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one", epochs=8),)))
    for slot in range(3):
        (start,) = made.handle(SlotBegan(slot))
        assert isinstance(start, Start)
        assert start.generation == slot + 1
        stale = JobFailed(slot + 1, "one", slot, "old news", retries=2)
        assert made.handle(stale) == []
        commands = made.handle(JobFailed(slot + 1, "one", slot + 1, "exit 1", retries=2))
        if slot < 2:
            assert commands == []
            assert "one" in made.open_jobs
        made.handle(SlotEnded(slot, {"one": 1} if slot < 2 else {}))
    record = made.jobs["one"]
    assert record.status is Status.FAILED
    assert record.refusal is not None
    assert record.refusal.message == "exit 1"
    assert record.failures == 3
    assert not made.ledger.used.any()


def test_a_start_that_fails_is_planned_again() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one"),)))
    made.handle(SlotBegan(0))
    commands = made.handle(StartFailed(1, "one", 1, "no such image"))
    assert commands[0] == Displaced(1, "one", "it could not be started: no such image")
    assert made.jobs["one"].plan.start == 1
    assert made.handle(StartFailed(1, "one", 1, "no such image")) == []
    made.handle(SlotEnded(0, {}))
    (start,) = made.handle(SlotBegan(1))
    assert isinstance(start, Start)
    assert start.generation == 2


def test_a_job_that_ends_by_itself_is_done() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one"),)))
    made.handle(SlotBegan(0))
    assert made.handle(JobEnded(1, "one", 1)) == [Completed(0, "one", 10.0)]
    assert made.jobs["one"].completion == 0
    assert not made.ledger.used.any()
    made.handle(SlotEnded(0, {"one": 1}))
    assert made.jobs["one"].status is Status.FINISHED
    assert made.handle(JobEnded(1, "one", 1)) == []


def test_a_job_that_ends_as_it_waits_is_complete() -> None:
    """Its processes exited 0 while they were being stopped."""
    made = engine()
    made.handle(JobsArrived(0, (alone("one"),)))
    assert made.handle(JobEnded(0, "one", 0)) == []  # it never ran
    made.handle(SlotBegan(0))
    [row, *_] = made.running["one"].servers
    made.handle(ServerLost(1, made.cluster.names[row]))
    assert "one" not in made.running
    assert "one" in made.open_jobs
    assert made.handle(JobEnded(1, "one", 1)) == [Completed(0, "one", 10.0)]
    assert made.jobs["one"].status is Status.FINISHED
    assert not made.ledger.used.any()
    made.handle(SlotEnded(0, {}))
    made.handle(SlotBegan(1))


def test_measured_progress_never_decreases() -> None:
    made = engine()
    requested = alone("one")  # 80 mini-batches, 8 worker-slots
    made.handle(JobsArrived(0, (requested,)))
    made.handle(SlotBegan(0))
    record = made.jobs["one"]
    for generation, measured, progress in (
        (1, 25 * MICRO, 2),
        (1, 20 * MICRO, 2),
        (0, 70 * MICRO, 2),
        (1, 39 * MICRO, 3),
    ):
        made.handle(ProgressMeasured(1, {"one": (generation, measured)}))
        assert record.progress == progress
    assert record.measured == 39 * MICRO
    # It is behind its plan of two slots by one worker-slot, and that is noticed now.
    commands = made.handle(SlotEnded(0, {}))
    assert [command.job for command in commands if isinstance(command, Displaced)] == ["one"]
    made.handle(SlotBegan(1))
    made.handle(ProgressMeasured(2, {"one": (made.jobs["one"].generation, 80 * MICRO)}))
    assert Completed(1, "one", 10.0) in made.handle(SlotEnded(1, {}))


def test_progress_by_time_ends_with_the_first_report() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one"),)))  # 80 mini-batches, 8 worker-slots
    made.handle(SlotBegan(0))
    made.handle(SlotEnded(0, {"one": 4}))
    made.handle(SlotBegan(1))
    record = made.jobs["one"]
    assert record.progress == 4
    for measured, progress in ((0, 0), (0, 0), (25 * MICRO, 2), (0, 2), (25 * MICRO, 2)):
        made.handle(ProgressMeasured(2, {"one": (record.generation, measured)}))
        assert record.progress == progress
    # The plan that counted on more falls short, which is noticed.
    commands = made.handle(SlotEnded(1, {}))
    assert [command.job for command in commands if isinstance(command, Displaced)] == ["one"]


def test_a_revised_job_keeps_its_share_of_the_work() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one", utility=Deadline(5.0, 9.0)),)))
    made.handle(SlotBegan(0))
    made.handle(SlotEnded(0, {"one": 4}))
    # Half as fast: its half of the work is still half, and the plan no longer suffices.
    slow = alone("one", speed=StepModel(Fraction(120)), utility=Constant(3.0))
    commands = made.handle(JobRevised(1, slow))
    record = made.jobs["one"]
    assert (record.progress, record.job.required) == (8, 16)
    assert record.job.utility == Constant(3.0)
    assert [command.job for command in commands if isinstance(command, Displaced)] == ["one"]
    # Faster: the plan still completes it, and stays.
    plan = record.plan
    assert not any(
        isinstance(command, Displaced) for command in made.handle(JobRevised(1, alone("one")))
    )
    assert record.plan is plan
    with pytest.raises(EventError, match="neither arrival nor tenant can be revised"):
        made.handle(JobRevised(1, alone("one", arrival=1)))


def test_commands_wait_for_the_end_of_generations_on_their_servers() -> None:
    made = Engine(make_cluster(1, 0, horizon=6), Resuming(), acknowledges=True)
    made.handle(JobsArrived(0, (alone("one"), alone("two"))))
    (start,) = made.handle(SlotBegan(0))
    assert isinstance(start, Start)
    assert start.after == ()
    made.handle(Acknowledged(1, (start.id,)))
    made.handle(SlotEnded(0, {"one": 4}))
    made.handle(SlotBegan(1))
    done = made.handle(SlotEnded(1, {"one": 4}))
    stop = next(command for command in done if isinstance(command, Stop))
    (other,) = made.handle(SlotBegan(2))
    assert isinstance(other, Start)
    assert other.after == (stop.id,)
    assert list(made.unacknowledged) == [stop.id, other.id]
    made.handle(Acknowledged(3, (stop.id, stop.id)))
    assert list(made.unacknowledged) == [other.id]
    ids = [start.id, stop.id, other.id]
    assert ids == sorted(set(ids))


def test_an_event_that_is_not_written_down_does_not_happen() -> None:
    made = engine()
    before = made.state_digest()

    def write(staged: StagedEvent) -> None:
        assert staged.entry.sequence == 1
        raise OSError("disk full")

    with (
        pytest.raises(OSError, match="disk full"),
        made.staged(JobsArrived(0, (alone("one"),))) as staged,
    ):
        write(staged)
    assert made.state_digest() == before
    assert not made.jobs
    with made.staged(JobsArrived(0, (alone("one"),))) as staged:
        assert "Decided" in kinds(staged.commands)
        with pytest.raises(EventError, match="another event is staged"):
            made.handle(SlotBegan(0))
    assert made.jobs.keys() == {"one"}


def test_finished_jobs_leave_when_they_are_collected() -> None:
    made, kept = engine(), engine()
    for each in (made, kept):
        each.handle(JobsArrived(0, (alone("one"), alone("two"))))
        each.handle(JobCancelled(0, "one"))
    digest = made.state_digest()
    (gone,) = made.state.collect()
    assert (gone.job.name, gone.status) == ("one", Status.CANCELLED)
    assert made.state.collect() == []
    assert made.jobs.keys() == {"two"}
    assert made.state_digest() == digest == kept.state_digest()
    # A late report on it is no error; its name may be used again.
    assert made.handle(JobCancelled(0, "one")) == []
    made.handle(JobsArrived(0, (alone("one"),)))
    assert made.jobs.keys() == {"two", "one"}


def test_an_open_slot_is_quoted_for_while_one_runs() -> None:
    made = Engine(ON, make_policy("oasis", PolicyContext(ON), {"prices": "online"}))
    made.handle(JobsArrived(0, (alone("one"),)))
    made.handle(SlotBegan(0))
    before = made.state_digest()
    quote = made.quote(alone("two", arrival=1))
    assert quote.slot == 1
    assert quote.completion is not None
    assert quote.completion >= 1
    assert made.state_digest() == before
    assert made.ledger.start == 1


def test_a_quote_in_a_unit_of_work_leaves_no_trace() -> None:
    made = Engine(ON, make_policy("oasis", PolicyContext(ON), {"prices": "online"}))
    made.handle(JobsArrived(0, (alone("zero", utility=Deadline(1.0, 0.0)),)))
    digest, used = made.state_digest(), made.ledger.used.copy()
    with suppress(OSError), made.atomic():
        made.handle(JobsArrived(0, (alone("one"),)))
        assert made.jobs["one"].plan.start == 0
        made.handle(SlotBegan(0))
        assert made.quote(alone("two")).slot == 1
        raise OSError("disk full")
    assert (made.slot, made.state_digest()) == (0, digest)
    assert (made.ledger.used == used).all()
    validate_state(made.state)


def amounts(row: int = 0) -> dict[str, int]:
    return dict(zip(ON.resources, ON.capacity[row].tolist(), strict=True))


class Spreading(Resuming):
    """A planner that commits its job to two servers in slot 0, and to a third one in slot 1."""

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        if not isinstance(event, JobsArrived):
            return super().decide(view, event)
        return (commit((0, 0, 1, 0), (0, 1, 3, 0), (1, 2, 4, 0)),)


@pytest.mark.parametrize("again", [True, False])
def test_commands_on_a_removed_server_survive_a_restart(again: bool) -> None:
    """Commands keep the names of their servers with the processes on each."""
    made = Engine(ON, Spreading(), acknowledges=True)
    made.handle(JobsArrived(0, (alone("job"),)))
    made.handle(SlotBegan(0))
    made.handle(CapacityChanged(1, {"gpu-0": None}))
    if again:
        made.handle(CapacityChanged(1, {"gpu-0": ServerState(Role.WORKER, amounts())}))
    record = snapshot(made)
    restored = restore(record, Spreading())
    start = restored.unacknowledged[1]
    assert isinstance(start, Start)
    assert start.servers == ("gpu-0", "gpu-1")
    assert start.placement.workers == (1, 3)
    assert snapshot(restored)["unacknowledged"] == record["unacknowledged"]


@pytest.mark.parametrize("acknowledges", [True, False])
def test_a_server_removed_between_two_slots_ends_what_runs_there(acknowledges: bool) -> None:
    made = engine(acknowledges=acknowledges)
    made.handle(JobsArrived(0, (alone("one"),)))
    made.handle(SlotBegan(0))
    (here,) = made.running["one"].servers
    made.handle(SlotEnded(0, {"one": 4}))
    state = ServerState(Role.WORKER, amounts())
    commands = made.handle(CapacityChanged(1, {ON.names[here]: None, "new": state}))
    (stop,) = (command for command in commands if isinstance(command, Stop))
    assert (stop.job, stop.frees) == ("one", (ON.names[here],))
    assert not made.running
    restored = restore(snapshot(made), Resuming())
    for each in (made, restored):
        (start,) = each.handle(SlotBegan(1))
        assert isinstance(start, Start)
        assert start.generation == 2
        assert not start.frees


@pytest.mark.parametrize("changed", [None, ServerState(Role.PS, amounts())])
def test_a_plan_that_ends_with_the_running_slot_is_not_extended_on_a_server_that_left(
    changed: ServerState | None,
) -> None:
    """The job needs another plan; one on two servers must not shrink to the remaining one."""
    made = Engine(ON, make_policy("oasis", PolicyContext(ON), {"prices": "online"}))
    job = alone("one", worker_range=(8, 8), epochs=1, chunks=8, utility=Constant(1000.0))
    made.handle(JobsArrived(0, (job,)))
    made.handle(SlotBegan(0))
    record = made.jobs["one"]
    assert record.plan.completion == 0
    row = made.running["one"].servers[0]
    commands = made.handle(CapacityChanged(1, {ON.names[row]: changed}))
    assert Displaced(1, "one", "the servers changed") in commands
    validate_state(made.state)
    made.handle(SlotEnded(0, {}))
    if record.status.open:
        assert record.plan.start >= 1
        assert {int(count) for count in record.plan.totals()[0]} == {8}


def test_a_job_that_may_not_be_stopped_leaves_a_server_with_another_role() -> None:
    policy = make_policy("oasis", PolicyContext(ON), {"prices": "online"})
    made = Engine(ON, policy, acknowledges=True)
    job = alone("one", utility=Constant(1000.0), epochs=4)
    made.handle(JobsArrived(0, (replace(job, resumable=None),)))
    made.handle(SlotBegan(0))
    assert made.view.is_unstoppable("one")
    servers = made.running["one"].servers
    names = [ON.names[row] for row in servers]
    state = ServerState(Role.PS, amounts())
    made.handle(CapacityChanged(1, dict.fromkeys(names, state)))
    assert not made.view.is_unstoppable("one")
    made.handle(SlotEnded(0, {"one": 4}))
    (moved,) = made.handle(SlotBegan(1))
    assert isinstance(moved, Resize)
    assert set(moved.servers).isdisjoint(names)


def test_a_revision_keeps_a_plan_that_the_running_slot_completes() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one"),)))
    plan = made.jobs["one"].plan
    for slot in (0, 1):
        made.handle(SlotBegan(slot))
        worth_less = alone("one", utility=Constant(float(slot)))
        commands = made.handle(JobRevised(slot + 1, worth_less))
        assert not any(isinstance(command, Displaced) for command in commands)
        assert made.jobs["one"].plan is plan
        commands = made.handle(SlotEnded(slot, {"one": 4}))
    assert Completed(1, "one", 1.0) in commands


def test_a_revision_counts_the_restart_of_the_running_slot() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one", restart_seconds=Fraction(300)),)))
    made.handle(SlotBegan(0))
    made.handle(SlotEnded(0, {"one": 0}))
    here = ON.names[made.running["one"].servers[0]]
    made.handle(ServerLost(1, here))
    made.handle(SlotBegan(1))
    record = made.jobs["one"]
    assert record.generation == 2
    before = record.plan
    made.handle(JobRevised(2, replace(record.job, utility=Constant(1.0))))
    # The first of the plan's two slots yields half.
    assert (before.completion, record.plan.completion) == (2, 3)


def test_a_plan_that_lost_a_slot_is_planned_again_when_the_slot_ends() -> None:
    """Also if the generation ended early, and its progress isn't counted."""
    made = engine()
    made.handle(JobsArrived(0, (alone("one", epochs=3),)))
    made.handle(SlotBegan(0))
    made.handle(JobFailed(1, "one", 1, reason="crashed", retries=3))
    commands = made.handle(SlotEnded(0, {}))
    assert [command.job for command in commands if isinstance(command, Displaced)] == ["one"]
    assert made.jobs["one"].plan.completion == 3


def test_a_running_job_may_be_promised_for_the_slot_under_way() -> None:
    def decide(_: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            placement = Placement((0,), (4,), (0,))
            return (Promise("one", 1), Promise("two", 1), Place("one", placement))
        return (Promise(event.job.name, promised),) if isinstance(event, JobRevised) else ()

    made = Engine(ON, Scripted(decide, plans=False), saves_policy_state=False)
    made.handle(JobsArrived(0, (alone("one"), alone("two"))))
    made.handle(SlotBegan(0))
    for name, promised, valid in (("one", 0, True), ("one", -1, False), ("two", 0, False)):
        revision = JobRevised(1, alone(name, utility=Constant(9.0 + promised)), admission=True)
        if valid:
            made.handle(revision)
            assert made.jobs[name].promise == promised
        else:
            with pytest.raises(PolicyError, match="which has passed"):
                made.handle(revision)


@pytest.mark.parametrize("measured", [0, 50])
def test_a_revised_job_always_has_work_left(measured: int) -> None:
    """It completes with a slot or its processes, and can be planned again until then."""
    made = Engine(ON, make_policy("oasis", PolicyContext(ON), {"prices": "online"}))
    made.handle(JobsArrived(0, (alone("one", utility=Constant(1000.0)),)))
    made.handle(SlotBegan(0))
    made.handle(ProgressMeasured(1, {"one": (1, measured * MICRO)}))
    made.handle(SlotEnded(0, {} if measured else {"one": 4}))
    shorter = alone("one", utility=Constant(1000.0), minibatches=1)
    assert shorter.work == 8
    made.handle(JobRevised(1, shorter))
    record = made.jobs["one"]
    assert (record.status.open, record.remaining) == (True, 1)
    (row,) = made.running["one"].servers
    made.handle(ServerLost(1, ON.names[row]))
    assert (record.plan.start, record.plan.completion) == (1, 1)
    made.handle(SlotBegan(1))
    assert Completed(1, "one", 1000.0) in made.handle(SlotEnded(1, {"one": 1}))


def test_a_job_that_reported_all_its_work_can_be_planned_again() -> None:
    made = engine()
    made.handle(JobsArrived(0, (alone("one"),)))
    made.handle(SlotBegan(0))
    record = made.jobs["one"]
    made.handle(ProgressMeasured(1, {"one": (1, record.job.work * MICRO)}))
    (row,) = made.running["one"].servers
    made.handle(ServerLost(1, ON.names[row]))
    assert (record.plan.start, record.plan.completion) == (1, 1)
    assert ON.names[row] not in {ON.names[server] for server in record.plan.servers.tolist()}


def test_a_job_that_stopped_on_a_cordoned_server_does_not_start_there_again() -> None:
    made = Engine(ON, make_policy("fifo", PolicyContext(ON), {}))
    made.handle(JobsArrived(0, (alone("one", epochs=20, worker_range=(1, 1)),)))
    made.handle(SlotBegan(0))
    (row,) = made.running["one"].servers
    cordoned = ServerState(Role.WORKER, amounts(), cordoned=True)
    made.handle(CapacityChanged(1, {ON.names[row]: cordoned}))
    made.handle(SlotEnded(0, {"one": 1}))
    made.handle(TimespanChanged(1, 1))
    commands = made.handle(SlotBegan(1))
    assert kinds(commands) == ["Stop", "Displaced"]
    validate_state(made.state)
    made.handle(SlotEnded(1, {}))
    made.handle(TimespanChanged(2, None))
    (start,) = (each for each in made.handle(SlotBegan(2)) if isinstance(each, Start))
    assert ON.names[row] not in start.servers


def test_jobs_reported_as_displaced_have_no_reservations() -> None:
    """Also if the policy planned them again, or dropped them, as the servers changed."""
    reserved: list[bool] = []

    def plan(name: str, first_server: int) -> Commit:
        rows = ((0, first_server, 4, 0), (1, first_server, 4, 0))
        return replace(commit(*rows), job=name)

    def decide(view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            return [plan(job.name, row) for row, job in enumerate(event.jobs)]
        if isinstance(event, CapacityChanged):
            refusal = Refusal(RefusalReason.NO_ROOM, "no room")
            return (plan("one", 0), plan("two", 1), Drop("three", refusal))
        reserved.extend(view.ledger.reservation(name) is not None for name in event.jobs)
        return (plan("one", 1), plan("two", 0))

    policy = Scripted(decide)
    made = Engine(ON, policy, saves_policy_state=False)
    made.handle(JobsArrived(0, (alone("one"), alone("two"), alone("three"))))
    new = {f"new-{index}": ServerState(Role.WORKER, amounts()) for index in range(2)}
    made.handle(CapacityChanged(0, dict.fromkeys(ON.names) | new))
    assert [type(event) for event in policy.events[1:]] == [CapacityChanged, JobsDisplaced]
    assert reserved == [False, False]
    assert [int(made.jobs[name].plan.servers[0]) for name in ("one", "two")] == [1, 0]
    validate_state(made.state)


def test_a_revised_job_gives_its_place_back_before_the_policy_decides() -> None:
    reserved: list[bool] = []

    def decide(view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            return (Place("job", Placement((0,), (4,), (0,))),)
        reserved.append(view.ledger.reservation("job") is not None)
        return (Place("job", Placement((1,), (2,), (0,))),)

    policy = Scripted(decide, plans=False)
    made = Engine(ON, policy, saves_policy_state=False)
    made.handle(JobsArrived(0, (alone("job"),)))
    commands = made.handle(JobRevised(0, alone("job", worker_amounts={"gpu": 2000})))
    assert reserved == [False]
    assert kinds(commands) == ["Decided"]
    assert [type(event) for event in policy.events] == [JobsArrived, JobRevised]
    validate_state(made.state)


@pytest.mark.parametrize("drops", [True, False])
def test_a_policy_may_decide_about_a_late_plan_as_the_timespan_changes(drops: bool) -> None:
    def decide(_: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            return (commit((0, 0, 4, 0), (2, 0, 4, 0)),)
        refusal = Refusal(RefusalReason.NO_ROOM, "no room")
        return (Drop("job", refusal) if drops else commit((0, 0, 4, 0), (1, 0, 4, 0)),)

    policy = Scripted(decide)
    made = Engine(ON, policy, saves_policy_state=False)
    made.handle(JobsArrived(0, (alone("job"),)))
    made.handle(TimespanChanged(0, 2))
    assert [type(event) for event in policy.events] == [JobsArrived, TimespanChanged]
    validate_state(made.state)
