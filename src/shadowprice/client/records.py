"""What the service tells, as values. What newer services tell beyond this stays in ``record``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, Generic, Self, TypeVar

Json = Mapping[str, Any]
T = TypeVar("T")

CLOSED: Final = frozenset({"finished", "refused", "failed", "cancelled"})
"""States that nothing follows."""


def moment(value: object) -> datetime | None:
    """Return a time as the service writes it (RFC 3339, UTC)."""
    return datetime.fromisoformat(value) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Something that the service told.

    Parameters
    ----------
    record : mapping
        All of it, as it came.
    """

    record: Json = field(repr=False, compare=False)

    @classmethod
    def read(cls, record: Json) -> Self:
        """Return what a record tells, leaving in ``record`` what is not known here."""
        known = [one.name for one in fields(cls) if one.name != "record"]
        values = {name: record[name] for name in known if record.get(name) is not None}
        return cls(**cls._values(values), record=record)

    @classmethod
    def _values(cls, values: dict[str, Any]) -> dict[str, Any]:
        times = [one.name for one in fields(cls) if "datetime" in str(one.type)]
        return values | {name: moment(values[name]) for name in times if name in values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Told):
    """A job as the service sees it.

    Parameters
    ----------
    name, tenant : str
        What it is called, and whose it is.
    state : str
        One of pending, admitted, standby, running, resizing, finished, refused, failed, cancelled.
    submitted, decided, started, closed : datetime or None
        When.
    promise, completion : datetime or None
        By when it is promised; when it completed, or will under the plan of the moment.
    promise_slot, first_promise_slot, completion_slot : int or None
        The same, in slots.
    progress, required : float
        Mini-batches.
    generation, workers, ps : int
        The newest placement: its number, how many workers and parameter servers.
    servers : sequence of str
        Where.
    payoff, utility, cost : float or None
        What it is worth beyond what it displaces.
    reason : mapping or None
        Why it waits, was refused, or ended without success.
    failures, lost : int
        Generations that failed, and how many of these were lost through no fault of the job.
    speed : mapping or None
        Where its curve is ``from`` (``stated`` by its owner, or a ``family``'s), and the numbers of
        workers that it was ``measured`` with while it ran.
    points : mapping or None
        What it costs its tenant, where that has a budget: ``price``, ``used``, ``refund``, and
        places times slots, ``planned`` and ``held``.
    """

    name: str
    state: str
    tenant: str | None = None
    submitted: datetime | None = None
    decided: datetime | None = None
    started: datetime | None = None
    closed: datetime | None = None
    promise: datetime | None = None
    promise_slot: int | None = None
    first_promise_slot: int | None = None
    completion: datetime | None = None
    completion_slot: int | None = None
    progress: float = 0.0
    required: float = 0.0
    generation: int = 0
    workers: int = 0
    ps: int = 0
    servers: Sequence[str] = ()
    payoff: float | None = None
    utility: float | None = None
    cost: float | None = None
    reason: Json | None = None
    failures: int = 0
    lost: int = 0
    speed: Json | None = None
    points: Json | None = None

    @property
    def open(self) -> bool:
        """Whether it may still run."""
        return self.state not in CLOSED

    @property
    def why(self) -> str:
        """Why it waits or ended, as a sentence; empty where there is nothing to say."""
        return str((self.reason or {}).get("message") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Told):
    """One placement of a job."""

    generation: int
    slot: int | None = None
    ordered: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    exit: int | None = None
    reason: Any = None
    workers: int = 0
    ps: int = 0
    placement: Sequence[Json] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Told):
    """What a job reported: cumulative mini-batches and what it measured."""

    at: datetime
    generation: int
    minibatches: float
    metrics: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece(Told):
    """A piece of what one process wrote; ``end`` is where the next one starts."""

    generation: int
    process: str
    start: int
    end: int
    text: str
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Told):
    """Something that happened. Without an ``id`` it is for the moment only."""

    kind: str
    id: int | None = None
    at: datetime | None = None
    job: str | None = None
    tenant: str | None = None
    data: Json = field(default_factory=dict)
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story(Told):
    """A job's story: ``lines`` are for people, ``events`` and ``generations`` for programs.

    A long one has its beginning and its newest entries: ``left_out`` says how many ``events`` lie
    between, ``after`` the one of which ``id``; `Client.job_events` yields all.
    """

    job: Job
    events: Sequence[Event] = ()
    left_out: Json | None = None
    generations: Sequence[Generation] = ()
    lines: Sequence[str] = ()
    broken_promise: Json | None = None

    @classmethod
    def _values(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values | {
            "job": Job.read(values["job"]),
            "events": tuple(Event.read(one) for one in values.get("events", ())),
            "generations": tuple(Generation.read(one) for one in values.get("generations", ())),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote(Told):
    """What would become of a job if it were submitted now."""

    job: str
    slot: int
    answer: str
    admitted: bool
    completion: int | None = None
    promise: datetime | None = None
    utility: float | None = None
    price: float | None = None
    displaced: Sequence[str] | int = ()
    refusal: Json | None = None
    message: str = ""
    points: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSlot(Told):
    """Prices in one slot: by kind of server and resource, of all of it, and how much is used."""

    slot: int
    begins: datetime
    kinds: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server(Told):
    """A server, with what runs on it; others' jobs have no name for a tenant."""

    name: str
    role: str
    state: str
    capacity: Json = field(default_factory=dict)
    jobs: Sequence[Json] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant(Told):
    """A tenant: its share, how many of its jobs are in which state, its budget and its account.

    Without a budget (None) it spends without limit and has no account. Of the account, ``held`` may
    be spent, ``in_jobs`` is paid for open jobs and not used yet, ``spent`` and ``sums`` are of the
    period from ``begins`` to ``ends``.
    """

    name: str
    share: Json = field(default_factory=dict)
    jobs: Json = field(default_factory=dict)
    budget: Json | None = None
    account: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Told):
    """One change of an account: a grant, expiry, debit, refund or payment; ``other`` paid that."""

    id: int
    at: datetime
    kind: str
    points: float
    balance: float
    job: str | None = None
    other: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(Told):
    """A tenant's statement over a span of time: one page of its entries, the newest first.

    Balances (``opening``, ``closing``) and ``sums`` by kind are of the whole span, ``budget`` and
    ``account`` as of `Tenant`.
    """

    tenant: str
    opening: float
    closing: float
    sums: Json = field(default_factory=dict)
    budget: Json | None = None
    account: Json | None = None
    entries: Sequence[Entry] = ()
    next: int | None = None

    @classmethod
    def _values(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values | {"entries": tuple(Entry.read(one) for one in values.get("entries", ()))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Told):
    """A token; what it is (``token``) is told only when it is made."""

    id: int
    role: str
    tenant: str | None = None
    note: str = ""
    expires: datetime | None = None
    revoked: datetime | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a long list.

    Parameters
    ----------
    entries : sequence
        In the order of the list.
    next : int or None
        Cursor of the page that follows, None after the last.
    """

    entries: Sequence[T]
    next: int | None
