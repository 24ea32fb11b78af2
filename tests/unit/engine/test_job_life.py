"""The table of transitions of a job's life, and the invariants of the engine's state."""

from pathlib import Path
from typing import get_args

import pytest

from shadowprice.core.errors import PolicyError
from shadowprice.core.events import DriverEvent, JobsArrived, SlotBegan
from shadowprice.core.policy import Status
from shadowprice.engine.engine import HANDLERS
from shadowprice.engine.job_record import TRANSITIONS, JobRecord
from tests.support.scripted_policy import GOOD, commit, engine, on_arrival
from tests.support.workloads import make_cluster, make_job

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"


def test_every_event_has_a_handler() -> None:
    assert set(HANDLERS) == set(get_args(DriverEvent))


def test_a_closed_job_stays_as_it_is() -> None:
    assert not [before for before, _ in TRANSITIONS if not before.open]
    assert {after for _, after in TRANSITIONS} == set(Status) - {Status.ARRIVED}


def test_the_page_has_the_table_of_transitions() -> None:
    rows = [
        f"| {before.value} | {after.value} | {cause} |"
        for (before, after), cause in TRANSITIONS.items()
    ]
    assert "\n".join(rows) in PAGE.read_text("utf-8")


def test_a_transition_outside_the_table_is_refused() -> None:
    record = JobRecord(make_job(make_cluster()), 1, Status.QUEUED)
    record.check_transition(Status.ADMITTED)
    with pytest.raises(PolicyError, match="cannot become arrived, only admitted, refused"):
        record.check_transition(Status.ARRIVED)
    record.status = Status.FINISHED
    with pytest.raises(PolicyError, match="cannot become queued, only none"):
        record.check_transition(Status.QUEUED)


def test_a_state_that_contradicts_itself_fails_the_next_event() -> None:
    cluster = make_cluster()
    made = engine(on_arrival(commit(*GOOD)), cluster)
    made.handle(JobsArrived(0, (make_job(cluster),)))
    made.jobs["job"].status = Status.QUEUED
    with pytest.raises(AssertionError, match="queued"):
        made.handle(SlotBegan(0))
