"""How much later than planned jobs end, and the margin that promises have for it.

A policy plans with stated speeds and whole slots. Real jobs start late, run longer and give way to
others. The service therefore promises a completion later than the planned one, by a share of the
time from a job's arrival to its planned completion. The share is the 95 % quantile of what earlier
jobs needed, corrected for their number: of n measured shares, the one of rank ceil(0.95 (n + 1)).
If jobs behave like those before them, at least 95 % of the promises are kept (Vovk, Gammerman and
Shafer, Algorithmic Learning in a Random World, section 2.2). Plans and prices do not change.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, select

from shadowprice.service.store import tables
from shadowprice.service.truth.views import JobView, State

KEPT_SHARE: Final = 0.95
"""Share of promises that a margin has to keep."""

NEWEST: Final = 200
"""Newest finished jobs of a group that a margin is taken from."""

STORED: Final = 1_000
"""Newest finished jobs that are read back when the service starts."""

MAX_GROUPS: Final = 10_000
"""Groups that are remembered; beyond, the one that was added first is forgotten."""

ENOUGH: Final = 19
"""Finished jobs from which on a rank below the largest keeps the share."""

FEWEST: Final = 3
"""Finished jobs from which on all jobs together have a margin."""

_Group = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Margin:
    """Slots between a planned completion and the promise.

    Parameters
    ----------
    slots : int
        How many.
    jobs : int
        Finished jobs that it was taken from, 0 if there are too few.
    """

    slots: int = 0
    jobs: int = 0


class Margins:
    """Delays of finished jobs, by tenant and family; the oldest are forgotten."""

    def __init__(self) -> None:
        self._delays: dict[_Group, deque[float]] = {}

    def note(self, view: JobView) -> None:
        """Record how much later than planned a finished job ended."""
        if view.first_promise is None or view.completion is None or view.arrival is None:
            return
        planned = view.first_promise - view.margin
        delay = max(0, view.completion - planned) / _slots(planned, view.arrival)
        for group in _groups(view.tenant, view.family):
            delays = self._delays.get(group)
            if delays is None:
                delays = self._delays[group] = deque(maxlen=NEWEST)
            delays.append(delay)
        while len(self._delays) > MAX_GROUPS:
            del self._delays[next(iter(self._delays))]

    def margin(
        self,
        tenant: str | None,
        family: str | None,
        planned: int,
        arrival: int,
        until: int | None = None,
    ) -> Margin:
        """Return the margin of a job.

        The narrowest group decides that has enough finished jobs: those of its tenant and family,
        those of its tenant, or all.

        Parameters
        ----------
        tenant, family : str or None
            Of the job.
        planned : int
            The slot in which its plan completes it.
        arrival : int
            Its arrival slot.
        until : int, optional
            First slot in which nothing may run: no promise reaches past it.
        """
        for group in _groups(tenant, family):
            delays = self._delays.get(group, ())
            if len(delays) < (ENOUGH if group else FEWEST):
                continue
            rank = min(len(delays), math.ceil(KEPT_SHARE * (len(delays) + 1)))
            slots = math.ceil(sorted(delays)[rank - 1] * _slots(planned, arrival) - 1e-9)
            if until is not None:
                slots = min(slots, max(0, until - 1 - planned))
            return Margin(slots, len(delays))
        return Margin()


def read_margins(connection: Connection) -> Margins:
    """Return the delays of the newest finished jobs that the store holds."""
    table, found = tables.jobs, Margins()
    rows = connection.execute(
        select(table.c.view)
        .where(table.c.state == State.FINISHED.value)
        .order_by(table.c.id.desc())
        .limit(STORED)
    ).scalars()
    views = [JobView.of_store(text) for text in rows]
    for view in sorted(views, key=lambda view: view.closed or 0):
        found.note(view)
    return found


def _slots(planned: int, arrival: int) -> int:
    return max(1, planned - arrival + 1)


def _groups(tenant: str | None, family: str | None) -> list[_Group]:
    """Return the groups of a job, the narrowest first; the empty one is all jobs."""
    groups: list[_Group] = [] if family is None else [(tenant, family)]
    return [*groups, (tenant,), ()]
