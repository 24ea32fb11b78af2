"""Invariants of an engine's state between two events, and a fixture that checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from shadowprice.core.cluster import Amounts
from shadowprice.core.ledger import Ledger
from shadowprice.core.policy import Status
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.engine import Engine
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.state import EngineState


@pytest.fixture(scope="module", autouse=True)
def validated_state() -> Iterator[None]:
    """Check the invariants of every engine's state after each event."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_make_final", "pass_quiet_slots"):
            patch.setattr(Engine, name, _then_validate(getattr(Engine, name)))
        yield


def _then_validate(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def changed(engine: Engine, *arguments: Any) -> Any:
        result = change(engine, *arguments)
        validate_state(engine.state)
        return result

    return changed


def validate_state(state: EngineState) -> None:
    """Raise AssertionError if two parts of the state contradict each other.

    The cost grows with the number of jobs and with the size of the ledger.
    """
    for name, record in state.jobs.items():
        assert record.job.name == name, name
        if record.status.open:
            _validate_open_job(state, record)
        else:
            _validate_closed_job(record)
    open_jobs = [name for name, record in state.jobs.items() if record.status.open]
    assert list(state.open_jobs) == open_jobs, "open jobs, in order of arrival"
    assert set(state.closed) == state.jobs.keys() - state.open_jobs.keys(), "jobs to collect"
    assert _is_ascending(record.order for record in state.jobs.values()), "order of arrival"
    assert _is_ascending(map(state.start_order, state.running)), "order of starts"
    for names in (state.running, state.moved, state.planned, state.ledger.reservations):
        assert names.keys() <= state.open_jobs.keys(), names.keys() - state.open_jobs.keys()
    _validate_reservations(state)
    assert state.drained | state.cordoned <= state.lost
    assert not state.drained & state.cordoned
    _validate_cordons(state)
    assert state.slot_running is None or state.ledger.start - state.slot_running in {0, 1}
    assert state.acknowledges or not state.unacknowledged
    assert all(number <= state.commands for number in state.unacknowledged)
    assert not state.undo, "changes that were not committed"


def _validate_open_job(state: EngineState, record: JobRecord) -> None:
    text = record.describe()
    assert state.open_jobs[record.job.name] is record, text
    assert record.status is not Status.ARRIVED, text
    has_plan, has_placement = len(record.plan) > 0, record.placement is not None
    assert not (has_plan and has_placement), text
    assert record.status is Status.ADMITTED or not (has_plan or has_placement), text
    assert (record.completion, record.refusal) == (None, None), text
    assert record.generation or record.job.name not in state.running, text
    if record.placement is not None:
        assert state.ledger.reservations[record.job.name].placement == record.placement, text


def _validate_closed_job(record: JobRecord) -> None:
    text = record.describe()
    is_finished = record.status is Status.FINISHED
    assert record.placement is None, text
    assert (record.completion is not None) is is_finished, text
    assert (record.refusal is None) is is_finished, text


def _validate_reservations(state: EngineState) -> None:
    """Compare the agenda and the ledger with the plans and placements of the open jobs."""
    ledger = state.ledger
    assert (ledger.used == recompute_usage(ledger)).all(), "used amounts"
    assert (ledger.used <= ledger.limits).all(), "more is used than there is"
    open_rows = np.setdiff1d(np.arange(state.cluster.servers), list(state.lost))
    assert (ledger.capacity[list(state.lost)] == 0).all(), "capacity of unavailable servers"
    assert (ledger.capacity[open_rows] == state.cluster.capacity[open_rows]).all(), "capacity"
    agenda: dict[int, dict[str, Placement]] = {}
    next_slot = state.slot
    for record in sorted(state.open_jobs.values(), key=lambda record: record.commitment):
        for slot, placement in _placements_by_slot(record.plan).items():
            if slot >= next_slot:
                agenda.setdefault(slot, {})[record.job.name] = placement
    assert state.agenda == agenda, "placements of plans"
    for slot, planned in agenda.items():
        assert list(state.agenda[slot]) == list(planned), f"order of jobs in slot {slot}"


_PLACEMENTS = WeakKeyDictionary[Schedule, dict[int, Placement]]()


def _placements_by_slot(plan: Schedule) -> dict[int, Placement]:
    """Return the placements of a plan, which is immutable and validated after many events."""
    if plan not in _PLACEMENTS:
        _PLACEMENTS[plan] = dict(plan.placements())
    return _PLACEMENTS[plan]


def recompute_usage(ledger: Ledger) -> Amounts:
    """Return the reserved amounts, recomputed from all reservations."""
    total = np.zeros_like(ledger.used)
    for reservation in ledger.reservations.values():
        worker, ps = np.asarray(reservation.worker), np.asarray(reservation.ps)
        plan = reservation.plan.from_slot(ledger.start)
        # A pair of a slot and a server occurs once in a plan, so the sum needs no `np.add.at`.
        amounts = plan.workers[:, None] * worker + plan.ps[:, None] * ps
        total[plan.slots - ledger.start, plan.servers] += amounts
        if (placement := reservation.placement) is not None:
            for server, workers, ps_count in zip(
                placement.servers, placement.workers, placement.ps, strict=True
            ):
                total[:, server] += workers * worker + ps_count * ps
    return total


def _validate_cordons(state: EngineState) -> None:
    """Check that only jobs that run on a cordoned server have reservations there."""
    for row in state.cordoned:
        for name in state.ledger.holders(row):
            placement = state.running.get(name)
            assert placement is not None, (name, row)
            assert row in placement.servers, (name, row)


def _is_ascending(values: Iterable[int]) -> bool:
    return all(before < after for before, after in pairwise(values))
