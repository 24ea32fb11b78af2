"""Records of an executor's reports, and commands about generations that were never commanded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shadowprice.core.events import Start
from shadowprice.core.schedule import Placement
from shadowprice.executors.contract import (
    UNCOMMANDED_STOP,
    Ended,
    Ending,
    GenerationPhase,
    GenerationStatus,
    ServerAllocation,
    Started,
    StartRefused,
)
from shadowprice.service.execution.reconciler import (
    INITIAL_BACKOFF_NS,
    STOP_OVERDUE_NS,
    Reconciler,
    StopAction,
)


def _start(job: str, number: int, server: str, generation: int = 1) -> Start:
    placement = Placement((0,), (1,), (0,))
    return Start(3, job, placement, id=number, generation=generation, servers=(server,))


def _held(
    job: str, server: str, phase: GenerationPhase = GenerationPhase.RUNNING
) -> GenerationStatus:
    return GenerationStatus(job, 1, phase, (ServerAllocation(server, 1),), ("worker-0",))


@pytest.fixture
def outbox() -> Reconciler:
    reconciler, held = Reconciler(), (_held("theirs", "one"), _held("ours", "two"))
    reconciler.set_actual_state(held, held[:1])
    return reconciler


def test_an_orphan_is_stopped_although_its_number_is_requested(outbox: Reconciler) -> None:
    running = {"theirs": _start("theirs", 5, "two"), "ours": _start("ours", 6, "two")}
    unacknowledged = dict(enumerate(running.values(), 5))
    assert outbox.actions(running, unacknowledged, 0) == [StopAction(UNCOMMANDED_STOP, "theirs", 1)]
    outbox.on_stop_accepted("theirs", 1, 0)
    assert outbox.actions(running, unacknowledged, 0) == []
    assert outbox.completed_commands(running, unacknowledged) == [6]


def test_its_servers_are_withheld_until_it_has_ended(outbox: Reconciler) -> None:
    for job in ("theirs", "ours"):
        outbox.on_stop_accepted(job, 1, 0)
    running = {"next": _start("next", 5, "one"), "beside": _start("beside", 6, "two")}
    assert outbox.actions(running, {}, 0) == [running["beside"]]
    ended = Ended(UNCOMMANDED_STOP, "theirs", 1, 0.0, Ending.STOPPED, 143, "")
    outbox.record_report(ended, 0)
    outbox.on_end_recorded("theirs", 1, is_open=True)
    assert outbox.actions(running, {}, 0) == list(running.values())


def test_its_reports_measure_nothing_even_when_repeated(outbox: Reconciler) -> None:
    ended = Ended(0, "theirs", 1, 0.0, Ending.FAILED, 1, "")
    for _ in range(2):
        outbox.record_report(ended, 0)
        assert outbox.is_orphan_report(ended)
        assert outbox.is_orphan_report(Started(5, "theirs", 1, 0.0))
        outbox.on_end_recorded("theirs", 1, is_open=True)
    assert not outbox.is_orphan_report(Ended(0, "theirs", 2, 0.0, Ending.DONE, 0, ""))
    assert not outbox.is_orphan_report(Ended(0, "ours", 1, 0.0, Ending.DONE, 0, ""))


def test_a_number_that_is_used_up_delays_nothing(outbox: Reconciler) -> None:
    refused = StartRefused(5, "other", 1, 0.0, "")
    outbox.mark_number_used("other", 1)
    assert not outbox.is_orphan_report(refused)
    outbox.record_report(refused, 0)
    outbox.on_end_recorded("other", 1, is_open=True)
    restarted = {"other": _start("other", 6, "two", generation=2)}
    assert outbox.actions(restarted, {}, 0)[-1] == restarted["other"]


def test_an_end_that_is_reported_again_delays_its_job_no_longer() -> None:
    outbox = Reconciler()
    running: Any = {"one": None}  # whatever its command is
    end = Ended(0, "one", 1, 0.0, Ending.FAILED, 1, "why")
    for _ in range(5):
        outbox.record_report(end, 0)
    assert outbox.next_retry_at(running, 0) == INITIAL_BACKOFF_NS
    outbox.record_report(replace(end, generation=2), 0)
    assert outbox.next_retry_at(running, 0) == 2 * INITIAL_BACKOFF_NS
    outbox.on_job_closed("one")
    assert outbox.next_retry_at(running, 0) is None


def test_the_last_end_of_a_closed_job_leaves_no_entry() -> None:
    reconciler = Reconciler()
    empty = Reconciler()
    reconciler.on_job_closed("job")  # cancelled, before its processes ended
    reconciler.record_report(Ended(0, "job", 1, 1.0, Ending.LOST, None, "gone"), 1)
    assert reconciler != empty
    reconciler.on_end_recorded("job", 1, is_open=False)
    assert reconciler == empty


def test_a_delay_that_is_over_is_no_retry_to_wake_up_for() -> None:
    outbox = Reconciler()
    running: Any = {"early": None, "late": None}  # whatever their commands are
    outbox.delay_restart("early", 0)
    outbox.delay_restart("late", INITIAL_BACKOFF_NS)
    assert outbox.next_retry_at(running, INITIAL_BACKOFF_NS - 1) == INITIAL_BACKOFF_NS
    assert outbox.next_retry_at(running, INITIAL_BACKOFF_NS) == 2 * INITIAL_BACKOFF_NS
    assert outbox.next_retry_at(running, 2 * INITIAL_BACKOFF_NS) is None


def test_an_exit_0_on_a_signal_from_outside_delays_a_restart() -> None:
    """The machine may be shutting down; a job whose work is done is closed instead."""
    outbox = Reconciler()
    running: Any = {"one": None}
    outbox.record_report(Ended(0, "one", 1, 0.0, Ending.DONE, 0, "", from_outside=True), 0)
    assert outbox.next_retry_at(running, 0) == INITIAL_BACKOFF_NS


def test_a_stop_is_overdue_until_its_generation_ends() -> None:
    outbox = Reconciler()
    outbox.mark_starting("job", 1)
    outbox.on_stop_accepted("job", 1, 1_000)
    assert outbox.overdue_stops(1_000 + STOP_OVERDUE_NS - 1) == {}
    assert outbox.overdue_stops(1_000 + STOP_OVERDUE_NS) == {("job", 1): 1_000}
    outbox.record_report(Ended(7, "job", 1, 0.0, Ending.STOPPED, 143, ""), 2_000)
    assert outbox.overdue_stops(1_000 + STOP_OVERDUE_NS) == {}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_generation_starts_once_the_end_of_the_one_before_is_recorded(restarted: bool) -> None:
    """It may have been an exit 0 before the stop, which completes the job."""
    reconciler = Reconciler()
    running = {"job": _start("job", 6, "two", generation=2)}
    if restarted:  # the executor still holds the end
        reconciler.set_actual_state([_held("job", "one", GenerationPhase.ENDED)])
    else:
        reconciler.record_report(Ended(5, "job", 1, 0.0, Ending.DONE, 0, ""), 0)
    assert reconciler.actions(running, {}, 0) == []
    reconciler.on_end_recorded("job", 1, is_open=True)
    assert reconciler.actions(running, {}, 0) == [running["job"]]
