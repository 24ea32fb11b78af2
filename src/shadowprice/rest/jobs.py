"""Jobs: their state, history, generations, progress, logs and quotes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from shadowprice.rest.base import ApiPage, ApiRecord, Problem

JobState = Literal[
    "pending",
    "admitted",
    "standby",
    "running",
    "resizing",
    "finished",
    "refused",
    "failed",
    "cancelled",
]

CLOSED: Final[frozenset[JobState]] = frozenset({"finished", "refused", "failed", "cancelled"})
"""Final states."""


class JobReason(ApiRecord):
    """Why a job waits, was refused or ended without success; ``code`` adds keys of its own."""

    code: str
    message: str = ""
    resource: str | None = Field(default=None, description="the scarcest resource for the job")
    servers: str | None = Field(default=None, description="kind of server that lacks it")


class JobSpeed(ApiRecord):
    """The origin of a job's throughput curve."""

    source: Literal["stated", "family"]
    family: str | None
    measured: tuple[int, ...] = Field(description="worker counts with a measured speed")


class PredictedLength(ApiRecord):
    """The predicted run time of a job that states none, at its fastest worker count."""

    seconds: float
    jobs: int = Field(description="similar finished jobs that it was predicted from; 0 if too few")
    probability: float | None = Field(
        description="with which the job takes no longer, if it is like them: null without them, "
        "and 1 if it is the time limit"
    )


class JobPoints(ApiRecord):
    """The cost of a job to a tenant with a budget, in points."""

    price: float = Field(
        description="debits: admission, revisions, slots beyond the stated or predicted work"
    )
    used: float = Field(description="part of the price that was used")
    refund: float | None = Field(description="points returned when the job ended")
    planned: int = Field(description="places x slots in the price")
    held: int = Field(description="places x slots that were used")
    overrun: float = Field(
        description="used part of the price for slots beyond the stated or predicted work"
    )
    overrun_slots: int = Field(
        description="slots that were used beyond the stated or predicted work"
    )
    slot_price: float | None = Field(
        description="price of the running slot, if it is beyond the stated or predicted work"
    )


class Job(ApiRecord):
    """A job. The times ``promise`` and ``completion`` are the ends of slots.

    A promise may be much later than the expected completion, if later is worth as much to the job.
    """

    id: int
    name: str = Field(description="unique among the open jobs of its tenant")
    tenant: str | None
    state: JobState
    submitted: datetime
    decided: datetime | None
    started: datetime | None
    promise: datetime | None = Field(description="promised completion")
    promise_slot: int | None
    first_promise_slot: int | None
    promise_margin_slots: int = Field(
        description="slots from the planned completion to the promise, learnt from earlier jobs"
    )
    promise_margin_jobs: int = Field(description="finished jobs that the margin was learnt from")
    completion: datetime | None = Field(
        description="completion; while the job is open, the expected one, if work and speed are as "
        "stated. null if it waits without a promise or longer than planned, or runs longer than "
        "stated"
    )
    completion_slot: int | None
    closed: datetime | None
    progress: float = Field(description="mini-batches")
    required: float = Field(description="mini-batches")
    generation: int
    workers: int
    ps: int
    servers: tuple[str, ...]
    payoff: float | None
    utility: float | None
    cost: float | None
    reason: JobReason | None
    failures: int = Field(description="failed generations, the lost ones included")
    lost: int = Field(description="generations lost through no fault of the job")
    speed: JobSpeed
    predicted: PredictedLength | None = Field(
        description="null if the job states its length, its speed is measured, or it is over. A "
        "job with a prediction has no promise"
    )
    points: JobPoints | None

    @property
    def open(self) -> bool:
        """Whether the job may still run."""
        return self.state not in CLOSED

    @property
    def reason_text(self) -> str:
        """The message of the reason; empty if there is none."""
        return "" if self.reason is None else self.reason.message


class PromiseCause(ApiRecord):
    """One cause of a broken promise, with its share of the delay."""

    cause: str
    seconds: float
    share: float
    detail: str


class BrokenPromise(ApiRecord):
    """Why the first promise of a job was not kept."""

    promised: datetime
    late_seconds: float
    causes: list[PromiseCause]
    line: str = Field(description="one sentence for people")


class JobDetail(Job):
    """A job with its submission; values of environment variables are masked."""

    spec: dict[str, Any]
    obstacle: str | None = Field(
        default=None,
        description="why a generation of the job can't be started or ended now; no later one "
        "starts before it has ended",
    )
    broken_promise: BrokenPromise | None = Field(
        default=None, description="null if the first promise was kept, or still may be"
    )


class JobPage(ApiPage):
    """A page of jobs, newest first."""

    jobs: list[Job]


class RefusedSubmission(ApiRecord):
    """A submitted job that was not accepted."""

    name: str
    problem: Problem


class SubmittedJobs(ApiRecord):
    """Several submitted jobs, in the order of the request."""

    jobs: list[Job | RefusedSubmission]


class Event(ApiRecord):
    """An event of the stream. A transient event has no ``id`` and is not stored."""

    kind: str
    id: int | None = None
    at: datetime | None = None
    job: str | None = Field(default=None, description="name of the job")
    job_id: int | None = None
    tenant: str | None = None
    data: dict[str, Any]


class StoredEvent(Event):
    """A stored event; a stream resumes after its ``id``."""

    id: int
    at: datetime


class JobEvent(StoredEvent):
    """An event of a job; ``line`` is a sentence for people."""

    line: str


class JobEventPage(ApiPage):
    """A page of a job's events, newest first."""

    events: list[JobEvent]


class ServerShare(ApiRecord):
    """The processes of a job on one server."""

    server: str
    workers: int
    ps: int


class Generation(ApiRecord):
    """One run of a job at a fixed placement."""

    generation: int
    slot: int
    ordered: datetime
    started: datetime | None
    ended: datetime | None
    exit: int | None
    reason: str | None
    workers: int
    ps: int
    placement: list[ServerShare]


class GenerationList(ApiRecord):
    """A job's generations, newest first."""

    generations: list[Generation]


class OmittedEvents(ApiRecord):
    """A gap in a long history."""

    after: int = Field(description="id of the event before the gap")
    events: int = Field(description="number of omitted events")


class SuggestedChange(ApiRecord):
    """The smallest change of one key that gets a job admitted, and promised if it waits."""

    key: str = Field(description="such as utility.value or worker.gpu")
    before: str
    after: str = Field(description="value as a job file writes it")
    change: str = Field(description="size of the change, for people")
    option: str | None = Field(
        default=None,
        description="option of `submit` that makes the change, such as --gpus; null if the job "
        "wasn't submitted with options",
    )
    option_before: str | None = Field(default=None, description="value of the option")
    option_after: str | None = Field(default=None, description="value for the option")
    completion: datetime | None = Field(
        description="end of the slot of its planned completion; a promise adds the margin"
    )
    utility: float | None
    price: float | None


class JobOutlook(ApiRecord):
    """What a job that waits or was refused lacks now, and what would get it admitted.

    Of a promised job that doesn't run yet, it only has the start and the completion.
    """

    resource: str | None = Field(description="the scarcest resource for the job")
    servers: str | None = Field(description="kind of server that lacks it")
    admitted_now: bool = Field(description="whether it would be admitted if submitted again now")
    starts: datetime | None = Field(
        description="when a waiting job starts at the latest, if its plans hold and no job arrives"
    )
    completes: datetime | None = Field(
        description="completion if the job starts at `starts`, with the stated work and speed"
    )
    abandoned: datetime | None = Field(
        description="when a waiting job is abandoned instead, because it couldn't end in time"
    )
    waits_beyond: datetime | None = Field(
        description="the last time that was planned, if the job still waits then"
    )
    changes: list[SuggestedChange] = Field(description="each on its own, smallest to 1 %")
    ineffective: list[str] = Field(description="keys of which no value gets it admitted")
    untried: list[str] = Field(description="keys for which the time was too short")
    seconds: float = Field(description="processor time of the answer")
    lines: list[str] = Field(description="for people")


class JobHistory(ApiRecord):
    """A job's events and generations. A long history has its first and its newest events."""

    job: Job
    broken_promise: BrokenPromise | None
    events: list[StoredEvent]
    omitted: OmittedEvents | None
    generations: list[Generation]
    lines: list[str] = Field(description="one sentence for people an event")
    outlook: JobOutlook | None = Field(
        default=None,
        description="null unless requested, and if the job runs, or ran and ended",
    )


class ProgressPoint(ApiRecord):
    """A progress report: cumulative mini-batches and metrics."""

    at: datetime
    generation: int
    minibatches: float
    metrics: dict[str, float]


class ProgressCurve(ApiRecord):
    """A job's progress reports, in order."""

    points: list[ProgressPoint]


class LogChunk(ApiRecord):
    """A part of the output of one process; the next part starts at ``end``."""

    generation: int
    process: str
    start: int
    end: int
    text: str
    complete: bool = Field(description="whether the process has ended and nothing follows")


class QuotePoints(ApiRecord):
    """The points of the tenant that would pay."""

    held: float
    left: float | None = Field(description="remaining points after the job's price")


class QuoteEnd(ApiRecord):
    """The effect of the end of the timespan on a quote."""

    ends: datetime
    admitted_without: bool | None = Field(
        default=None, description="whether the job would be admitted without this end"
    )


class Quote(ApiRecord):
    """The decision about a job if it were submitted now."""

    job: str
    slot: int = Field(description="first slot that is not decided yet")
    answer: Literal["admitted", "queued", "refused"]
    admitted: bool
    completion: int | None = Field(description="promised completion slot")
    promise: datetime | None
    expected: datetime | None = Field(description="completion in the plan of an admitted job")
    promise_margin_slots: int = Field(
        description="slots from the planned completion to the promise, learnt from earlier jobs"
    )
    promise_margin_jobs: int = Field(description="finished jobs that the margin was learnt from")
    predicted: PredictedLength | None = Field(description="as that of a job")
    utility: float | None
    price: float | None
    displaced: list[str] | int = Field(
        description="jobs that would lose their promise; for a tenant, their number"
    )
    refusal: JobReason | None
    message: str
    points: QuotePoints | None
    timespan: QuoteEnd | None = Field(description="null if the end of the timespan is far")
    outlook: JobOutlook | None = Field(
        default=None,
        description="null unless requested",
    )
