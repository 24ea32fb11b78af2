"""Creation of commands to the driver, with their numbers, generations and dependencies."""

from __future__ import annotations

from dataclasses import replace

from shadowprice.core.events import Command, Resize, Start, Stop
from shadowprice.core.schedule import Placement
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.state import EngineState


def launch(
    state: EngineState, kind: type[Start] | type[Resize], slot: int, name: str, placement: Placement
) -> Start | Resize:
    """Create a command that runs a new generation of a job in this placement."""
    record = state.touch(state.jobs[name])
    names = state.cluster.names
    number = _next_number(state)
    # A bag's placements are numbered like plans, because each start of copies draws new durations.
    planned = len(record.plan) or record.job.bag is not None
    plan = record.plans if planned else 0
    previous = state.running.get(name)
    if kind is Resize and previous is not None:
        _add_run(record, slot, previous)
    record.resumed_before = record.resumed_at if record.generation else -1
    record.resumed_at = record.measured
    record.generation = record.generation + 1
    record.generation_slot = slot
    record.running_since = -1
    record.generation_plan = plan
    state.undo.put(state.running, name, placement)
    if kind is Start:
        record.last_start = number
        if record.started is None:
            record.started = slot
    command = kind(
        slot,
        name,
        placement,
        id=number,
        generation=record.generation,
        frees=() if previous is None else tuple([names[row] for row in previous.servers]),
        servers=tuple([names[row] for row in placement.servers]),
        copies=record.copies,
        plan=plan,
    )
    _await_acknowledgement(state, command)
    return command


def stop(state: EngineState, slot: int, name: str, placement: Placement, *, finished: bool) -> Stop:
    """Create a command that stops a generation, which may have ended already."""
    _add_run(state.touch(state.jobs[name]), slot, placement)
    command = Stop(
        slot,
        name,
        finished,
        id=_next_number(state),
        generation=state.jobs[name].generation,
        frees=tuple([state.cluster.names[row] for row in placement.servers]),
    )
    _await_acknowledgement(state, command)
    return command


def _add_run(record: JobRecord, slot: int, placement: Placement) -> None:
    """Add the slots of a generation that a command ends to the sums of earlier generations."""
    # -1: the generation ended by itself, and `end_run` has reset the sums.
    if record.job.bag is None and record.resumed_at >= 0:
        slots = record.slots_run(slot)
        record.earlier_slots += slots
        record.earlier_share += slots / record.stated_slots(placement)


def add_dependencies(state: EngineState, commands: list[Command]) -> None:
    """Make the starts of a slot wait for unacknowledged commands that free their servers.

    A start may use what a later command frees. Two commands that wait for each other don't block:
    the driver stops the previous generation of each before it waits.
    """
    if not state.acknowledges:
        return
    freeing: dict[str, list[int]] = {}
    by_job: dict[str, list[int]] = {}
    for number, unacknowledged in state.unacknowledged.items():
        by_job.setdefault(unacknowledged.job, []).append(number)
        for server in unacknowledged.frees:
            freeing.setdefault(server, []).append(number)
    for position, command in enumerate(commands):
        if not isinstance(command, Start | Resize):
            continue
        after = set(by_job[command.job])
        after.update(*(freeing.get(server, ()) for server in command.servers))
        after.discard(command.id)
        if after:
            dependent = replace(command, after=tuple(sorted(after)))
            commands[position] = dependent
            state.undo.put(state.unacknowledged, dependent.id, dependent)


def _next_number(state: EngineState) -> int:
    state.commands += 1
    return state.commands


def _await_acknowledgement(state: EngineState, command: Start | Resize | Stop) -> None:
    if state.acknowledges:
        state.undo.put(state.unacknowledged, command.id, command)
