"""Batches and rounds: the geometric intervals of Algorithm 1.

The paper counts slots from 1 and divides time at tau_0 = 1, tau_1 = 2, tau_2 = 4, ... (Section 4.2
prints ``tau_l = 2^(l-1)`` beside these values, but the values and the example are ``2^l``). Batch
``l`` collects the arrivals r in [tau_{l-1}, tau_l) and is decided at time tau_l. It runs in (lambda
tau_l, lambda tau_{l+1}], as lambda rounds of tau_l slots (Algorithm 2, line 4). The input line of
Algorithm 3 prints another interval, which would overlap the next batch.

Slots here count from 0: arrival slot ``a`` is the paper's ``r = a + 1``, and the instant tau_l is
the start of slot tau_l. Batches and rounds are contiguous and don't overlap.

Intervals double while a round fits the planner's horizon. Then rounds keep the last length, and a
batch collects the jobs that arrived before it starts.

A live service has no first slot from which intervals could double. Its rounds begin on demand, see
`RoundPolicy`.
"""

from __future__ import annotations

from dataclasses import dataclass

from shadowprice.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a batch, in slots ``[start, end)``."""

    batch: int  # number of the batch, from 1
    number: int  # position among the rounds of its batch, from 0
    start: int
    end: int
    collected: int  # its batch collects the unscheduled jobs that arrived before this slot


class RoundCalendar:
    """Endless iterator over all rounds, in order.

    A batch has ``rounds`` rounds, the paper's lambda, of at most ``longest`` slots. Raises
    `InputError` if lambda is below 1 or ``longest`` below 2.
    """

    def __init__(self, rounds: int, longest: int) -> None:
        if rounds < 1 or longest < 2:
            raise InputError("Astraea needs lambda of at least 1 and a horizon of at least 2 slots")
        self._rounds, self._longest = rounds, longest
        self._batch, self._number, self._start = 1, 0, 2 * rounds
        self._collected = self._collects()

    def __iter__(self) -> RoundCalendar:
        return self

    def __next__(self) -> Round:
        length = 1 << min(self._batch, self._longest.bit_length() - 1)
        end = self._start + length
        current = Round(self._batch, self._number, self._start, end, self._collected)
        self._start, self._number = end, self._number + 1
        if self._number == self._rounds:
            self._batch, self._number = self._batch + 1, 0
            self._collected = self._collects()
        return current

    def _collects(self) -> int:
        """Return the slot before which jobs must arrive to join the batch that starts now."""
        return (1 << self._batch) - 1 if 1 << self._batch <= self._longest else self._start
