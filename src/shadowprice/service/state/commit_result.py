"""Results of a batch of operations: answers, events and the state to publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Resize, Start, Stop
from shadowprice.rest import Timespan
from shadowprice.service.budgets.accounts import Account
from shadowprice.service.clock import SlotCalendar, to_datetime_or_none
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.start_ups import StartUps

Withheld = Mapping[str, Mapping[str, int]]
"""Configured amounts that the executor lacks, by server and resource."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of the event stream.

    ``id`` counts from 1, and ``at`` is in nanoseconds since 1970. ``job`` is the key of the job,
    and ``job_id`` its id if the service knows it. ``decision`` marks a decision of the policy.
    """

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
    lost: frozenset[str]  # unavailable servers, including the next two
    drained: frozenset[str]
    cordoned: frozenset[str]
    calendar: SlotCalendar
    slot_running: int | None
    next_slot: int  # first slot that can still be decided
    backlog: int  # number of accepted jobs that wait for a decision
    until: int | None = None  # first slot in which nothing may run
    until_at: int | None = None  # end of the timespan as it was set, in ns since 1970
    start_ups: StartUps = field(default_factory=StartUps)  # newest ones
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
        """Return the first slot that can still be decided; without jobs, no slot begins."""
        if self.slot_running is not None:
            return self.next_slot
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
    """Result of a batch: its changes, and the present state."""

    answers: list[Any] = field(default_factory=list)  # `Operation.perform` or its error
    views: dict[str, JobView] = field(default_factory=dict)  # changed jobs
    specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # new or revised ones
    events: list[StreamEvent] = field(default_factory=list)
    running: Mapping[str, Start | Resize] = field(default_factory=dict)  # desired state
    unacknowledged: Mapping[int, Start | Resize | Stop] = field(default_factory=dict)
    servers: ClusterState | None = None
    sequence: int = 0  # number of the last engine event
    accounts: Mapping[str, Account] = field(default_factory=dict)
    prices: Mapping[tuple[str, str], float] = field(default_factory=dict)  # as in `ReadModel`
