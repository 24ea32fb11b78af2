"""Contributions of single jobs to price constants, cached for similar job sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from shadowprice.core.arrays import Floats
from shadowprice.core.cluster import Amounts


class PriceContribution(NamedTuple):
    """Contribution of one job to the constants of a pool."""

    ln_upper: Floats  # ln of its best utility for a share of each resource; -inf if not needed
    ln_best: float  # of its largest utility
    ln_worst: float  # of its smallest positive utility
    ln_use: float
    """Ln of the shares that it uses over all of its worker-slots. Infinite if no server of the pool
    has the resources; the job then contributes nothing."""
    slots: int  # those worker-slots
    window: int  # slots in which it could run
    demand: Amounts  # of one worker (or parameter server)
    shares: Floats  # that demand in shares
    ln_first: float
    """Ln of its utility in the first slot in which it could complete, a slot before ``ln_best``'s.
    It replaces ``ln_best`` where that is 0 for all jobs."""
    ln_upper_first: Floats  # as ``ln_upper``, of that utility


Contributions = dict[tuple[object, ...], dict[int, PriceContribution | None]]
"""Contributions of the jobs of a set, by kind of learner and position of the job."""


class ContributionCache:
    """Cache for learners that process the same job set repeatedly with one job changed.

    Caches of one job set can share ``contributions``.
    """

    def __init__(self, position: int, contributions: Contributions | None = None) -> None:
        self.position = position  # of the job that changes
        self.contributions: Contributions = {} if contributions is None else contributions
        # Learners of the jobs before and after the position, by kind.
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
