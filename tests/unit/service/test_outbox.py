"""What the runner remembers of what it was told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shadowprice.executors.contract import Ended, Ending
from shadowprice.service.running.outbox import FIRST_DELAY, Outbox


def test_an_end_that_is_told_again_delays_its_job_no_longer() -> None:
    outbox = Outbox()
    running: Any = {"one": None}  # whatever its order is
    end = Ended(0, "one", 1, 0.0, Ending.FAILED, 1, "why")
    for _ in range(5):
        outbox.heard(end, 0)
    assert outbox.next_moment(running) == FIRST_DELAY
    outbox.heard(replace(end, generation=2), 0)
    assert outbox.next_moment(running) == 2 * FIRST_DELAY
    outbox.closed("one")
    assert outbox.next_moment(running) is None
