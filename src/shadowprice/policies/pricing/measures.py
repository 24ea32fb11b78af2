"""What one job adds to the constants of prices, remembered where many learners are taught it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
        ln of the shares that it uses over all of its worker-slots.
    slots : int
        Those worker-slots.
    window : int
        Slots in which it could run.
    shares : ndarray of float64, shape (resources,)
        What one worker (or parameter server) asks for.
    """

    ln_upper: Floats
    ln_best: float
    ln_worst: float
    ln_use: float
    slots: int
    window: int
    shares: Floats


Measures = dict[tuple[object, ...], Measure | None]
"""What jobs add, by job and by what a learner prices; None where a job adds nothing."""

_REMEMBERED: Final[ContextVar[Measures | None]] = ContextVar("measures", default=None)


def remembered_measures() -> Measures | None:
    """Return where measures are remembered now, None where they are not."""
    return _REMEMBERED.get()


@contextmanager
def remembered(measures: Measures) -> Iterator[None]:
    """Remember what each job adds, for learners that are taught nearly the same jobs many times.

    Parameters
    ----------
    measures : dict
        Where to; it keeps the jobs alive.
    """
    token = _REMEMBERED.set(measures)
    try:
        yield
    finally:
        _REMEMBERED.reset(token)
