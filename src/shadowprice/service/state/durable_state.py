"""The state that operations read and change: the engine, and the service's data about its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shadowprice.core.errors import EventError
from shadowprice.core.events import Resize, Start
from shadowprice.core.job import Job
from shadowprice.core.relative_values import AUTO, STATED, OpenValues, RelativeValues
from shadowprice.engine.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.accounts import Accounts
from shadowprice.service.clock import MonotonicWallClock, SlotCalendar
from shadowprice.service.state.backlog import Backlog
from shadowprice.service.state.commit_result import Withheld
from shadowprice.service.state.ending import TimespanEnd
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.lengths import ServiceLengths
from shadowprice.service.state.margins import Margins
from shadowprice.service.state.restart_costs import RestartCostEstimator
from shadowprice.service.state.speed_estimates import SpeedEstimator
from shadowprice.service.state.start_ups import StartUps
from shadowprice.service.store import Store


@dataclass(eq=False, kw_only=True)
class DurableState:
    """One record of all that operations read and change; `recovery.recover` builds it."""

    # Options of the service:
    store: Store  # open for writing
    choice: PolicyChoice
    clock: MonotonicWallClock
    virtual: bool  # no job really runs: a command counts as carried out when it is issued
    max_overrun: float | None = None  # given to jobs when they arrive or are revised
    values_mode: str = STATED  # one of `core.relative_values.SERVICE_VALUES`
    on_decision: Callable[[float], None] = lambda _: None
    """Observes the seconds that the engine takes for an event."""

    # From snapshot, journal and tables:
    engine: Engine
    calendar: SlotCalendar
    views: dict[str, JobView]  # of open jobs by key, as are the specifications
    specs: dict[str, Mapping[str, Any]]
    launch_commands: dict[str, Start | Resize]  # newest command of each running job
    backlog: Backlog
    next_job: int
    next_event_id: int
    accounts: Accounts
    last_at: int  # moment of the last event, in nanoseconds since 1970
    snapshot_sequence: int  # of the newest snapshot
    mode_changed: bool = False  # since that snapshot: `virtual` was different
    recovered_events: int  # events of the journal that recovery applied
    margins: Margins
    lengths: ServiceLengths
    end: TimespanEnd
    start_ups: StartUps
    withheld: Withheld
    token_tenants: dict[str, None]  # that have had a valid token since the start
    values: RelativeValues | None = None  # None if values of jobs always count as stated
    open_values: OpenValues | None = None  # None if `values` is

    # Learnt from the reports of running jobs:
    restarts: RestartCostEstimator
    speeds: SpeedEstimator = field(default_factory=SpeedEstimator)
    # Newest reporting generation, its maximum progress, and when it reported that:
    furthest: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    stated_jobs: dict[str, tuple[Mapping[str, Any], Job]] = field(default_factory=dict)
    """Cache of `stated_work.stated_job`."""

    def keep_learnt(self, previous: DurableState) -> None:
        """Take over what a state that this one replaces has learnt from reports."""
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
        """Return whether values count relative to those of their tenant's other jobs.

        ``jobs`` arrive or are revised now.
        """
        if self.values is None or self.open_values is None:
            return False
        if self.values_mode != AUTO:
            return True
        self.open_values.add_arriving(jobs, self.engine.cluster)
        tenants = {
            *self.token_tenants,
            *(tenant.name for tenant in self.engine.cluster.tenants),
            *self.open_values.tenants(),
            *self.values.finished,
        }
        return any(tenants)  # the empty name is that of the operator's own jobs

    @property
    def next_slot(self) -> int:
        """The first slot that can still be decided now."""
        engine = self.engine
        if engine.slot_running is not None:
            return engine.slot
        next_slot = max(engine.slot, self.calendar.slot_at(self.clock.now()) + 1)
        try:
            engine.state.check_skip(next_slot)
        except EventError:
            return engine.slot  # overdue: it must begin before a later slot
        return next_slot
