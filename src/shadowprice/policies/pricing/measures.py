"""What one job adds to the constants of prices, remembered where many learners are taught it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Amounts

Floats = NDArray[np.float64]


class Measure(NamedTuple):
    """What one job adds to the constants of a pool.

    Attributes
    ----------
    ln_upper : ndarray of float64, shape (resources,)
        ln of its utility at best for a share of each resource; -inf for what it asks nothing of.
    ln_best, ln_worst : float
        ln of its largest, and of its smallest positive utility.
    ln_use : float
        ln of the shares that it uses over all of its worker-slots; ``inf`` where no server of the
        pool has anything that it asks for, and it adds nothing.
    slots : int
        Those worker-slots.
    window : int
        Slots in which it could run.
    demand : ndarray of int64, shape (resources,)
        What one worker (or parameter server) asks for.
    shares : ndarray of float64, shape (resources,)
        The same in shares.
    """

    ln_upper: Floats
    ln_best: float
    ln_worst: float
    ln_use: float
    slots: int
    window: int
    demand: Amounts
    shares: Floats


Measures = dict[tuple[object, ...], dict[int, Measure | None]]
"""What each job of a set adds, by what a learner prices and position."""


class Remembered:
    """What learners of constants remember that are taught the same jobs again, but for one.

    Parameters
    ----------
    position : int
        Position of the job that changes.
    measures : dict, optional
        What each job as it is adds, by what a learner prices and position: shared by memories of
        one job set that differ in which job changes.

    Attributes
    ----------
    around : dict
        What the jobs before and behind it taught, by what a learner prices.
    """

    def __init__(self, position: int, measures: Measures | None = None) -> None:
        self.position = position
        self.measures: Measures = {} if measures is None else measures
        self.around: dict[tuple[object, ...], tuple[Any, Any]] = {}


_REMEMBERED: Final[ContextVar[Remembered | None]] = ContextVar("remembered", default=None)


def what_is_remembered() -> Remembered | None:
    """Return what is remembered now, None where nothing is."""
    return _REMEMBERED.get()


@contextmanager
def remembered(others: Remembered) -> Iterator[None]:
    """Let learners that are taught a whole job set take what does not change from a memory.

    Parameters
    ----------
    others : Remembered
        The memory: of job sets that differ in the job at its position only.
    """
    token = _REMEMBERED.set(others)
    try:
        yield
    finally:
        _REMEMBERED.reset(token)
