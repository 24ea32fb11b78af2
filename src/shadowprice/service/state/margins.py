"""Promise margins, learnt from the delays of jobs against their plans.

A policy plans with stated speeds and whole slots. Real jobs start late, run longer and yield to
other jobs. So the service promises a completion later than the policy plans or promises, which is
the *planned completion* below. The relative margin is this difference divided by the time from a
job's arrival to its planned completion.

The goal is that 95 % of the promises are kept. The relative margin is the 97 % quantile of earlier
relative delays, with a correction: of n delays, the delay of rank ceil(0.97 (n + 1)). If jobs
behave like earlier jobs, at least 97 % of the promises are kept. This is conformal
prediction (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005, chapter 2).

Delays come in bursts. So open jobs count as soon as their plans slip, and the level of the quantile
adapts. Each broken promise raises the level, and each kept promise lowers it a little, never below
97 %: Gibbs and Candes, Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021.

A tenant's own jobs determine its margin. A tenant with too few jobs takes the median of the other
tenants' margins. So no single tenant can move the promises of others far.

Margins change neither plans nor prices.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from statistics import median_low
from typing import Final

from sqlalchemy import Connection, select

from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.store import tables

QUANTILE_LEVEL: Final = 0.97
"""Fraction of promises that the quantile is set to keep, so that at least 95 % are kept.

A promise made early in a burst of delays can't allow for the delays that follow. With 0.95 here,
94.2 to 94.7 % were kept in the runs of docs/experiments/live-errors.md.
"""

MAX_DELAYS_PER_GROUP: Final = 200  # newest finished jobs of a group that determine its margin
RECOVERED_JOBS: Final = 2_000  # read by recovery, but at least `MIN_GROUP_JOBS` of each tenant
MAX_TENANTS: Final = 1_000  # the tenant whose job finished longest ago is dropped first
MAX_TENANT_GROUPS: Final = 100  # of one tenant, so that its groups displace no other tenant's
MIN_GROUP_JOBS: Final = 19  # the longest of 19 delays is expected to cover 95 % of jobs

MIN_TENANT_JOBS: Final = 3
"""Minimum finished jobs for a tenant's own margin, if no group has `MIN_GROUP_JOBS`.

With so few jobs, the quantile is the longest delay.
"""

MIN_TENANTS: Final = 3  # for a median: with fewer, a single tenant would determine it
QUANTILE_STEP: Final = 0.05  # step of the quantile level per promise: gamma of Gibbs and Candes

_Group = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Margin:
    """Slots from planned completion to promise, and the number of finished jobs behind them."""

    slots: int = 0
    jobs: int = 0


@dataclass(slots=True)
class _Delays:
    """Relative delays of a group of jobs.

    ``slipped`` has the current delays of open jobs that complete later than first planned, by name.
    ``miss_fraction`` is the fraction of promises that the quantile allows to break, at most ``1 -
    QUANTILE_LEVEL``: alpha of Gibbs and Candes.
    """

    newest: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DELAYS_PER_GROUP))
    slipped: dict[str, float] = field(default_factory=dict)
    miss_fraction: float = 1.0 - QUANTILE_LEVEL
    _quantile: float | None = None

    def record_open_delay(self, name: str, delay: float | None) -> None:
        """Record the current delay of an open job; None if its plan isn't late."""
        self._quantile = None
        self.slipped.pop(name, None)
        if delay is not None:
            self.slipped[name] = delay

    def record_finished(self, delay: float, *, is_broken: bool | None) -> None:
        """Record a finished job's delay; ``is_broken`` is None without a learnt margin."""
        self._quantile = None
        self.newest.append(delay)
        if is_broken is not None:
            moved = self.miss_fraction + QUANTILE_STEP * (1.0 - QUANTILE_LEVEL - is_broken)
            self.miss_fraction = min(1.0 - QUANTILE_LEVEL, max(0.0, moved))

    def quantile(self) -> float:
        """Return the relative delay that promises allow for."""
        if self._quantile is None:
            delays = sorted(
                [*self.newest, *islice(reversed(self.slipped.values()), MAX_DELAYS_PER_GROUP)]
            )
            rank = min(len(delays), math.ceil((1.0 - self.miss_fraction) * (len(delays) + 1)))
            self._quantile = delays[rank - 1]
        return self._quantile


class Margins:
    """Delays of jobs by tenant and family, in the order of their ends; the oldest are dropped."""

    def __init__(self, views: Iterable[JobView] = ()) -> None:
        self._tenants: dict[str | None, dict[_Group, _Delays]] = {}
        for view in views:
            self.follow(view)

    def follow(self, view: JobView) -> None:
        """Record a job's delay at its end, or of its current plan while it is open."""
        if view.first_promise is None or view.arrival is None:
            return
        planned = view.first_promise - view.margin
        late = 0 if view.completion is None else max(0, view.completion - planned)
        delay = late / _slots(planned, view.arrival)
        groups = self._tenants.get(view.tenant, {})
        for group in _groups(view.tenant, view.family):
            delays = groups.get(group)
            if delays is not None:
                delays.record_open_delay(view.key, delay if late and view.state.open else None)
        if view.state is not State.FINISHED:
            return
        assert view.completion is not None
        is_broken = view.completion > view.first_promise if view.margin_jobs else None
        # Tenants and groups are ordered by their newest end, so that the oldest are dropped first.
        self._tenants[view.tenant] = self._tenants.pop(view.tenant, groups)
        for group in _groups(view.tenant, view.family):
            delays = groups[group] = groups.pop(group, _Delays())
            delays.record_finished(delay, is_broken=is_broken)
        while len(groups) > MAX_TENANT_GROUPS:
            del groups[next(iter(groups))]
        while len(self._tenants) > MAX_TENANTS:
            del self._tenants[next(iter(self._tenants))]

    def margin(
        self,
        tenant: str | None,
        family: str | None,
        planned: int,
        arrival: int,
        until: int | None = None,
    ) -> Margin:
        """Return the margin of a job that is planned to complete in slot ``planned``.

        It comes from the narrowest group with enough finished jobs: the job's tenant and family, or
        its tenant. Without such a group, it comes from the other tenants. The promise stays before
        ``until``, the first slot in which nothing may run.
        """
        relative, jobs = self._tenant_margin(tenant, family) or self._median_of_others(tenant)
        # Less a tiny amount, so that rounding errors don't add a slot.
        slots = math.ceil(relative * _slots(planned, arrival) - 1e-9)
        if until is not None:
            slots = min(slots, max(0, until - 1 - planned))
        return Margin(slots, jobs)

    def _tenant_margin(self, tenant: str | None, family: str | None) -> tuple[float, int] | None:
        """Return a tenant's relative margin, and the number of its jobs; None if too few."""
        groups = self._tenants.get(tenant, {})
        for group, minimum in (
            *((group, MIN_GROUP_JOBS) for group in _groups(tenant, family)),
            ((tenant,), MIN_TENANT_JOBS),
        ):
            delays = groups.get(group)
            if delays is not None and len(delays.newest) >= minimum:
                return delays.quantile(), len(delays.newest)
        return None

    def _median_of_others(self, tenant: str | None) -> tuple[float, int]:
        """Return the median of the other tenants' relative margins, and the number of jobs."""
        others = [
            delays
            for other, groups in self._tenants.items()
            if other != tenant
            and (delays := groups.get((other,)))
            and len(delays.newest) >= MIN_TENANT_JOBS
        ]
        if len(others) < MIN_TENANTS:
            return 0.0, 0
        # The lower of two middle values, so that at least half of the tenants need this margin.
        return (
            median_low(delays.quantile() for delays in others),
            sum(len(delays.newest) for delays in others),
        )


def read_finished(connection: Connection) -> list[JobView]:
    """Return each tenant's newest finished jobs in the store, in the order of their ends."""
    table = tables.jobs
    tenants = _stored_tenants(connection)
    views: list[JobView] = []
    for tenant in tenants:
        rows = connection.execute(
            select(table.c.view)
            .where(table.c.tenant == tenant, table.c.state == State.FINISHED.value)
            .order_by(table.c.id.desc())
            .limit(min(MAX_DELAYS_PER_GROUP, max(MIN_GROUP_JOBS, RECOVERED_JOBS // len(tenants))))
        ).scalars()
        views += map(JobView.from_json, rows)
    return sorted(views, key=lambda view: view.closed or 0)


def _stored_tenants(connection: Connection) -> list[str | None]:
    """Return None and the tenants of all stored jobs; the query of each is one index lookup."""
    column = tables.jobs.c.tenant
    tenants: list[str | None] = [None]
    query = select(column).where(column.is_not(None))
    while True:
        following = query if tenants[-1] is None else query.where(column > tenants[-1])
        tenant = connection.execute(following.order_by(column).limit(1)).scalar()
        if tenant is None:
            return tenants
        tenants.append(tenant)


def _slots(planned: int, arrival: int) -> int:
    """Return the slots from a job's arrival to its planned completion."""
    return max(1, planned - arrival + 1)


def _groups(tenant: str | None, family: str | None) -> list[_Group]:
    """Return the groups of a job, narrowest first: its tenant and family, and its tenant."""
    groups: list[_Group] = [] if family is None else [(tenant, family)]
    return [*groups, (tenant,)]
