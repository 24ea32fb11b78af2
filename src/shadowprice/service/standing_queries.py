"""Queries that the writer answers again after commits, as long as clients read the answers.

A decision can occupy the writer's thread for seconds. Readers get the cached answer meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, Generic, TypeVar

from shadowprice.service.state.durable_state import DurableState

Result = TypeVar("Result")

RENEWED_SECONDS: Final = 30.0  # an answer is renewed for this time after its last read
MAX_RENEWAL_SECONDS: Final = 0.05  # slower answers aren't renewed, because the next batch waits
MAX_RENEWAL_SHARE: Final = 0.1  # maximum share of the writer's time for renewals of an answer
MAX_READ_WAIT_SECONDS: Final = 0.02  # after which a reader gets the previous answer


@dataclass(frozen=True, slots=True)
class Answer(Generic[Result]):
    """A result about ``slots`` slots from ``next_slot`` on."""

    result: Result
    slots: int
    next_slot: int  # the first slot that could still be decided
    sequence: int  # number of the last event that the result includes
    computed_at: float  # monotonic time
    seconds: float  # duration of the computation


class StandingQuery(Generic[Result]):
    """A read-only query of the durable state about the coming slots, with its latest answer.

    ``compute`` returns the answer for a number of slots. It runs in the writer's thread, between
    two batches, one computation at a time. It covers the maximum number of slots that was read
    lately, so that alternating readers of more and fewer slots share an answer.
    """

    def __init__(self, compute: Callable[[DurableState, int], Result]) -> None:
        self._compute = compute
        self._slots = self._next_slot = 0  # of the next computation
        self._read_at = -RENEWED_SECONDS
        self._maximum_read_at = -RENEWED_SECONDS  # last read of at least `_slots` slots
        self._readers = 0  # that wait for the computation
        self.answer: Answer[Result] | None = None
        self.task: asyncio.Future[Answer[Result]] | None = None  # computation under way

    def is_current(self, slots: int, sequence: int, next_slot: int = 0) -> bool:
        """Return whether the answer covers these slots from the coming slot on, and all events."""
        answer = self.answer
        return (
            answer is not None
            and answer.slots >= slots
            and answer.next_slot >= next_slot
            and answer.sequence >= sequence
        )

    def note_read(self, slots: int, next_slot: int = 0) -> None:
        """Record a read of a number of slots from ``next_slot`` on."""
        now = self._read_at = monotonic()
        self._next_slot = next_slot  # smaller after the clock was set back
        if slots >= self._slots or now - self._maximum_read_at > RENEWED_SECONDS:
            self._slots, self._maximum_read_at = slots, now

    def is_renewed(self) -> bool:
        """Return whether to compute the answer again after a commit."""
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
        """Let readers share a computation until it is done."""
        self.task = task
        task.add_done_callback(self._on_done)
        return task

    async def wait(
        self, task: asyncio.Future[Answer[Result]], timeout: float | None
    ) -> Answer[Result] | None:
        """Return the answer of a shared computation; None after the timeout, in seconds."""
        self._readers += 1
        try:
            await asyncio.wait({task}, timeout=timeout)
        finally:
            self._readers -= 1
            # Cancelled with its last reader, unless the reader has a previous answer.
            if not self._readers and not task.done() and timeout is None:
                task.cancel()
        return task.result() if task.done() else None

    def _on_done(self, task: asyncio.Future[Answer[Result]]) -> None:
        if self.task is task:
            self.task = None
        if not task.cancelled():
            task.exception()  # asyncio would log it as never retrieved
