"""Queries whose answers the writer renews after commits while clients read them.

A decision can take the writer's thread for seconds. Readers of a cached answer don't wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, Generic, TypeVar

from shadowprice.service.state.durable_state import DurableState

Result = TypeVar("Result")

RENEWED_SECONDS: Final = 30.0  # after the last read in which an answer is renewed
MAX_RENEWAL_SECONDS: Final = 0.05  # slower answers aren't renewed: the next batch waits for them
MAX_RENEWAL_SHARE: Final = 0.1  # limit of the writer's time that renewals take
MAX_READ_WAIT_SECONDS: Final = 0.02  # then a reader gets the previous answer


@dataclass(frozen=True, slots=True)
class Answer(Generic[Result]):
    """A result about a number of slots from one on."""

    result: Result
    slots: int
    next_slot: int  # the first slot that could still be decided
    sequence: int  # number of the last event that the result includes
    computed_at: float
    seconds: float


class StandingQuery(Generic[Result]):
    """A read-only query of the durable state about the coming slots, with its latest answer.

    ``compute`` returns the answer for a number of slots; it runs in the writer's thread, between
    two batches. Readers of fewer slots share the answer of the most slots that were read lately, so
    that alternating readers cause one computation. There is one computation at a time.
    """

    def __init__(self, compute: Callable[[DurableState, int], Result]) -> None:
        self._compute = compute
        self._slots = self._next_slot = 0
        self._most_read_at = self._read_at = -RENEWED_SECONDS
        self._readers = 0
        self.answer: Answer[Result] | None = None
        self.task: asyncio.Future[Answer[Result]] | None = None  # computation under way

    def is_current(self, slots: int, sequence: int, next_slot: int = 0) -> bool:
        """Return whether the answer covers these slots, the coming one, and the last event."""
        answer = self.answer
        return (
            answer is not None
            and answer.slots >= slots
            and answer.next_slot >= next_slot
            and answer.sequence >= sequence
        )

    def note_read(self, slots: int, next_slot: int = 0) -> None:
        """Record a read of this many slots from the coming one on."""
        now = self._read_at = monotonic()
        self._next_slot = next_slot  # smaller after the clock was set back
        if slots >= self._slots or now - self._most_read_at > RENEWED_SECONDS:
            self._slots, self._most_read_at = slots, now

    def is_renewed(self) -> bool:
        """Return whether the answer should be computed again now, after a commit."""
        answer, now = self.answer, monotonic()
        return (
            answer is not None
            and self.task is None
            and now - self._read_at <= RENEWED_SECONDS
            and answer.seconds <= MAX_RENEWAL_SECONDS
            and answer.seconds <= MAX_RENEWAL_SHARE * (now - answer.computed_at)
        )

    def compute(self, state: DurableState) -> Answer[Result]:
        """Compute the answer, and cache it; runs in the writer's thread."""
        slots, next_slot, started = self._slots, self._next_slot, monotonic()
        result = self._compute(state, slots)
        ended = monotonic()
        self.answer = Answer(
            result, slots, next_slot, state.engine.sequence, ended, ended - started
        )
        return self.answer

    def begin(self, task: asyncio.Future[Answer[Result]]) -> asyncio.Future[Answer[Result]]:
        """Share a computation with readers until it is done."""
        self.task = task
        task.add_done_callback(self._on_done)
        return task

    async def wait(
        self, task: asyncio.Future[Answer[Result]], timeout: float | None
    ) -> Answer[Result] | None:
        """Return the answer of a shared computation; None after the timeout."""
        self._readers += 1
        try:
            await asyncio.wait({task}, timeout=timeout)
        finally:
            self._readers -= 1
            if not self._readers and not task.done() and timeout is None:
                task.cancel()
        return task.result() if task.done() else None

    def _on_done(self, task: asyncio.Future[Answer[Result]]) -> None:
        if self.task is task:
            self.task = None
        if not task.cancelled():
            task.exception()  # retrieved, because its readers may have left
