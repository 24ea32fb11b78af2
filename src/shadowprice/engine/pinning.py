"""Pinned generations: they must not be stopped, because a stop would lose all their work.

A generation is pinned if its job can't resume from saved progress, or if the generation hasn't made
progress yet that could be saved. Only a lost or drained server, a cancellation or the end of the
timespan stops it. So every stop by a policy follows saved progress, and the work of a job bounds
the number of its stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shadowprice.core.events import Decision, Pause, Place

if TYPE_CHECKING:
    from shadowprice.engine.decisions import Decider


def without_stops(engine: Decider, decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield a reactive policy's decisions, except those that stop pinned jobs.

    If a placement no longer fits beside a pinned job, it is left out too. Its job keeps the present
    placement, or waits. The policy then resyncs with the state, as after a change of servers, and
    decides about these jobs again.
    """
    vetoed = False
    for decision in decisions:
        if isinstance(decision, Place | Pause):
            placement = decision.placement if isinstance(decision, Place) else None
            if engine.pinned(decision.job) and placement != engine.running[decision.job]:
                vetoed = True
                continue
            if (
                vetoed
                and placement is not None
                and not engine.has_capacity(decision.job, placement)
            ):
                continue
        yield decision
    if vetoed:
        engine.resync_policy()
