"""Views of jobs: immutable records with times and server names, for queries and the API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from shadowprice import rest
from shadowprice.core.budget import in_points
from shadowprice.core.job import Job
from shadowprice.core.length_history import LengthPrediction
from shadowprice.core.policy import Status
from shadowprice.engine.engine import Engine
from shadowprice.engine.job_record import JobRecord
from shadowprice.service.clock import SlotCalendar, to_datetime_or_none
from shadowprice.service.resources import build_resource
from shadowprice.service.state.ending import CODE as TIMESPAN_ENDED
from shadowprice.service.state.ending import has_ended, reason_to_wait, refusal_reason


class State(StrEnum):
    """State of a job, as clients see it.

    `_OF_STATUS` maps the engine's statuses: queued is standby here, and dropped is failed. A job
    whose generation runs is running or resizing instead of admitted (`derive_state`).
    """

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
    """A job after an event. Moments are nanoseconds since 1970, prices millionths of a point.

    An open job has three slots of completion. ``completion`` is the last slot of its committed
    plan, or the slot that the policy promises if it commits no plans (`rolling`). ``promise`` is
    the service's promise: ``completion`` and a margin (`state.margins`). ``expected`` is the
    present forecast, which moves with the job's progress (`expected_slot`).
    """

    id: int  # number in the order of submission
    key: str  # by which the engine and the executor know the job (`core.job_keys`)
    name: str  # unique among the open jobs of its tenant
    tenant: str | None
    state: State
    submitted: int
    arrived: int  # determines its arrival slot and the start of its utility's clock
    arrival: int | None = None  # arrival slot; None until the job is decided
    promise: int | None = None  # slot by whose end the job is to complete
    first_promise: int | None = None
    promise_at: int | None = None  # end of that slot
    margin: int = 0  # slots from the policy's plan or promise to ``promise`` (`state.margins`)
    margin_jobs: int = 0  # finished jobs that the margin was learnt from
    completion: int | None = None  # slot; for an open job, planned or promised by the policy
    completion_at: int | None = None  # end of that slot, or when the job really ended
    expected: int | None = None  # slot in which the open job is expected to complete
    expected_at: int | None = None  # end of that slot
    progress: float = 0.0  # mini-batches; tasks for a bag
    required: float = 0.0
    generation: int = 0  # newest, by number
    started: int = 0  # newest generation that was observed to run
    running_since: int | None = None  # when generation ``started`` began to run
    first_start: int | None = None  # when the job first ran
    # Of the present placement:
    workers: int = 0
    ps: int = 0
    servers: tuple[str, ...] = ()
    # Of the decision, in units of the stated utility:
    payoff: float | None = None
    utility: float | None = None  # the earned utility once the job is finished
    cost: float | None = None
    reason: Mapping[str, Any] | None = None  # why it was refused, waits, or ended without success
    setback: Mapping[str, Any] | None = None  # why the newest generation was refused or lost
    failures: int = 0  # generations that failed
    lost: int = 0  # generations lost through no fault of the job
    family: str | None = None  # whose speed curve the job uses; None if it states its own
    measured: tuple[int, ...] = ()  # worker counts with a measured speed
    # Of a job that states no length: present prediction, and seconds predicted at the decision.
    predicted: LengthPrediction | None = None
    first_length: float | None = None
    # Of a finished job: seconds that it ran, GPUs, and minimum and maximum workers (`lengths`).
    length: tuple[float, int, int, int] | None = None
    reports: bool = False  # whether it ever reported progress, even of 0
    # Only counted if its tenant has an account:
    covered: int = 0  # stated work covered by slots (`stated_work`), in millionths of a mini-batch
    covered_before: int = 0  # ``covered`` when its newest generation began
    blamed: int = 0  # newest generation that failed by itself, or in which the owner revised it
    price: int | None = None  # all debits; 0 if its tenant has no account, None until it is priced
    paid_at: int | None = None  # moment of the last debit: for the admission, or a slot of overrun
    planned: int = 0  # process-slots that the price of the stated work covers
    # Paid but unused parts: slot, process count, price (`service.budgets.usage`). None if nothing
    # was paid in advance, or if the job pays other tenants.
    unused: tuple[tuple[int, int, int], ...] | None = None
    held: int = 0  # process-slots held so far; 0, as ``planned``, if the job pays other tenants
    used: int = 0  # part of ``price`` that the held process-slots have used
    overrun: int = 0  # part of ``used`` for slots beyond the stated work
    overrun_slots: int = 0  # number of slots beyond the stated work
    slot_price: int | None = None  # of the running slot if it is beyond the stated work
    refund: int | None = None  # paid back when the job was closed
    decided: int | None = None  # moment of the first decision
    closed: int | None = None  # moment at which the job ended or was refused

    def stored(self) -> str:
        """Serialize the view for the store."""
        return _ENCODE({name: getattr(self, name) for name in _NAMES})

    @classmethod
    def from_json(cls, text: str) -> JobView:
        """Parse a view that `stored` serialized."""
        return _stored_views().validate_json(text)

    def to_resource(self) -> rest.Job:
        """Return the job as a REST resource."""
        reason, speed = self.reason, _STATED_SPEED
        is_decided = self.state.open or self.state is State.REFUSED
        is_predicted = is_decided and not self.measured
        completion, completion_at = self.completion, self.completion_at
        if self.state.open:
            completion, completion_at = self.expected, self.expected_at
        if self.family is not None or self.measured:
            source: Literal["stated", "family"] = "stated" if self.family is None else "family"
            speed = rest.JobSpeed(source=source, family=self.family, measured=self.measured)
        return build_resource(
            rest.Job,
            self,
            state=self.state.value,
            started=to_datetime_or_none(self.first_start),
            promise=to_datetime_or_none(self.promise_at),
            promise_slot=self.promise,
            first_promise_slot=self.first_promise,
            promise_margin_slots=self.margin,
            promise_margin_jobs=self.margin_jobs,
            completion=to_datetime_or_none(completion_at),
            completion_slot=completion,
            progress=round(self.progress, 6),
            reason=None if reason is None else rest.JobReason.model_validate(reason),
            speed=speed,
            predicted=predicted_resource(self.predicted) if is_predicted else None,
            points=self._points() if self.price else None,
        )

    def _points(self) -> rest.JobPoints:
        return rest.JobPoints(
            price=in_points(self.price or 0),
            used=in_points(self.used),
            refund=None if self.refund is None else in_points(self.refund),
            planned=self.planned,
            held=self.held,
            overrun=in_points(self.overrun),
            overrun_slots=self.overrun_slots,
            slot_price=None if self.slot_price is None else in_points(self.slot_price),
        )


def predicted_resource(prediction: LengthPrediction | None) -> rest.PredictedLength | None:
    """Return a prediction as a REST resource."""
    if prediction is None:
        return None
    seconds, jobs, probability = prediction
    return rest.PredictedLength(seconds=seconds, jobs=jobs, probability=probability)


@cache
def _stored_views() -> TypeAdapter[JobView]:
    return TypeAdapter(JobView)


_STATED_SPEED: Final = rest.JobSpeed(source="stated", family=None, measured=())
_NAMES: Final = tuple(field.name for field in fields(JobView))
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
PARTLY_ENDED: Final = "partly-ended"
"""Code of the reason of a running job of which some workers exited 0, and the kind of the event."""
OVERRUN: Final = "overrun"
"""Code of the reason of a job that runs beyond its stated work, and the kind of the event."""


def promised_slot(record: JobRecord) -> int | None:
    """Return the slot in which the policy promises or plans to complete a job, without margin."""
    if record.promise is not None:
        return record.promise
    return record.plan.completion if len(record.plan) else None


def derive_state(engine: Engine, record: JobRecord, started: int) -> State:
    """Return a job's state; ``started`` is its newest generation that was observed to run."""
    if record.status.open and record.job.name in engine.running:
        if started >= record.generation:
            return State.RUNNING
        return State.RESIZING if started else State.ADMITTED
    return _OF_STATUS[record.status]


def minibatches(job: Job, units: int) -> float:
    """Convert progress units to mini-batches, or to tasks for a bag."""
    return units if job.bag is not None else units * job.work / job.required


def _promise(record: JobRecord, view: JobView, until: int | None) -> int | None:
    """Return the promise of an open job: its planned completion plus its margin.

    A job whose length is only predicted has no promise. The promise doesn't change while the plan
    slips within the margin. A margin never reaches past the end of the timespan.
    """
    planned = promised_slot(record)
    if planned is None or record.job.predicted:
        return None
    promised = planned + view.margin
    if until is not None:
        promised = max(planned, min(promised, until - 1))
    if view.promise is not None and planned <= view.promise < promised:
        return view.promise
    return promised


def expected_slot(engine: Engine, record: JobRecord, planned: int | None) -> int | None:
    """Return the slot in which an open job is expected to complete.

    This is the end of its committed plan, or else follows from its progress and placement. A job
    that waits keeps slot ``planned``, which was expected when it got its promise. None if it waits
    without a promise or too long for ``planned``, or runs longer than stated.
    """
    job = record.job
    if len(record.plan):
        return record.plan.completion
    current = engine.slot if engine.slot_running is None else engine.slot_running
    placement = engine.running.get(job.name)
    if placement is not None and job.bag is None:
        share = record.slots_run(current) / record.stated_slots(placement)
        is_overdue = record.remaining <= 1 and record.earlier_share + share >= 1.0
        if is_overdue and not job.predicted:
            return None  # all its stated work is done, so its end can't be predicted
        workers, colocated = placement.total_workers, placement.colocated
        moved = record.generation_slot == current and record.generation > 1
        first = job.gain(workers, colocated=colocated, moved=moved)
        gain = max(1, job.gain(workers, colocated=colocated))
        return current + -(-max(0, record.remaining - first) // gain)
    if record.promise is None or planned is None:
        return None
    fastest = record.remaining if job.bag is not None else int(job.internal_gains.max())
    earliest = current + -(-record.remaining // max(1, fastest)) - 1
    return planned if earliest <= planned else None


def view_changes(
    engine: Engine, record: JobRecord, view: JobView, calendar: SlotCalendar, now: int
) -> dict[str, Any]:
    """Return the fields of a job's view that an event may have changed."""
    job, state = record.job, derive_state(engine, record, view.started)

    def end(slot: int | None) -> int | None:
        return None if slot is None else calendar.ends(slot)

    changes: dict[str, Any] = {
        "state": state,
        "arrival": job.arrival,
        "progress": minibatches(job, record.progress),
        "required": float(minibatches(job, job.required)),
        "generation": record.generation,
        "failures": record.failures,
    }
    promise = _promise(record, view, engine.until) if record.status.open else view.promise
    changes |= {"promise": promise, "promise_at": end(promise)}
    if view.first_promise is None and promise is not None:
        changes["first_promise"] = promise
    if record.status.open:
        planned = record.plan.completion if len(record.plan) else record.promise
        expected = expected_slot(engine, record, view.expected)
        changes |= {"completion": planned, "completion_at": end(planned)}
        changes |= {"expected": expected, "expected_at": end(expected)}
    else:
        ended = end(record.completion)
        changes["completion"] = record.completion
        changes["completion_at"] = None if ended is None else min(now, ended)
    placement = engine.running.get(job.name) if state.open else None
    if placement is None:
        changes |= {"workers": 0, "ps": 0, "servers": (), "slot_price": None}
    else:
        servers = tuple(engine.cluster.names[row] for row in placement.servers)
        changes |= {"workers": placement.total_workers, "ps": placement.total_ps}
        changes["servers"] = servers
    code, runs = (view.reason or {}).get("code"), placement is not None
    is_same_generation = runs and record.generation == view.generation
    if record.refusal is not None:
        changes["reason"] = refusal_reason(engine, calendar, job, record.refusal)
    elif state is State.FINISHED:
        changes["reason"] = None  # a former reason to wait is outdated
    elif has_ended(engine) and record.status is not Status.ARRIVED and placement is None:
        changes["reason"] = reason_to_wait(engine, calendar)
    elif (
        code == TIMESPAN_ENDED
        or (code == OVERRUN and not runs)
        or (code == PARTLY_ENDED and not is_same_generation)
    ):
        changes["reason"] = None
    if view.decided is None and record.status is not Status.ARRIVED:
        changes["decided"] = now
    if not state.open and view.closed is None:
        changes["closed"] = now
    return changes
