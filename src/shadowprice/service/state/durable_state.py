"""The state that operations read and change, and the results of a batch to publish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import EventError
from shadowprice.core.events import Resize, Start, Stop
from shadowprice.core.job import Job
from shadowprice.core.relative_values import AUTO, STATED, OpenValues, RelativeValues
from shadowprice.engine.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.rest import Timespan
from shadowprice.service.budgets.accounts import Account, Accounts
from shadowprice.service.clock import MonotonicWallClock, SlotCalendar, to_datetime_or_none
from shadowprice.service.state.ending import TimespanEnd
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.lengths import ServiceLengths
from shadowprice.service.state.margins import Margins
from shadowprice.service.state.restart_costs import RestartCostEstimator
from shadowprice.service.state.speed_estimates import SpeedEstimator
from shadowprice.service.state.start_ups import StartUps
from shadowprice.service.state.tenant_lanes import TenantLanes
from shadowprice.service.store import Store

Withheld = Mapping[str, Mapping[str, int]]
"""Configured amounts that the executor doesn't have, by server and resource (`server_limits`)."""


@dataclass(eq=False, kw_only=True)
class DurableState:
    """All state that operations read and change; `recovery.recover` builds it."""

    # Options of the service:
    store: Store  # open for writing
    choice: PolicyChoice
    clock: MonotonicWallClock
    virtual: bool  # no job really runs: a command counts as carried out when it is issued
    max_overrun: float | None = None  # given to jobs when they arrive or are revised
    values_mode: str = STATED  # one of `core.relative_values.SERVICE_VALUES`
    observe_event_seconds: Callable[[float], None] = lambda _: None
    """Called with the seconds that the engine took for an event."""

    # From snapshot, journal and tables:
    engine: Engine
    calendar: SlotCalendar
    last_at: int  # moment of the last event, in nanoseconds since 1970
    # Views and specifications of open jobs, by key:
    views: dict[str, JobView] = field(default_factory=dict)
    specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    # The desired state: the newest launch command of each job that should run.
    desired: dict[str, Start | Resize] = field(default_factory=dict)
    # Keys of accepted jobs that wait for a decision:
    backlog: TenantLanes[str] = field(default_factory=TenantLanes)
    next_job: int = 1
    next_event_id: int = 1
    accounts: Accounts = field(default_factory=Accounts)
    snapshot_sequence: int = 0  # of the newest snapshot
    mode_changed: bool = False  # whether `virtual` differs from that of the newest snapshot
    recovered_events: int = 0  # events of the journal that recovery applied
    margins: Margins = field(default_factory=Margins)
    lengths: ServiceLengths = field(default_factory=ServiceLengths)
    end: TimespanEnd = field(default_factory=TimespanEnd)
    start_ups: StartUps = field(default_factory=StartUps)
    withheld: Withheld = field(default_factory=dict)
    # Tenants that have had a valid token since the start:
    token_tenants: dict[str, None] = field(default_factory=dict)
    values: RelativeValues | None = None  # None if values of jobs always count as stated
    open_values: OpenValues | None = None  # None if `values` is

    # Learnt from the reports of running jobs:
    restarts: RestartCostEstimator = field(default_factory=RestartCostEstimator)
    speeds: SpeedEstimator = field(default_factory=SpeedEstimator)
    # By job: newest generation that reported, its maximum progress, and the time of that report.
    furthest: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    stated_jobs: dict[str, tuple[Mapping[str, Any], Job]] = field(default_factory=dict)
    """Cache of `stated_work.stated_job`."""

    def keep_learnt(self, previous: DurableState) -> None:
        """Take over the estimates that the replaced state has learnt from reports."""
        self.restarts, self.speeds = previous.restarts, previous.speeds
        self.furthest, self.stated_jobs = previous.furthest, previous.stated_jobs

    def remove_job(self, key: str) -> None:
        """Remove a closed job."""
        self.views.pop(key, None)
        self.specs.pop(key, None)
        self.speeds.remove(key)
        self.stated_jobs.pop(key, None)
        self.furthest.pop(key, None)
        self.restarts.remove(key)

    def compares_values(self, jobs: Iterable[Job]) -> bool:
        """Return whether values of arriving jobs only count relative to their tenant's jobs."""
        if self.values is None or self.open_values is None:
            return False
        if self.values_mode != AUTO:
            return True
        # In this mode, they do so once a tenant exists besides the operator.
        self.open_values.add_arriving(jobs, self.engine.cluster)
        tenants = {
            *self.token_tenants,
            *(tenant.name for tenant in self.engine.cluster.tenants),
            *self.open_values.tenants(),
            *self.values.finished,
        }
        return any(tenants)  # the operator's own jobs have the empty name

    @property
    def next_slot(self) -> int:
        """The first slot that can still be decided at the present time."""
        engine = self.engine
        if engine.slot_running is not None:
            return engine.slot
        next_slot = max(engine.slot, self.calendar.slot_at(self.clock.now()) + 1)
        # While jobs run or have plans, an overdue slot must begin before later slots.
        return next_slot if self.can_skip_to(next_slot) else engine.slot

    def can_skip_to(self, slot: int) -> bool:
        """Return whether no slot before this one needs to begin."""
        try:
            self.engine.state.check_skip(slot)
        except EventError:
            return False
        return True


class StreamEvent(NamedTuple):
    """An event of the event stream, with the columns of its table; ``job`` is a key."""

    id: int
    at: int
    kind: str
    job: str | None
    job_id: int | None
    tenant: str | None
    data: Mapping[str, Any]
    decision: bool = False


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The servers, and the engine's position in time."""

    cluster: Cluster
    unavailable: frozenset[str]  # names of servers, including the drained and cordoned ones
    drained: frozenset[str]
    cordoned: frozenset[str]
    calendar: SlotCalendar
    slot_running: int | None
    next_slot: int  # first slot that can still be decided
    backlog: int  # number of accepted jobs that wait for a decision
    until: int | None = None  # first slot in which nothing may run
    until_at: int | None = None  # end of the timespan as it was set, in ns since 1970
    start_ups: StartUps = field(default_factory=StartUps)  # the newest start-ups
    withheld: Withheld = field(default_factory=dict)

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """Problems that an operator should fix, with numbers."""
        warning = self.start_ups.warning(float(self.cluster.slot_seconds))
        return [] if warning is None else [warning]

    @property
    def ends_at(self) -> int | None:
        """Start of the first slot in which nothing may run, in nanoseconds since 1970."""
        return None if self.until is None else self.calendar.begins(self.until)

    def has_ended(self, now: int) -> bool:
        """Return whether nothing may run at a moment."""
        return self.ends_at is not None and now >= self.ends_at

    def next_slot_at(self, now: int) -> int:
        """Return the first slot that can still be decided at a moment in ns since 1970."""
        if self.slot_running is not None:
            return self.next_slot
        # Without jobs no slot begins, so the field is outdated after a while.
        return max(self.next_slot, self.calendar.slot_at(now) + 1)

    def timespan(self, now: int) -> Timespan:
        """Return the end of the timespan as a REST resource."""
        return Timespan(
            until=to_datetime_or_none(self.until_at),
            ends=to_datetime_or_none(self.ends_at),
            slot=self.until,
            ended=self.has_ended(now),
        )


@dataclass(slots=True)
class CommitResult:
    """Result of a batch: the present state, and the changes."""

    desired: Mapping[str, Start | Resize]  # as in `DurableState`
    unacknowledged: Mapping[int, Start | Resize | Stop]
    servers: ClusterState
    sequence: int  # number of the last engine event
    accounts: Mapping[str | None, Account]  # by tenant
    prices: Mapping[tuple[str, str], float]  # as in `ReadModel`
    answers: list[Any] = field(default_factory=list)  # `Operation.perform` or its error
    views: dict[str, JobView] = field(default_factory=dict)  # changed jobs
    specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # new or revised ones
    events: list[StreamEvent] = field(default_factory=list)
