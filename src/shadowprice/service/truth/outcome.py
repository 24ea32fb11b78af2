"""What a batch of operations comes to, and what readers are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Resize, Start, Stop
from shadowprice.service.budgets.accounts import Account
from shadowprice.service.clock import Calendar, stamp
from shadowprice.service.truth.start_ups import StartUps
from shadowprice.service.truth.views import JobView

if TYPE_CHECKING:
    from shadowprice.service.truth.batch import Batch


class Operation(Protocol):
    """Something to be done, as a whole or not at all.

    What consists of several things that are whole by themselves does each within `Batch.whole`,
    raises nothing, and tells in its answer how far it came.
    """

    def perform(self, batch: Batch) -> Any:
        """Do it, and return what its caller is told.

        Nothing is written here: it is noted (`Batch.also`, `Batch.put`), and written with the
        batch. What is written at once, for its number, is the last that is done.

        Raises
        ------
        ShadowpriceError
            If it cannot be done; whoever called it takes back what was noted and taken in.
        """
        ...


@dataclass(frozen=True, slots=True)
class Told:
    """Something that readers are told: an entry of the event stream.

    Parameters
    ----------
    id : int
        Its number, from 1 on.
    at : int
        When, in nanoseconds since 1970.
    kind : str
        What happened.
    job, tenant : str or None
        Whom it is about.
    data : mapping
        What else there is to say.
    decision : bool
        Whether the policy decided it.
    """

    id: int
    at: int
    kind: str
    job: str | None
    tenant: str | None
    data: Mapping[str, Any]
    decision: bool = False


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers, and where in time the engine is.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    lost, drained : frozenset of str
        Those that are out, and those of them that were emptied on purpose.
    calendar : Calendar
        When slots are.
    slot_running : int or None
        The slot that runs.
    coming : int
        The first slot that can still be decided.
    backlog : int
        Jobs that wait to be decided on.
    until : int or None
        First slot in which nothing may run, None without an end of the timespan.
    until_at : int or None
        The end as it was set, in nanoseconds since 1970.
    start_ups : StartUps
        How long jobs took to start.
    """

    cluster: Cluster
    lost: frozenset[str]
    drained: frozenset[str]
    calendar: Calendar
    slot_running: int | None
    coming: int
    backlog: int
    until: int | None = None
    until_at: int | None = None
    start_ups: StartUps = field(default_factory=StartUps)

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """What an operator should change, with numbers."""
        warning = self.start_ups.warning(float(self.cluster.slot_seconds))
        return [] if warning is None else [warning]

    @property
    def ends_at(self) -> int | None:
        """When the first slot in which nothing may run begins."""
        return None if self.until is None else self.calendar.begins(self.until)

    def has_ended(self, now: int) -> bool:
        """Whether nothing may run at a moment."""
        return self.ends_at is not None and now >= self.ends_at

    def timespan(self, now: int) -> dict[str, Any]:
        """Return the end of the timespan as clients get it."""
        ends = self.ends_at
        return {
            "until": None if self.until_at is None else stamp(self.until_at),
            "ends": None if ends is None else stamp(ends),
            "slot": self.until,
            "ended": self.has_ended(now),
        }


@dataclass(slots=True)
class Outcome:
    """What a batch came to.

    Parameters
    ----------
    answers : list
        By operation: what `Operation.perform` returned, or the error.
    views : dict of str to JobView
        Jobs that changed.
    specs : dict of str to mapping
        What was submitted of jobs, where that is new or was revised.
    told : list of Told
        What is new in the event stream.
    running : dict of str to Start or Resize
        The newest order of every job that is to run.
    unacknowledged : dict of int to Order
        Orders not acknowledged yet.
    servers : Servers or None
        What the servers are.
    sequence : int
        Number of the last event.
    accounts : mapping of str to Account
        What tenants with a budget hold.
    """

    answers: list[Any] = field(default_factory=list)
    views: dict[str, JobView] = field(default_factory=dict)
    specs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    running: Mapping[str, Start | Resize] = field(default_factory=dict)
    unacknowledged: Mapping[int, Start | Resize | Stop] = field(default_factory=dict)
    servers: Servers | None = None
    sequence: int = 0
    accounts: Mapping[str, Account] = field(default_factory=dict)
