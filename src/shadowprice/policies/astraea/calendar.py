"""When jobs are collected and when they run: the geometric intervals of Algorithm 1.

The paper counts slots from 1 and cuts time at tau_0 = 1, tau_1 = 2, tau_2 = 4, ... (Section 4.2
prints ``tau_l = 2^(l-1)`` beside these values; the values, and the example, say ``2^l``). Batch
``l`` collects the arrivals r in [tau_{l-1}, tau_l), is decided at time tau_l and runs in
(lambda tau_l, lambda tau_{l+1}], as lambda rounds of tau_l slots (Algorithm 2, line 4; the input
line of Algorithm 3 prints another interval, which would overlap the next batch).

Our slots count from 0: arrival slot ``a`` is the paper's ``r = a + 1``, and the instant tau_l is
the beginning of our slot tau_l. Batches and rounds follow each other without gap or overlap.

Intervals double as long as a round fits the planner's horizon; from then on rounds keep the last
length, and a batch collects whatever arrived before it begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from shadowprice.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a batch.

    Parameters
    ----------
    batch : int
        The batch, from 1.
    number : int
        Position among the rounds of its batch, from 0.
    start, end : int
        It runs in slots ``[start, end)``.
    collected : int
        Its batch collects what arrived before this slot and has not been scheduled.
    """

    batch: int
    number: int
    start: int
    end: int
    collected: int


class Calendar:
    """All rounds in order, without end.

    Parameters
    ----------
    rounds : int
        Rounds in a batch, the paper's lambda, at least 1.
    longest : int
        Most slots of a round, at least 2.

    Raises
    ------
    InputError
        If there is no room for the first batch's rounds of two slots.
    """

    def __init__(self, rounds: int, longest: int) -> None:
        if rounds < 1 or longest < 2:
            raise InputError("Astraea needs lambda of at least 1 and a horizon of at least 2 slots")
        self._rounds, self._longest = rounds, longest
        self._batch, self._number, self._start = 1, 0, 2 * rounds
        self._collected = self._collects()

    def __iter__(self) -> Calendar:
        return self

    def __next__(self) -> Round:
        length = 1 << min(self._batch, self._longest.bit_length() - 1)
        end = self._start + length
        turn = Round(self._batch, self._number, self._start, end, self._collected)
        self._start, self._number = end, self._number + 1
        if self._number == self._rounds:
            self._batch, self._number = self._batch + 1, 0
            self._collected = self._collects()
        return turn

    def _collects(self) -> int:
        """Return the slot before which the batch that begins now collects."""
        return (1 << self._batch) - 1 if 1 << self._batch <= self._longest else self._start
