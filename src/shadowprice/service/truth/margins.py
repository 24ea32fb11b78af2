"""Delays of finished jobs against their plans, and the margin of promises that is learnt from them.

A policy plans with stated speeds and whole slots. Real jobs start late, run longer and give way to
others. The service therefore promises a completion later than the planned one, by a share of the
time from a job's arrival to its planned completion. The share is the 95 % quantile of what earlier
jobs needed, corrected for their number: of n measured shares, the one of rank ceil(0.95 (n + 1)).
If jobs behave like those before them, at least 95 % of the promises are kept: this is conformal
prediction (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005, chapter 2).
Delays come in bursts. So open jobs count as soon as their plans slip, and the quantile adapts: each
broken promise raises it, and each kept one lowers it a little, at least to 95 % (Gibbs and Candes,
Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021).

Plans and prices do not change.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
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

STEP: Final = 0.05
"""How far one promise moves the quantile: gamma of Gibbs and Candes."""

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


@dataclass(slots=True)
class _Delays:
    """What is known of a group.

    Parameters
    ----------
    newest : deque of float
        Delays of its newest finished jobs, in shares of their planned time.
    slipped : dict of str to float
        Delays so far of its open jobs whose plans complete later than first planned.
    given_up : float
        The share of promises that its quantile gives up now, at most that which it may: alpha of
        Gibbs and Candes.
    """

    newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))
    slipped: dict[str, float] = field(default_factory=dict)
    given_up: float = 1.0 - KEPT_SHARE

    def note(self, delay: float, *, is_broken: bool | None) -> None:
        """Record a delay, and whether the promise was broken; None if it had no learnt margin."""
        self.newest.append(delay)
        if is_broken is not None:
            moved = self.given_up + STEP * (1.0 - KEPT_SHARE - is_broken)
            self.given_up = min(1.0 - KEPT_SHARE, max(0.0, moved))

    def quantile(self) -> float:
        """Return the delay that the promises allow for."""
        known = sorted([*self.newest, *islice(reversed(self.slipped.values()), NEWEST)])
        rank = min(len(known), math.ceil((1.0 - self.given_up) * (len(known) + 1)))
        return known[rank - 1]


class Margins:
    """Delays of finished jobs, by tenant and family; the oldest are forgotten."""

    def __init__(self) -> None:
        self._groups: dict[_Group, _Delays] = {}

    def follow(self, view: JobView) -> None:
        """Record how much later than planned a job ended, or will end by its present plan."""
        if view.first_promise is None or view.arrival is None:
            return
        planned = view.first_promise - view.margin
        late = 0 if view.completion is None else max(0, view.completion - planned)
        delay = late / _slots(planned, view.arrival)
        for group in _groups(view.tenant, view.family):
            delays = self._groups.get(group)
            if delays is not None:
                delays.slipped.pop(view.name, None)
                if late and view.state.open:
                    delays.slipped[view.name] = delay
        if view.state is not State.FINISHED:
            return
        assert view.completion is not None
        is_broken = view.completion > view.first_promise if view.margin_jobs else None
        for group in _groups(view.tenant, view.family):
            self._groups.setdefault(group, _Delays()).note(delay, is_broken=is_broken)
        while len(self._groups) > MAX_GROUPS:
            del self._groups[next(iter(self._groups))]

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
            delays = self._groups.get(group)
            if delays is None or len(delays.newest) < (ENOUGH if group else FEWEST):
                continue
            slots = math.ceil(delays.quantile() * _slots(planned, arrival) - 1e-9)
            if until is not None:
                slots = min(slots, max(0, until - 1 - planned))
            return Margin(slots, len(delays.newest))
        return Margin()


def read_margins(connection: Connection, open_views: Iterable[JobView]) -> Margins:
    """Return the delays of open jobs, and of the newest finished ones that the store holds."""
    table, found = tables.jobs, Margins()
    rows = connection.execute(
        select(table.c.view)
        .where(table.c.state == State.FINISHED.value)
        .order_by(table.c.id.desc())
        .limit(STORED)
    ).scalars()
    views = [JobView.of_store(text) for text in rows]
    for view in (*sorted(views, key=lambda view: view.closed or 0), *open_views):
        found.follow(view)
    return found


def _slots(planned: int, arrival: int) -> int:
    return max(1, planned - arrival + 1)


def _groups(tenant: str | None, family: str | None) -> list[_Group]:
    """Return the groups of a job, the narrowest first; the empty one is all jobs."""
    groups: list[_Group] = [] if family is None else [(tenant, family)]
    return [*groups, (tenant,), ()]
