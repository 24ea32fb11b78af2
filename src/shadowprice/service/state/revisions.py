"""Revisions: whether an owner asks for more than before.

A revision that asks for more is an admission at current prices; another one only takes effect.
"""

from __future__ import annotations

import numpy as np

from shadowprice.core.cluster import Amounts
from shadowprice.core.job import Job


def asks_for_more(before: Job, after: Job, *, horizon: int) -> bool:
    """Return whether a revised job asks for more: work, resources, time or utility.

    The descriptions have one arrival. Utilities are compared in ``horizon`` slots from it on.
    """
    return (
        raises_terms(before, after, horizon=horizon)
        or not np.array_equal(before.worker_counts, after.worker_counts)
        or bool((after.ps_counts > before.ps_counts).any())
        or after.restart > before.restart
        or _is_slower(before, after)
    )


def raises_terms(before: Job, after: Job, *, horizon: int) -> bool:
    """Return whether a process needs more, or a completion slot has a higher utility."""
    slots = np.arange(horizon, dtype=np.float64)
    return (
        _needs_more(before.worker, after.worker)
        or _needs_more(before.ps, after.ps)
        or bool((after.utility.values(slots) > before.utility.values(slots)).any())
    )


def _needs_more(before: Amounts | None, after: Amounts | None) -> bool:
    if after is None or before is None:
        return after is not None
    return bool((after > before).any())


def _is_slower(before: Job, after: Job) -> bool:
    """Return whether a slot does a smaller part of the work with the same worker count."""
    for old, new in ((before.gains, after.gains), (before.internal_gains, after.internal_gains)):
        pairs = zip(old.tolist(), new.tolist(), strict=True)
        if any(gain * after.required > faster * before.required for gain, faster in pairs):
            return True
    return False
