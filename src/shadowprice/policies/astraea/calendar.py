"""When jobs are collected and when they run: the geometric intervals of Algorithm 1.

The paper counts slots from 1 and cuts time at tau_0 = 1, tau_1 = 2, tau_2 = 4, ... (Section 4.2
prints ``tau_l = 2^(l-1)`` beside these values; the values, and the example, say ``2^l``). Batch
``l`` collects the arrivals r in [tau_{l-1}, tau_l), is decided at time tau_l and runs in
(lambda tau_l, lambda tau_{l+1}], as lambda rounds of tau_l slots (Algorithm 2, line 4; the input
line of Algorithm 3 prints another interval, which would overlap the next batch).

Our slots count from 0: arrival slot ``a`` is the paper's ``r = a + 1``, and the instant tau_l is
the beginning of our slot tau_l. Batches and rounds follow each other without gap or overlap.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    batch: int
    number: int
    start: int
    end: int


def batch_of(arrival: int) -> int:
    """Return the batch that collects an arrival slot: l with tau_{l-1} <= arrival + 1 < tau_l."""
    return (arrival + 1).bit_length()


def decision_slot(batch: int) -> int:
    """Return the slot at whose beginning a batch is decided: tau_l."""
    return 1 << batch


def rounds_of(batch: int, rounds: int) -> tuple[Round, ...]:
    """Return the rounds of a batch.

    Parameters
    ----------
    batch : int
        The batch, from 1.
    rounds : int
        Rounds in a batch, the paper's lambda, at least 1.
    """
    length = 1 << batch
    return tuple(
        Round(batch, number, (rounds + number) * length, (rounds + number + 1) * length)
        for number in range(rounds)
    )
