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

from collections.abc import Iterator
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


def calendar(rounds: int, longest: int) -> Iterator[Round]:
    """Yield all rounds in order, without end.

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
    if rounds < 1 or longest < 2:
        raise InputError("Astraea needs lambda of at least 1 and a horizon of at least 2 slots")
    batch, start = 1, 2 * rounds
    while True:
        doubling = 1 << batch <= longest
        length = 1 << min(batch, longest.bit_length() - 1)
        collected = (1 << batch) - 1 if doubling else start
        for number in range(rounds):
            yield Round(batch, number, start, start + length, collected)
            start += length
        batch += 1
