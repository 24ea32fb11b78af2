"""What readers see of jobs: immutable, told in times and names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, Literal

from shadowprice.core.budget import in_points
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.engine.engine import Engine
from shadowprice.engine.state import JobRecord
from shadowprice.rest import jobs as rest
from shadowprice.service.clock import Calendar, to_datetime, to_datetime_or_none
from shadowprice.service.truth.ending import CODE, has_ended, reason_to_wait, refusal_reason


class State(StrEnum):
    """Where a job is, as clients are told."""

    PENDING = "pending"
    ADMITTED = "admitted"
    STANDBY = "standby"
    RUNNING = "running"
    RESIZING = "resizing"
    FINISHED = "finished"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def open(self) -> bool:
        """Whether the job may still run."""
        return self not in _CLOSED


_CLOSED: Final = frozenset({State.FINISHED, State.REFUSED, State.FAILED, State.CANCELLED})

_OF_STATUS: Final[Mapping[Status, State]] = {
    Status.ARRIVED: State.PENDING,
    Status.QUEUED: State.STANDBY,
    Status.ADMITTED: State.ADMITTED,
    Status.FINISHED: State.FINISHED,
    Status.REFUSED: State.REFUSED,
    Status.DROPPED: State.FAILED,
    Status.CANCELLED: State.CANCELLED,
    Status.FAILED: State.FAILED,
}


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it is after some event.

    Parameters
    ----------
    id : int
        Number in the order of submission.
    name : str
        Its name, never used again.
    tenant : str or None
        Its owner.
    state : State
        Where it is.
    submitted : int
        When, in nanoseconds since 1970; so are all moments.
    arrived : int
        The moment that its arrival slot and the clock of its utility were reckoned from.
    arrival : int or None
        Its arrival slot, once it was decided on.
    promise, first_promise : int or None
        Slot by whose end it is promised now, and was first.
    promise_at : int or None
        When that slot ends.
    margin : int
        Slots from a planned completion to the promise (`truth.margins`).
    margin_jobs : int
        Finished jobs that the margin was taken from.
    completion : int or None
        Slot in which it completed, or in which the plan of the moment completes it.
    completion_at : int or None
        When it completed, or will.
    progress, required : float
        Mini-batches.
    generation : int
        Its newest placement.
    started : int
        Newest generation that was seen to run.
    running_since : int or None
        When that one began to run.
    first_start : int or None
        When it ran first.
    workers, ps : int
        What the newest placement holds.
    servers : tuple of str
        Where.
    payoff, utility, cost : float or None
        As decided; the utility as earned once it is finished.
    reason : mapping or None
        Why it was refused, waits, or ended without success.
    failures, lost : int
        Generations that failed, and that were lost through no fault of the job.
    family : str or None
        Whose curve it was given, where its own is not known.
    measured : tuple of int
        Numbers of workers that its speed was measured with while it ran.
    reports : bool
        Whether it ever said how far it is, even if that was nowhere.
    done : bool
        Whether a generation exited 0 while it was being stopped: it is not started again.
    price : int or None
        What it was admitted for, in millionths of a point, 0 where nobody keeps an account of it;
        None until it is priced.
    paid_at : int or None
        When that was debited.
    planned, held : int
        Places times slots that the price is for, and that it held so far; both 0 where other
        tenants are paid instead.
    used : int
        What it used of the price so far.
    unused : tuple of (int, int, int) or None
        What it paid for and did not use yet: slot, places, price (`service.budgets.paid`); None
        where its price is that of all its places alike.
    refund : int or None
        What was given back when it was over.
    decided : int or None
        When it was first decided on.
    closed : int or None
        When it was over.
    """

    id: int
    name: str
    tenant: str | None
    state: State
    submitted: int
    arrived: int
    arrival: int | None = None
    promise: int | None = None
    first_promise: int | None = None
    promise_at: int | None = None
    margin: int = 0
    margin_jobs: int = 0
    completion: int | None = None
    completion_at: int | None = None
    progress: float = 0.0
    required: float = 0.0
    generation: int = 0
    started: int = 0
    running_since: int | None = None
    first_start: int | None = None
    workers: int = 0
    ps: int = 0
    servers: tuple[str, ...] = ()
    payoff: float | None = None
    utility: float | None = None
    cost: float | None = None
    reason: Mapping[str, Any] | None = None
    failures: int = 0
    lost: int = 0
    family: str | None = None
    measured: tuple[int, ...] = ()
    reports: bool = False
    done: bool = False
    price: int | None = None
    paid_at: int | None = None
    planned: int = 0
    unused: tuple[tuple[int, int, int], ...] | None = None
    held: int = 0
    used: int = 0
    refund: int | None = None
    decided: int | None = None
    closed: int | None = None

    def stored(self) -> str:
        """Return the view as the store keeps it."""
        return _ENCODE({name: getattr(self, name) for name in _NAMES})

    @classmethod
    def of_store(cls, text: str) -> JobView:
        """Return the view that `stored` wrote."""
        values = json.loads(text)
        values["state"] = State(values["state"])
        values["servers"] = tuple(values["servers"])
        values["measured"] = tuple(values["measured"])
        if values["unused"] is not None:
            values["unused"] = tuple(map(tuple, values["unused"]))
        return cls(**values)

    def to_resource(self) -> rest.Job:
        """Return the job as clients get it."""
        reason, speed = self.reason, _STATED_SPEED
        if self.family is not None or self.measured:
            source: Literal["stated", "family"] = "stated" if self.family is None else "family"
            speed = rest.JobSpeed(source=source, family=self.family, measured=self.measured)
        return rest.Job(
            id=self.id,
            name=self.name,
            tenant=self.tenant,
            state=self.state.value,
            submitted=to_datetime(self.submitted),
            decided=to_datetime_or_none(self.decided),
            started=to_datetime_or_none(self.first_start),
            promise=to_datetime_or_none(self.promise_at),
            promise_slot=self.promise,
            first_promise_slot=self.first_promise,
            promise_margin_slots=self.margin,
            promise_margin_jobs=self.margin_jobs,
            completion=to_datetime_or_none(self.completion_at),
            completion_slot=self.completion,
            closed=to_datetime_or_none(self.closed),
            progress=round(self.progress, 6),
            required=self.required,
            generation=self.generation,
            workers=self.workers,
            ps=self.ps,
            servers=self.servers,
            payoff=self.payoff,
            utility=self.utility,
            cost=self.cost,
            reason=None if reason is None else rest.JobReason.model_validate(reason),
            failures=self.failures,
            lost=self.lost,
            speed=speed,
            points=self._points() if self.price else None,
        )

    def _points(self) -> rest.JobPoints:
        return rest.JobPoints(
            price=in_points(self.price or 0),
            used=in_points(self.used),
            refund=None if self.refund is None else in_points(self.refund),
            planned=self.planned,
            held=self.held,
        )


_STATED_SPEED: Final = rest.JobSpeed(source="stated", family=None, measured=())
_NAMES: Final = tuple(field.name for field in fields(JobView))
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def promise_of(record: JobRecord) -> int | None:
    """Return the slot in which a policy plans to complete a job; a committed plan is a promise."""
    if record.promise is not None:
        return record.promise
    return record.plan.completion if len(record.plan) else None


def state_of(engine: Engine, record: JobRecord, started: int) -> State:
    """Return a job's state; ``started`` is the newest generation that was seen to run."""
    if record.status.open and record.job.name in engine.running:
        if started >= record.generation:
            return State.RUNNING
        return State.RESIZING if started else State.ADMITTED
    return _OF_STATUS[record.status]


def minibatches(job: Job, units: int) -> float:
    """Return progress units as mini-batches (of a bag, as tasks)."""
    return units if job.bag is not None else units * job.work / job.required


def _promise(record: JobRecord, view: JobView, until: int | None) -> int | None:
    """Return the promise of an open job: its planned completion with its margin.

    A plan that slips within the margin leaves the promise as it is. No margin reaches past the end
    of the timespan.
    """
    planned = promise_of(record)
    if planned is None:
        return None
    promised = planned + view.margin
    if until is not None:
        promised = max(planned, min(promised, until - 1))
    if view.promise is not None and planned <= view.promise < promised:
        return view.promise
    return promised


def changes_of(
    engine: Engine, record: JobRecord, view: JobView, calendar: Calendar, now: int
) -> dict[str, Any]:
    """Return what a view of a job has to say differently after an event."""
    job, name = record.job, record.job.name
    state = state_of(engine, record, view.started)
    changes: dict[str, Any] = {
        "state": state,
        "arrival": job.arrival,
        "progress": minibatches(job, record.progress),
        "required": float(minibatches(job, job.required)),
        "generation": record.generation,
        "failures": record.failures,
    }
    promise = _promise(record, view, engine.until) if record.status.open else view.promise
    changes["promise"] = promise
    changes["promise_at"] = None if promise is None else calendar.ends(promise)
    if view.first_promise is None and promise is not None:
        changes["first_promise"] = promise
    if record.status.open:
        expected = record.plan.completion if len(record.plan) else record.promise
        changes["completion"] = expected
        changes["completion_at"] = None if expected is None else calendar.ends(expected)
    elif record.completion is not None:
        changes["completion"] = record.completion
        changes["completion_at"] = min(now, calendar.ends(record.completion))
    else:
        changes["completion"] = changes["completion_at"] = None
    placement = engine.running.get(name) if state.open else None
    if placement is None:
        changes |= {"workers": 0, "ps": 0, "servers": ()}
    else:
        names = engine.cluster.names
        changes |= {
            "workers": placement.total_workers,
            "ps": placement.total_ps,
            "servers": tuple(names[row] for row in placement.servers),
        }
    if record.refusal is not None:
        changes["reason"] = refusal_reason(engine, calendar, record.refusal)
    elif state is State.FINISHED:
        changes["reason"] = None  # what it once waited for is of no interest any more
    elif has_ended(engine) and record.status is not Status.ARRIVED and placement is None:
        changes["reason"] = reason_to_wait(engine, calendar)
    elif view.reason is not None and view.reason.get("code") == CODE:
        changes["reason"] = None
    if view.decided is None and record.status is not Status.ARRIVED:
        changes["decided"] = now
    if not state.open and view.closed is None:
        changes["closed"] = now
    return changes
