"""Results of a batch of operations: answers, events and the state to publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Resize, Start, Stop
from shadowprice.rest.ops import Timespan
from shadowprice.service.budgets.accounts import Account
from shadowprice.service.clock import SlotCalendar, to_datetime_or_none
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.start_ups import StartUps

if TYPE_CHECKING:
    from shadowprice.service.state.batch import Batch


class Operation(Protocol):
    """An atomic operation on the durable state.

    An operation of several independent steps runs each step within `Batch.whole`. It doesn't raise
    if a step fails: its answer says which steps succeeded.
    """

    def perform(self, batch: Batch) -> Any:
        """Perform the operation, and return the answer for its caller.

        It records rows with the batch (`Batch.also`, `Batch.put`), which writes them later. A row
        that is written at once, to get its id, must be the last step.

        Raises
        ------
        ShadowpriceError
            If the operation fails. The caller rolls it back.
        """
        ...


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
    """The servers, and the engine's position in time.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    lost, drained : frozenset of str
        Unavailable servers, and those of them that an operator drained.
    calendar : SlotCalendar
        The times of slots.
    slot_running : int or None
        The running slot.
    coming : int
        The first slot that can still be decided.
    backlog : int
        Number of accepted jobs that wait for a decision.
    until : int or None
        First slot in which nothing may run; None without an end of the timespan.
    until_at : int or None
        The end of the timespan as it was set, in nanoseconds since 1970.
    start_ups : StartUps
        Newest start-up times of jobs.
    withheld : mapping
        Configured amounts that the executor lacks, by server and resource.
    """

    cluster: Cluster
    lost: frozenset[str]
    drained: frozenset[str]
    calendar: SlotCalendar
    slot_running: int | None
    coming: int
    backlog: int
    until: int | None = None
    until_at: int | None = None
    start_ups: StartUps = field(default_factory=StartUps)
    withheld: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

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

    def coming_at(self, now: int) -> int:
        """Return the first slot that can still be decided; without jobs, no slot begins."""
        if self.slot_running is not None:
            return self.coming
        return max(self.coming, self.calendar.slot_at(now) + 1)

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
    """Result of a batch: its changes, and the present state.

    Parameters
    ----------
    answers : list
        For each operation, the result of `Operation.perform` or its error.
    views : dict of str to JobView
        Changed jobs.
    specs : dict of str to mapping
        New or revised specifications of jobs.
    events : list of StreamEvent
        New events of the event stream.
    running : dict of str to Start or Resize
        Newest command of each job that should run.
    unacknowledged : dict of int to Start, Resize or Stop
        Commands without an acknowledgement, by id.
    servers : ClusterState or None
        Servers and the position in time.
    sequence : int
        Number of the last engine event.
    accounts : mapping of str to Account
        Accounts of the tenants with a budget.
    prices : mapping of (str, str) to float
        Prices of the coming slot when the running one began, by kind of server and resource.
    """

    answers: list[Any] = field(default_factory=list)
    views: dict[str, JobView] = field(default_factory=dict)
    specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    events: list[StreamEvent] = field(default_factory=list)
    running: Mapping[str, Start | Resize] = field(default_factory=dict)
    unacknowledged: Mapping[int, Start | Resize | Stop] = field(default_factory=dict)
    servers: ClusterState | None = None
    sequence: int = 0
    accounts: Mapping[str, Account] = field(default_factory=dict)
    prices: Mapping[tuple[str, str], float] = field(default_factory=dict)
