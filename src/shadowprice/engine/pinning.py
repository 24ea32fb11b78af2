"""Generations that must not be stopped, because stopping them would lose all that they did.

A generation is pinned if its job cannot continue from saved progress, or if it has made no
progress yet that could be saved. Only a lost or drained server, a cancellation or the end of the
timespan stops it. So every stop that a policy causes follows progress that was saved, and the
number of stops of a job is bounded by its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shadowprice.core.events import Decision, Pause, Place

if TYPE_CHECKING:
    from shadowprice.engine.decisions import Decider


def without_stops(engine: Decider, decisions: Iterable[Decision]) -> Iterator[Decision]:
    """Yield the decisions of a policy that places slot by slot, less those that stop pinned jobs.

    A placement that no longer fits beside a pinned job is left out too: its job keeps the placement
    that it has, or waits. The policy then resyncs with the state, as after a change of servers, and
    so decides about these jobs again.
    """
    vetoed = False
    for decision in decisions:
        if isinstance(decision, Place | Pause):
            wanted = decision.placement if isinstance(decision, Place) else None
            if engine.pinned(decision.job) and wanted != engine.running[decision.job]:
                vetoed = True
                continue
            if vetoed and wanted is not None and not engine.has_capacity(decision.job, wanted):
                continue
        yield decision
    if vetoed:
        engine.resync_policy()
