"""Contributions of single jobs to price constants, cached for similar job sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Amounts

Floats = NDArray[np.float64]


class PriceContribution(NamedTuple):
    """Contribution of one job to the constants of a pool.

    Attributes
    ----------
    ln_upper : ndarray of float64, shape (resources,)
        ln of its best utility for a share of each resource; -inf for resources it doesn't need.
    ln_best, ln_worst : float
        ln of its largest, and of its smallest positive utility.
    ln_use : float
        ln of the shares that it uses over all of its worker-slots. ``inf`` if no server of the pool
        has the resources; the job then contributes nothing.
    slots : int
        Those worker-slots.
    window : int
        Slots in which it could run.
    demand : ndarray of int64, shape (resources,)
        Demand of one worker (or parameter server).
    shares : ndarray of float64, shape (resources,)
        That demand in shares.
    """

    ln_upper: Floats
    ln_best: float
    ln_worst: float
    ln_use: float
    slots: int
    window: int
    demand: Amounts
    shares: Floats


Measures = dict[tuple[object, ...], dict[int, PriceContribution | None]]
"""Contributions of the jobs of a set, by kind of learner and position of the job."""


class ContributionCache:
    """Cache for learners that process the same job set repeatedly with one job changed.

    Parameters
    ----------
    position : int
        Position of the job that changes.
    measures : dict, optional
        Contributions of the unchanged jobs, by kind of learner and position. Caches of one job set
        can share it.

    Attributes
    ----------
    around : dict
        Learners of the jobs before and after the position, by kind of learner.
    """

    def __init__(self, position: int, measures: Measures | None = None) -> None:
        self.position = position
        self.measures: Measures = {} if measures is None else measures
        self.around: dict[tuple[object, ...], tuple[Any, Any]] = {}


_REMEMBERED: Final[ContextVar[ContributionCache | None]] = ContextVar("remembered", default=None)


def active_cache() -> ContributionCache | None:
    """Return the cache in use, None if there is none."""
    return _REMEMBERED.get()


@contextmanager
def use_cache(others: ContributionCache) -> Iterator[None]:
    """Use a cache within the block; job sets may differ at the cache's position only."""
    token = _REMEMBERED.set(others)
    try:
        yield
    finally:
        _REMEMBERED.reset(token)
