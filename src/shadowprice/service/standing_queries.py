"""Queries whose answers the writer renews after each commit while clients read them.

A decision can keep the writer's thread for seconds. Readers of a renewed answer don't wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Generic, TypeVar

from shadowprice.service.state.durable_engine import DurableEngine

log = logging.getLogger("shadowprice.service")

Result = TypeVar("Result")

RENEWED_SECONDS: Final = 30.0
"""Time after the last read in which an answer is renewed; pages read every few seconds."""

MAX_ANSWERS: Final = 4
"""Numbers of slots whose answers are kept; other ones are computed when they are read."""

MAX_RENEWAL_SHARE: Final = 0.1
"""Limit of the writer's time that renewals take. Above it, a reader starts the computation."""


MAX_READ_WAIT_SECONDS: Final = 0.02
"""Time after which a reader gets the previous answer, because the writer is deciding."""


@dataclass(slots=True)
class Answer(Generic[Result]):
    """A result, and the number of the last event that it includes."""

    result: Result
    sequence: int
    read_at: float


@dataclass(slots=True)
class StandingQuery(Generic[Result]):
    """A read-only query of the durable state about the coming slots.

    Parameters
    ----------
    compute : callable
        Returns the answer for a number of slots; runs in the writer's thread, between two batches.
    """

    compute: Callable[[DurableEngine, int], Result]
    tasks: dict[int, asyncio.Task[Result]] = field(default_factory=dict)
    """Computations under way by number of slots, which concurrent readers share."""
    _answers: dict[int, Answer[Result]] = field(default_factory=dict)
    _next_renewal: float = 0.0

    def kept(self, slots: int) -> Answer[Result] | None:
        """Return the kept answer for a reader."""
        answer = self._answers.get(slots)
        if answer is not None:
            answer.read_at = monotonic()
        return answer

    def answer(self, truth: DurableEngine, slots: int) -> Result:
        """Compute an answer and keep it; runs in the writer's thread."""
        while len(self._answers) >= MAX_ANSWERS and slots not in self._answers:
            oldest = min(list(self._answers.items()), key=lambda item: item[1].read_at)[0]
            self._answers.pop(oldest, None)
        return self._keep(truth, slots, monotonic())

    def on_answered(self, slots: int, task: asyncio.Task[Result]) -> None:
        """Forget a computation; its readers may have left."""
        del self.tasks[slots]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio doesn't log it

    def cancel(self) -> None:
        """Cancel the computations under way."""
        for task in self.tasks.values():
            task.cancel()

    def renew(self, truth: DurableEngine) -> None:
        """Compute the answers again that were read lately; runs in the writer's thread."""
        started = monotonic()
        if started < self._next_renewal:
            return
        for slots, answer in list(self._answers.items()):
            if started - answer.read_at > RENEWED_SECONDS:
                self._answers.pop(slots, None)
                continue
            try:
                self._keep(truth, slots, answer.read_at)
            except Exception:  # the commit succeeded; the next reader gets the error
                log.exception("failed to renew an answer about %d slots", slots)
                self._answers.pop(slots, None)
        ended = monotonic()
        self._next_renewal = ended + (ended - started) / MAX_RENEWAL_SHARE

    def _keep(self, truth: DurableEngine, slots: int, read_at: float) -> Result:
        result = self.compute(truth, slots)
        self._answers[slots] = Answer(result, truth.engine.sequence, read_at)
        return result
