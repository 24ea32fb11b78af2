"""Plans that fall short: which jobs keep their servers, which are moved, and which never stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import (
    Acknowledged,
    Charge,
    Command,
    Decided,
    DriverEvent,
    JobEnded,
    JobRevised,
    JobsArrived,
    JobStarted,
    ProgressMeasured,
    Resize,
    ServerLost,
    SlotBegan,
    SlotEnded,
    Start,
    Stop,
)
from shadowprice.core.job import MICRO, Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.utility import Constant, Deadline, Utility
from shadowprice.engine import Engine
from shadowprice.engine.journal import entry_line, parse_entry
from shadowprice.policies.registry import make_policy, policies
from shadowprice.service.state.speed_estimates import with_corrected_curve
from tests.support.astraea_cases import shared_cluster, shared_job
from tests.support.workloads import make_cluster, make_job

ON: Final = make_cluster(2, 0, gpus=1, horizon=60)
PLANNERS: Final = ("oasis", "pdors")
LIVE: Final = tuple(name for name, info in policies().items() if not info.knows_all_jobs)


def stated(name: str, *, slots: int = 2, by: int = 40, **changes: Any) -> Job:
    """Return a job of one worker that states some slots of work."""
    made = make_job(ON, name, epochs=slots, chunks=1, ps_amounts=None, utility=Deadline(10.0, by))
    return replace(made, **{"resumable": None, **changes})


def engine(policy: str, jobs: Sequence[Job]) -> Engine:
    """Return an engine of a live service with open jobs."""
    context = PolicyContext(ON, None, None, 0)
    built = Engine(ON, make_policy(policy, context, {}), acknowledges=True)
    built.handle(JobsArrived(0, tuple(jobs)))
    return built


def begin(made: Engine, slot: int) -> list[Command]:
    """Begin a slot, and execute its commands at once; return them."""
    commands = made.handle(SlotBegan(slot))
    for event in started(made, slot):
        made.handle(event)
    return commands


def started(made: Engine, slot: int) -> list[DriverEvent]:
    """Return the events of a driver that executes all commands within a slot."""
    running = [
        JobStarted(slot + 1, name, made.jobs[name].generation, slot) for name in made.running
    ]
    return [Acknowledged(slot + 1, tuple(made.unacknowledged)), *running]


def run(made: Engine, slot: int, gains: dict[str, int] | None = None) -> list[Command]:
    """Run a slot in which jobs progress as stated, or as given; return its commands."""
    commands = begin(made, slot)
    progress = {}
    for name in made.running:
        record = made.jobs[name]
        gain = (gains or {}).get(name, record.job.gain(1))
        progress[name] = min(gain, record.remaining - 1)  # only an exit completes a job
    return [*commands, *made.handle(SlotEnded(slot, progress))]


def stops(commands: Sequence[Command]) -> list[str]:
    return [command.job for command in commands if isinstance(command, Stop | Resize)]


@pytest.mark.parametrize("policy", PLANNERS)
def test_a_job_that_overruns_keeps_its_place_and_the_next_ones_are_shifted(policy: str) -> None:
    driven = engine(policy, [stated(name) for name in ("a", "b", "c", "d")])
    assert [driven.jobs[name].plan.completion for name in "abcd"] == [1, 1, 3, 3]
    commands = [entry for slot in range(4) for entry in run(driven, slot)]
    assert stops(commands) == []
    assert set(driven.running) == {"a", "b"}
    assert driven.jobs["a"].generation == driven.jobs["b"].generation == 1
    for name in ("c", "d"):
        assert driven.jobs[name].status is Status.ADMITTED
        assert driven.jobs[name].plan.start == 5
        assert len(driven.jobs[name].plan) == 2


@pytest.mark.parametrize("policy", PLANNERS)
def test_checkpointing_job_yields_to_a_deadline_that_its_overrun_would_break(
    policy: str,
) -> None:
    slow = stated("slow", slots=4, by=40, resumable=True)
    driven = engine(policy, [replace(slow, name=name) for name in ("slow", "slow too")])
    for slot in range(2):
        run(driven, slot)
    urgent = [replace(stated(name, slots=2, by=3), arrival=2) for name in ("u", "v")]
    driven.handle(JobsArrived(2, tuple(urgent)))
    assert {driven.jobs[name].plan.start for name in ("u", "v")} == {4}
    late = {"slow": 1, "slow too": 1}
    for slot in range(2, 4):
        run(driven, slot, late)
    run(driven, 4, late)
    # Both urgent jobs would earn nothing a slot later; the slow ones lose nothing by waiting.
    assert set(driven.running) == {"u", "v"}
    assert driven.jobs["slow"].status is Status.ADMITTED
    assert driven.jobs["slow"].plan.start == 6


@pytest.mark.parametrize("policy", PLANNERS)
def test_job_without_a_checkpoint_is_not_preempted(policy: str) -> None:
    slow = stated("slow", slots=4)
    driven = engine(policy, [replace(slow, name=name) for name in ("slow", "slow too")])
    for slot in range(2):
        run(driven, slot)
    urgent = [replace(stated(name, slots=2, by=3), arrival=2) for name in ("u", "v")]
    driven.handle(JobsArrived(2, tuple(urgent)))
    for slot in range(2, 6):
        assert stops(run(driven, slot)) == []
    assert set(driven.running) == {"slow", "slow too"}


@pytest.mark.parametrize("policy", PLANNERS)
def test_a_job_that_saves_nothing_is_planned_with_one_placement(policy: str) -> None:
    cluster = make_cluster(3, 0, gpus=2, horizon=60)
    busy = [make_job(cluster, f"busy {n}", epochs=2, chunks=2, ps_amounts=None) for n in range(2)]
    rigid = make_job(cluster, "rigid", epochs=6, chunks=4, ps_amounts=None)
    driven = Engine(
        cluster, make_policy(policy, PolicyContext(cluster, None, None, 0), {}), acknowledges=True
    )
    driven.handle(JobsArrived(0, (*busy, replace(rigid, resumable=False))))
    record = driven.jobs["rigid"]
    assert record.status is Status.ADMITTED
    placements = {placement for _, placement in record.plan.placements()}
    assert len(placements) == 1
    slots = record.plan.active_slots.tolist()
    assert slots == list(range(slots[0], slots[-1] + 1))


def test_a_generation_that_made_no_progress_yet_is_unstoppable() -> None:
    driven = engine("oasis", [stated("a", slots=6, resumable=True)])
    run(driven, 0)
    driven.handle(ProgressMeasured(1, {"a": (1, MICRO)}))
    assert not driven.view.is_unstoppable("a")
    driven.handle(SlotBegan(1))
    driven.handle(SlotEnded(1, {}))
    # It moves: its second generation has no measurement.
    record = driven.jobs["a"]
    record.generation, record.resumed_before, record.resumed_at = 2, 0, record.measured
    assert driven.view.is_unstoppable("a")
    driven.handle(ProgressMeasured(2, {"a": (2, 2 * MICRO)}))
    assert not driven.view.is_unstoppable("a")


def test_checkpoint_state_changes_no_plan() -> None:
    driven = engine("oasis", [stated("a"), stated("b")])
    driven.handle(SlotBegan(0))
    assert driven.view.is_unstoppable("a")
    before = driven.jobs["a"].plan
    driven.handle(JobRevised(1, replace(driven.jobs["a"].job, resumable=True)))
    assert driven.jobs["a"].plan is before
    assert not driven.view.is_unstoppable("a")


def test_simulation_pins_no_job() -> None:
    driven = Engine(ON, make_policy("oasis", PolicyContext(ON, None, None, 0), {}))
    driven.handle(JobsArrived(0, (stated("a"),)))
    assert any(isinstance(entry, Start) for entry in driven.handle(SlotBegan(0)))
    assert not driven.view.is_unstoppable("a")


def gangs(policy: str, resumable: bool | None) -> Engine:
    """Return an engine under rounds, with two gangs of four slots and two that come after them."""
    on = shared_cluster(2, {"a": {"worker": 1, "ps": 1}, "b": {"worker": 1, "ps": 1}}, worker=1)
    driven = Engine(
        on, make_policy(policy, PolicyContext(on, None, None, 0), {}), acknowledges=True
    )
    jobs = [
        replace(gang(on, f"{tenant}{number}", tenant), resumable=resumable)
        for number in range(2)
        for tenant in ("a", "b")
    ]
    driven.handle(JobsArrived(0, tuple(jobs)))
    return driven


def gang(cluster: Cluster, name: str, tenant: str) -> Job:
    """Return a job of one worker for four slots."""
    made = shared_job(cluster, name, tenant, ps=None, chunks=1, epochs=4, minibatches=1)
    return replace(made, utility=Deadline(10.0, 60))


@pytest.mark.parametrize("policy", ["astraea", "batchsche"])
@pytest.mark.parametrize("resumable", [None, True])
def test_a_gang_that_overruns_keeps_its_places_into_the_next_round(
    policy: str, resumable: bool | None
) -> None:
    driven = gangs(policy, resumable)
    slot = 0
    while not driven.running:
        driven.handle(SlotBegan(slot))
        driven.handle(SlotEnded(slot, {}))
        slot += 1
    first, begun = set(driven.running), driven.slot
    commands = [entry for index in range(begun, begun + 4) for entry in run(driven, index)]
    assert stops(commands) == []
    assert set(driven.running) == first
    assert all(driven.jobs[name].generation == 1 for name in first)
    # The market of the next round sees that the units are used.
    assert (driven.ledger.used <= driven.ledger.capacity).all()
    for name in first:
        driven.handle(JobEnded(driven.slot, name, 1))
    for index in range(driven.slot, driven.slot + 40):
        for name in sorted(set(run(driven, index) and driven.running)):
            if driven.jobs[name].remaining == 1:
                driven.handle(JobEnded(driven.slot, name, driven.jobs[name].generation))
    assert all(record.status is Status.FINISHED for record in driven.jobs.values())


def test_a_borrowing_gang_that_overruns_pays_for_each_slot_that_it_runs() -> None:
    on = shared_cluster(2, {"a": {"worker": 1, "ps": 0}, "b": {"worker": 3, "ps": 0}}, ps=0)
    parameters = {"theta": {"worker": "16", "ps": "16"}, "workers": "rigid", "lambda": "1"}
    driven = Engine(
        on, make_policy("astraea", PolicyContext(on, None, None, 0), parameters), acknowledges=True
    )
    wide = shared_job(on, "wide", "a", ps=None, chunks=2, epochs=2, minibatches=1)
    other = shared_job(on, "other", "b", ps=None, chunks=1, epochs=2, minibatches=1)
    # The price of a unit is above zero because the other job has one.
    jobs = [replace(stated_job, utility=Deadline(100.0, 60)) for stated_job in (wide, other)]
    driven.handle(JobsArrived(0, tuple(jobs)))
    paid: dict[int, int] = {}
    ran: list[int] = []
    for slot in range(12):
        commands = begin(driven, slot)
        if "wide" in driven.running:
            ran.append(slot)
        for command in commands:
            if isinstance(command, Decided) and isinstance(command.decision, Charge):
                paid[slot] = paid.get(slot, 0) + sum(command.decision.amounts.values())
        left = {name: driven.jobs[name].remaining - 1 for name in driven.running}
        gains = {name: driven.jobs[name].job.gain(2 if name == "wide" else 1) for name in left}
        driven.handle(SlotEnded(slot, {name: min(gains[name], left[name]) for name in left}))
        if len(ran) == 7 and "wide" in driven.running:
            driven.handle(JobEnded(slot + 1, "wide", 1))
    assert len(ran) == 7  # stated as 2
    assert list(paid) == ran
    assert len(set(paid.values())) == 1
    assert paid[ran[0]] > 0


@pytest.mark.parametrize("policy", LIVE)
def test_a_worthless_job_is_abandoned_only_if_it_seems_to_never_end(policy: str) -> None:
    driven = endless(policy, Deadline(10.0, 3))
    slots = ran(driven, 20)
    # It is worth nothing from slot 4 on, and has saved nothing.
    assert len(slots) == 6  # stated as 2
    record = driven.jobs["endless"]
    assert record.status is Status.DROPPED
    assert record.refusal is not None
    assert "has run for 6 slots without an end, 3 times as long as stated" in record.refusal.message
    assert not driven.running
    assert not driven.ledger.used.any()


@pytest.mark.parametrize("policy", LIVE)
def test_slow_start_is_no_overrun(policy: str) -> None:
    driven = endless(policy, Deadline(10.0, 3))
    first = 0
    for slot in range(12):
        driven.handle(SlotBegan(slot))
        if not driven.running:
            first = slot + 1
        driven.handle(SlotEnded(slot, dict.fromkeys(driven.running, 0)))
    assert set(driven.running) == {"endless"}
    for event in started(driven, 11):
        driven.handle(event)
    assert driven.jobs["endless"].generation_slot == first
    # It counts from the slot in which the processes began, 11.
    assert len(ran(driven, 20)) == 5
    assert driven.jobs["endless"].status is Status.DROPPED


@pytest.mark.parametrize("policy", ["fifo", "oasis", "rolling", "astraea"])
def test_job_with_utility_may_overrun_without_limit(policy: str) -> None:
    driven = endless(policy, Constant(10.0))
    assert len(ran(driven, 20)) >= 19


@pytest.mark.parametrize("policy", LIVE)
@pytest.mark.parametrize(
    ("limits", "slots", "message"),
    [
        ({"walltime": 5}, 5, "has run for 5 slots without an end, and its walltime is 5 slots"),
        (
            {"max_overrun": 4.0},
            8,
            "has run for 8 slots without an end, 4 times as long as stated, and the limit is 4",
        ),
    ],
)
def test_job_with_utility_ends_at_its_limit(
    policy: str, limits: dict[str, Any], slots: int, message: str
) -> None:
    driven = endless(policy, Constant(10.0), **limits)
    assert len(ran(driven, 20)) == slots
    record = driven.jobs["endless"]
    assert record.status is Status.DROPPED
    assert record.refusal is not None
    assert record.refusal.reason is RefusalReason.TIME_LIMIT
    assert record.refusal.message == message
    assert not driven.running
    assert not driven.ledger.used.any()


@pytest.mark.parametrize("limits", [{"walltime": 6}, {"max_overrun": 3.0}])
def test_a_lost_server_resets_a_limit_and_the_journal_replays(limits: dict[str, Any]) -> None:
    driven, replayed = (engine("oasis", []) for _ in range(2))
    job = replace(stated("endless"), utility=Constant(10.0), **limits)
    slots = []

    def handle(event: DriverEvent) -> None:
        driven.handle(event)
        assert driven.last is not None
        line = entry_line(driven.last, ON.names)
        replayed.apply(parse_entry(line, ON))

    handle(JobsArrived(0, (job,)))
    for slot in range(14):
        handle(SlotBegan(slot))
        for event in started(driven, slot):
            handle(event)
        if "endless" in driven.running:
            slots.append(slot)
        if slot == 4:
            (server,) = driven.running["endless"].servers
            handle(ServerLost(slot + 1, ON.names[server]))
        progress = {name: min(1, driven.jobs[name].remaining - 1) for name in driven.running}
        handle(SlotEnded(slot, progress))
    assert slots == list(range(11))  # five slots, and six after the server was lost
    assert driven.jobs["endless"].status is Status.DROPPED
    assert replayed.state_digest() == driven.state_digest()


def test_a_limit_counts_for_a_job_that_takes_turns() -> None:
    on = shared_cluster(1, {"t": {"worker": 1, "ps": 1}}, worker=1)
    driven = Engine(
        on, make_policy("gandiva_fair", PolicyContext(on, None, None, 0), {}), acknowledges=True
    )
    jobs = [shared_job(on, name, "t", ps=None, chunks=1, epochs=5, minibatches=1) for name in "ab"]
    limited = (replace(job, walltime=6, utility=Constant(10.0)) for job in jobs)
    driven.handle(JobsArrived(0, tuple(limited)))
    slots: dict[str, int] = {"a": 0, "b": 0}
    for slot in range(20):
        begin(driven, slot)
        for name in driven.running:
            slots[name] += 1
        progress = {name: min(1, driven.jobs[name].remaining - 1) for name in driven.running}
        driven.handle(SlotEnded(slot, progress))
    assert slots == {"a": 6, "b": 6}
    assert all(driven.jobs[name].generation > 2 for name in "ab")


def test_the_start_up_of_a_moved_job_is_no_run_time() -> None:
    """Jobs take turns, and every second start-up takes longer than the turn."""
    on = shared_cluster(1, {"t": {"worker": 1, "ps": 1}}, worker=1)
    policy = make_policy("gandiva_fair", PolicyContext(on, None, None, 0), {})
    driven = Engine(on, policy, acknowledges=True)
    jobs = [shared_job(on, name, "t", ps=None, chunks=1, epochs=9, minibatches=1) for name in "ab"]
    limited = (replace(job, walltime=4, utility=Constant(10.0)) for job in jobs)
    driven.handle(JobsArrived(0, tuple(limited)))
    slots: dict[str, int] = {"a": 0, "b": 0}
    for slot in range(60):
        driven.handle(SlotBegan(slot))
        driven.handle(Acknowledged(slot + 1, tuple(driven.unacknowledged)))
        progress = dict.fromkeys(driven.running, 0)
        for name in driven.running:
            record = driven.jobs[name]
            if record.generation % 2:
                driven.handle(JobStarted(slot + 1, name, record.generation, slot))
                slots[name] += 1
                progress[name] = min(1, record.remaining - 1)
        driven.handle(SlotEnded(slot, progress))
    assert slots == {"a": 4, "b": 4}
    assert [driven.jobs[name].generation for name in "ab"] == [7, 7]


@pytest.mark.parametrize("policy", [*PLANNERS, "astraea"])
def test_a_job_that_saved_nothing_runs_on_past_the_horizon(policy: str) -> None:
    """It is a hundred times slower than stated, so that the rest of its work needs 100 slots."""
    driven = endless(policy, Constant(10.0))
    assert len(ran(driven, 1)) == 1
    slow = with_corrected_curve(driven.jobs["endless"].job, {1: 0.01})
    driven.handle(JobRevised(1, slow))
    for slot in range(1, 90):
        begin(driven, slot)
        assert "endless" in driven.running
        progress = min(slow.gain(1), driven.jobs["endless"].remaining - 1)
        driven.handle(SlotEnded(slot, {"endless": progress}))
    assert driven.jobs["endless"].generation == 1
    assert driven.jobs["endless"].plan.completion >= 90


def endless(policy: str, utility: Utility, **limits: Any) -> Engine:
    """Return an engine of a live service with a job of two slots that never ends."""
    if not policies()[policy].counts_places:
        return engine(policy, [replace(stated("endless"), utility=utility, **limits)])
    on = shared_cluster(2, {"a": {"worker": 2, "ps": 2}}, worker=1)
    driven = Engine(
        on, make_policy(policy, PolicyContext(on, None, None, 0), {}), acknowledges=True
    )
    endless = shared_job(on, "endless", "a", ps=None, chunks=1, epochs=2, minibatches=1)
    endless = replace(endless, utility=utility, resumable=None, **limits)
    driven.handle(JobsArrived(0, (endless,)))
    return driven


def ran(made: Engine, slots: int) -> list[int]:
    """Run slots, and return those in which the job ran."""
    results = []
    for slot in range(made.slot, made.slot + slots):
        begin(made, slot)
        if "endless" in made.running:
            results.append(slot)
        progress = {name: min(1, made.jobs[name].remaining - 1) for name in made.running}
        made.handle(SlotEnded(slot, progress))
    return results
