"""Times in the service's texts, in the local time of a command's user."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from shadowprice.cli.commands.follow import _event_line
from shadowprice.cli.live import format_time, with_local_times
from shadowprice.rest import Event


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("option", ["--by ", "--set by="])
@pytest.mark.parametrize(
    ("moment", "local"),
    [
        ("2026-10-24T23:59:59Z", "2026-10-25T01:59:59"),
        ("2026-10-25T00:30:00Z", "2026-10-25T02:30:00+02:00"),  # the clock shows 2:30 twice
        ("2026-10-25T01:30:00Z", "2026-10-25T02:30:00+01:00"),
        ("2026-10-25T02:00:00Z", "2026-10-25T03:00:00"),
        ("2026-03-29T01:30:00Z", "2026-03-29T03:30:00"),
    ],
)
def test_a_deadline_to_copy_is_the_moment_that_was_meant(
    option: str, moment: str, local: str
) -> None:
    assert with_local_times(f"x {option}{moment} (later)") == f"x {option}{local} (later)"
    assert datetime.fromisoformat(local).astimezone() == datetime.fromisoformat(moment)


def test_times_in_events_are_local() -> None:
    promise = "2026-10-24T23:59:59Z"
    data = {"promise": promise, "left": 2.0, "reason": "by 2026-07-01T10:00:00Z"}
    moment = datetime.fromisoformat("2026-07-01T10:30:00Z")
    line = _event_line(Event(kind="admitted", id=1, at=moment, job="a", job_id=1, data=data))
    assert "Z" not in line
    assert '  promise="' in line
    assert f'"{format_time(datetime.fromisoformat(promise))}"' in line
    assert line.startswith(format_time(moment))
