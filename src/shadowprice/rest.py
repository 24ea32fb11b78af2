"""The REST API's resources as typed models, shared by the service and the client.

The service's handlers return them, FastAPI generates the OpenAPI document from them, and the client
parses them. The module imports nothing of the service, so that the client doesn't load it. Other
classes have the same names, so most code writes ``rest.Job``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from shadowprice.short_table import MAX_FIELDS, ShortTable, format_value


class ApiRecord(BaseModel):
    """A value that the service sends. Unknown keys, of a newer service, are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    @property
    def record(self) -> dict[str, Any]:
        """The value as plain JSON types, with its unknown keys."""
        return self.model_dump(mode="json")

    def _repr_html_(self) -> str:
        """Return an HTML table of the fields that have a value, without secrets."""
        rows = [
            (str(name), format_value(value))
            for name, value in self.__repr_args__()
            if value is not None
        ]
        return ShortTable(
            type(self).__name__,
            ("field", "value"),
            rows,
            len(rows),
            max_rows=MAX_FIELDS,
            row_noun="field",
        ).html()


class ApiPage(ApiRecord):
    """A page of a listing."""

    next: int | None = Field(description="cursor of the next page")


class Diagnostic(ApiRecord):
    """One problem of a request: its location, message and hint."""

    location: str
    message: str
    hint: str


class Problem(ApiRecord):
    """Problem details (RFC 9457): why a request was refused."""

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="machine-readable kind of the problem")
    errors: list[Diagnostic] = Field(default_factory=list)


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
    """Why a job waits, was refused or ended without success; some codes have further keys."""

    code: str
    message: str = ""
    resource: str | None = Field(default=None, description="the scarcest resource for the job")
    servers: str | None = Field(default=None, description="kind of server that lacks it")


class JobSpeed(ApiRecord):
    """The origin of a job's throughput curve."""

    source: Literal["stated", "family"]
    family: str | None = Field(description="family of models whose measured curve is used")
    measured: tuple[int, ...] = Field(description="worker counts with a measured speed")


class PredictedLength(ApiRecord):
    """The predicted run time of a job that states none, at its fastest worker count."""

    seconds: float
    jobs: int = Field(description="similar finished jobs behind the prediction; 0 if too few")
    probability: float | None = Field(
        description="probability that the job takes no longer, judging by similar jobs; null "
        "without similar jobs, and 1 if the time is the job's time limit"
    )


class JobPoints(ApiRecord):
    """The cost of a job to a tenant with a budget, in points."""

    price: float = Field(description="paid for admission, revisions and overrun slots")
    used: float = Field(description="part of the price that was used")
    refund: float | None = Field(description="points returned when the job ended")
    planned: int = Field(description="processes x slots that the price covers")
    held: int = Field(description="processes x slots that were used")
    overrun: float = Field(description="part of `used` beyond the stated or predicted work")
    overrun_slots: int = Field(description="used slots beyond the stated or predicted work")
    slot_price: float | None = Field(description="price of the running slot, if it is an overrun")


class Job(ApiRecord):
    """A job. The times ``promise`` and ``completion`` are the ends of slots.

    A promise may be much later than the expected completion if the job's utility is the same then.
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
    promise_margin_slots: int = Field(description="learnt slots from planned completion to promise")
    promise_margin_jobs: int = Field(description="finished jobs that the margin was learnt from")
    completion: datetime | None = Field(
        description="completion; of an open job the expected one, at the stated work and speed. "
        "null if the job waits without a promise or longer than planned, or runs longer than stated"
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
    failures: int = Field(description="failed generations, including lost ones")
    lost: int = Field(description="generations lost through no fault of the job")
    speed: JobSpeed
    predicted: PredictedLength | None = Field(
        description="null if the job states its length, its speed is measured, or it is closed. A "
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
        None, description="why a generation can't be started or ended, which delays the next one"
    )
    broken_promise: BrokenPromise | None = Field(None, description="null if kept, or still open")


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
    """The smallest change of a key that gets a refused job admitted or a waiting job promised."""

    key: str = Field(description="such as utility.value or worker.gpu")
    before: str
    after: str = Field(description="value, as in a job file")
    change: str = Field(description="size of the change, for people")
    option: str | None = Field(
        None, description="option of `submit` for the change; null if options don't set the key"
    )
    option_before: str | None = Field(default=None, description="present value of the option")
    option_after: str | None = Field(default=None, description="new value of the option")
    completion: datetime | None = Field(description="planned completion; a promise adds the margin")
    utility: float | None
    price: float | None


class PredictedStart(ApiRecord):
    """The start of a job that waits, predicted from the waits of similar jobs."""

    by: datetime
    probability: float = Field(description="of a start by then, judging by similar jobs")
    jobs: int = Field(description="similar finished jobs that waited longer than this job so far")


class JobOutlook(ApiRecord):
    """What a job that waits or was refused lacks now, and what would get it admitted.

    For a promised job that doesn't run yet, only the start and the completion are set.
    """

    resource: str | None = Field(description="the scarcest resource for the job")
    servers: str | None = Field(description="kind of server that lacks it")
    admitted_now: bool = Field(description="whether it would be admitted if submitted again now")
    starts: datetime | None = Field(description="latest start, if plans hold and no job arrives")
    completes: datetime | None = Field(
        description="completion if it starts then and runs as stated"
    )
    predicted_start: PredictedStart | None = Field(
        description="null if the job is promised or has run, or no similar job waited longer"
    )
    abandoned: datetime | None = Field(description="when it is abandoned, because it is too late")
    waits_beyond: datetime | None = Field(description="last planned time, if it still waits then")
    changes: list[SuggestedChange] = Field(description="each suffices; the smallest within 1 %")
    ineffective: list[str] = Field(description="keys of which no value gets it admitted")
    untried: list[str] = Field(description="keys that were not tried, because time ran out")
    seconds: float = Field(description="processor time of this outlook")
    lines: list[str] = Field(description="the outlook as text")


class JobHistory(ApiRecord):
    """A job's events and generations. A long history has its first and its newest events."""

    job: Job
    broken_promise: BrokenPromise | None
    events: list[StoredEvent]
    omitted: OmittedEvents | None
    generations: list[Generation]
    lines: list[str] = Field(description="the events as text, one line per event")
    outlook: JobOutlook | None = Field(
        default=None, description="null unless requested, and for a job that runs or has run"
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
    complete: bool = Field(description="whether the process has ended and no output follows")


class QuotePoints(ApiRecord):
    """The points of the tenant that would pay for a quoted job."""

    held: float = Field(description="points that the tenant has now")
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
    promise_margin_slots: int = Field(description="learnt slots from planned completion to promise")
    promise_margin_jobs: int = Field(description="finished jobs that the margin was learnt from")
    predicted: PredictedLength | None = Field(description="as `predicted` of a job")
    utility: float | None
    price: float | None
    displaced: list[str] | int = Field(
        description="jobs that would lose their promise; for a tenant, their number"
    )
    refusal: JobReason | None
    message: str
    points: QuotePoints | None
    timespan: QuoteEnd | None = Field(description="null if it ends too late to limit the job")
    outlook: JobOutlook | None = Field(None, description="null unless requested")


class ServerJob(ApiRecord):
    """The processes of one job on a server; tenants get no names of other tenants' jobs."""

    job: str | None
    job_id: int | None
    workers: int
    ps: int


class Server(ApiRecord):
    """A server and the jobs on it."""

    name: str
    kind: str = Field(description="name of the group of servers with equal role and capacity")
    role: Literal["worker", "ps", "any"]
    state: Literal["up", "cordoned", "drained", "lost"]
    capacity: dict[str, str]
    jobs: list[ServerJob]


class ServerSlot(ApiRecord):
    """The running slot, and the slot that is decided next."""

    seconds: float
    horizon: int
    running: int | None
    next_slot: int
    next_slot_begins: datetime


class ServerList(ApiRecord):
    """A list of servers."""

    servers: list[Server]


class Cluster(ServerList):
    """All servers, and the current slot."""

    slot: ServerSlot


class ResourcePrice(TypedDict, total=False):
    """A resource of a kind of server in one slot; absent keys are unknown.

    ``used`` is the reserved share. ``price`` is the mean price of the total amount of one server.
    """

    used: float
    price: float


class PriceSlot(ApiRecord):
    """Prices in one slot, by kind of server and resource."""

    slot: int
    begins: datetime
    kinds: dict[str, dict[str, ResourcePrice]]


class ServerKind(ApiRecord):
    """Servers of equal role and capacity."""

    name: str
    servers: list[str]
    role: Literal["worker", "ps", "any"]


class Prices(ApiRecord):
    """Prices of the coming slots."""

    priced: bool = Field(description="whether the policy has prices")
    policy: str
    kinds: list[ServerKind]
    slots: list[PriceSlot]


class PriceHistory(ApiRecord):
    """Prices of past slots."""

    slots: list[PriceSlot]


class TimelineJob(ApiRecord):
    """A job of the timeline; all fields are null if it belongs to another tenant."""

    job: str | None
    job_id: int | None
    tenant: str | None
    state: JobState | None


class TimelineBars(ApiRecord):
    """Past and planned placements as columns; times are in slots since ``origin``."""

    job: list[int] = Field(description="index into `jobs`")
    server: list[str]
    start: list[float]
    end: list[float]
    workers: list[int]
    ps: list[int]
    kind: list[int] = Field(
        description="0: the job ran; 1: reserved by the plan; 2: expected at the current rate, if "
        "the policy decides slot by slot"
    )
    share: list[float] = Field(description="used share of the server, in the bar's main resource")


class Timeline(ApiRecord):
    """Past, running and planned placements."""

    slot_seconds: float
    origin: datetime
    now: float = Field(description="current time, in slots since `origin`")
    first: int = Field(description="first slot shown")
    last: int = Field(description="slot after the last one shown")
    running: int | None = Field(description="running slot")
    next_slot: int = Field(description="first slot that can still be decided")
    servers: list[str]
    incomplete: bool = Field(description="whether old bars are omitted, because there are too many")
    levels: str | None = Field(
        default=None,
        description="base64 of one byte per slot in [first, last), server by server: used share of "
        "the scarcest resource, 255 if all is used; null if the query names one job",
    )
    jobs: list[TimelineJob] | None
    bars: TimelineBars | None = Field(description="null above 4,000: query one server or job")
    promises: list[tuple[int, int]] | None = Field(
        description="[index into `jobs`, promised slot] of jobs without a placement"
    )


class DecisionPage(ApiPage):
    """A page of the policy's decisions, newest first."""

    decisions: list[StoredEvent]


WhatIfState = Literal["waiting", "running", "done", "failed", "cancelled"]


class WhatIfProgress(ApiRecord):
    """Finished simulations of a what-if run."""

    done: int = Field(description="finished simulations")
    of: int = Field(description="all simulations of the run")


class WhatIfQuestion(ApiRecord):
    """The change that a what-if run simulates, and for which days."""

    days: float
    at: datetime = Field(description="end of these days")
    servers: dict[str, int] = Field(description="added servers by kind; negative if removed")
    policy: str
    set: dict[str, Any] = Field(description="policy parameters that the run changes")


class WhatIfTimes(ApiRecord):
    """Differences in time between the simulations; negative means sooner."""

    mean_jct_seconds: float | None = Field(description="mean JCT of jobs that finished in both")
    mean_wait_seconds: float | None = Field(
        description="change of the mean wait for the first start, for jobs that ran in both"
    )
    waiting_saved_hours: float = Field(description="total waiting saved by jobs that ran in both")
    jobs: int = Field(description="number of jobs that ran in both")


class WhatIf(ApiRecord):
    """A what-if run: the recent jobs, simulated on the present and on the changed cluster."""

    id: int
    requested_at: datetime
    state: WhatIfState
    progress: WhatIfProgress
    jobs: int
    question: WhatIfQuestion
    as_is: dict[str, Any] | None = Field(description="summary on the present cluster")
    changed: dict[str, Any] | None = Field(description="summary with the change")
    gain: float | None = Field(description="total utility of `changed` minus that of `as_is`")
    times: WhatIfTimes | None = Field(description="differences in completion and waiting times")
    reason: str | None = Field(description="why the run failed")


class WhatIfList(ApiRecord):
    """What-if runs since the service started, newest first."""

    runs: list[WhatIf]


ObservedState = Literal["not seen", "running", "failed", "ended"]


class SimulatedTotals(ApiRecord):
    """Totals of the jobs under this service's decisions."""

    utility: float
    finished: int
    running: int
    waiting: int
    refused: int
    failed: int


class ObservedTotals(ApiRecord):
    """Totals of the jobs as they really ran."""

    utility: float
    finished: int
    running: int
    waiting: int
    failed: int
    assumed_completed: int = Field(description="ended jobs with an unknown exit status")
    unknown_utility: int = Field(description="ended jobs with an unknown utility")


class CompletedInBoth(ApiRecord):
    """Jobs that completed in the simulation and in reality, and their mean completion times."""

    jobs: int
    simulated_seconds: float | None
    observed_seconds: float | None


class ComparedPromises(ApiRecord):
    """How many promised jobs really completed, and how many by their promised time."""

    jobs: int
    observed_in_time: int


class UnmanagedJob(ApiRecord):
    """A job that ran and was never submitted."""

    name: str
    tenant: str | None
    started: datetime
    completion: datetime | None
    state: ObservedState
    utility: float | None


class UnmanagedJobs(ApiRecord):
    """Jobs that ran and were never submitted."""

    count: int
    newest: list[UnmanagedJob]


class ComparedUtilization(ApiRecord):
    """Used share of the cluster in every slot from ``first`` on."""

    first: int
    simulated: list[float]
    observed: list[float]
    unknown_jobs: int
    unknown_servers: list[str]
    incomplete: bool


class ComparisonTotals(ApiRecord):
    """Simulated and observed totals of the submitted jobs, without withdrawn (cancelled) jobs."""

    jobs: int
    withdrawn: int
    simulated: SimulatedTotals
    observed: ObservedTotals
    both: CompletedInBoth
    promises: ComparedPromises


class Comparison(ComparisonTotals):
    """The jobs of the last days, as simulated and as observed."""

    days: float
    last_observation: datetime | None = Field(description="time of the last observation")
    incomplete: bool = Field(description="whether older jobs are omitted, because of their number")
    unmanaged_jobs: UnmanagedJobs
    utilization: ComparedUtilization


class SimulatedJob(ApiRecord):
    """A job under this service's decisions."""

    state: JobState
    started: datetime | None
    promise: datetime | None
    completion: datetime | None
    utility: float | None
    reason: JobReason | None


class ObservedJob(ApiRecord):
    """A job as it really ran."""

    state: ObservedState
    started: datetime | None
    completion: datetime | None
    utility: float | None
    runs: int


class ComparedJob(ApiRecord):
    """A job as simulated and as observed; ``gain`` is the simulated minus the observed utility."""

    id: int
    name: str
    tenant: str | None
    submitted: datetime
    simulated: SimulatedJob
    observed: ObservedJob
    gain: float | None


class ComparedJobPage(ApiPage):
    """A page of compared jobs, newest first."""

    jobs: list[ComparedJob]


class Budget(ApiRecord):
    """Points that a tenant may spend in a period."""

    points: float
    period: str
    since: datetime
    carry: float | Literal["all"]


class Account(ApiRecord):
    """The points of a tenant in the current period.

    Held, reserved and spent points add up to the points at the start of the period, plus points
    granted or paid to the tenant since then, minus expired points.
    """

    held: float = Field(
        description="points that can be spent. They are negative if the budget was lowered below "
        "the debited points; then only jobs that cost nothing are admitted"
    )
    reserved_points: float = Field(description="points paid for open jobs and not used yet")
    spent: float = Field(description="points that jobs used in this period")
    begins: datetime
    ends: datetime
    sums: dict[str, float] = Field(description="points by kind of entry")


class Tenant(ApiRecord):
    """A tenant. Without a budget, it spends without limit and has no account."""

    name: str
    share: dict[str, str]
    jobs: dict[str, int] = Field(description="number of open jobs by state")
    budget: Budget | None
    account: Account | None


class TenantList(ApiRecord):
    """A list of tenants."""

    tenants: list[Tenant]


class AccountEntry(ApiRecord):
    """One change of an account; ``other`` is the tenant that paid.

    A tenant doesn't get the names of the jobs for which other tenants paid it.
    """

    id: int
    at: datetime
    kind: Literal["grant", "expiry", "debit", "refund", "payment"]
    points: float
    balance: float
    job: str | None
    job_id: int | None
    other: str | None
    note: str


class Statement(ApiPage):
    """A tenant's statement with one page of entries, newest first.

    Balances and sums are those of the whole time span.
    """

    tenant: str
    budget: Budget | None
    account: Account | None
    opening: float
    closing: float
    sums: dict[str, float]
    entries: list[AccountEntry]


TokenRole = Literal["operator", "tenant"]


class NewToken(ApiRecord):
    """A token that was just created; ``token`` is not shown again."""

    id: int
    role: TokenRole
    tenant: str | None
    note: str
    expires: datetime | None
    token: str = Field(repr=False)


class Token(ApiRecord):
    """A token, without its secret."""

    id: int
    role: TokenRole
    tenant: str | None
    note: str
    created: datetime
    expires: datetime | None
    revoked: datetime | None


class TokenList(ApiRecord):
    """Tokens; valid ones come first."""

    tokens: list[Token]


class Upload(ApiRecord):
    """A stored archive; jobs of its tenant name its digest in `run.upload`."""

    digest: str = Field(description="SHA-256 of the archive, in hexadecimal")
    tenant: str | None
    bytes: int
    used: datetime = Field(description="time of its upload, or of the last submission with it")


class UploadLimits(ApiRecord):
    """Limits of one upload."""

    max_bytes: int
    max_entries: int = Field(description="maximum number of files, directories and links")


class Health(ApiRecord):
    """Whether the process responds (`/healthz`), or can do its work (`/readyz`)."""

    status: Literal["ok", "ready", "degraded", "not ready", "standby"]


class TokenOwner(ApiRecord):
    """The owner of the request's token."""

    role: TokenRole
    tenant: str | None


class Timespan(ApiRecord):
    """The end of the timespan: nothing runs from slot ``slot`` on."""

    until: datetime | None = Field(description="requested end")
    ends: datetime | None = Field(description="start of the first slot without jobs")
    slot: int | None
    ended: bool


class ServiceWarning(ApiRecord):
    """A condition that an operator should change; further keys have details."""

    code: str
    message: str


class ServiceStatus(ApiRecord):
    """The service's configuration and its current slot."""

    version: str
    policy: str
    policies: list[str]
    executor: str | None
    host: str | None = Field(description="machine that runs the jobs; null if several or unknown")
    uploads: UploadLimits | None = Field(description="null if jobs get no files from submitters")
    observes: bool
    now: datetime
    slot_seconds: float
    horizon: int
    slot: int | None = Field(description="running slot")
    next_slot: int = Field(description="first slot that is not decided yet")
    next_slot_begins: datetime
    origin: datetime = Field(description="start of slot 0")
    timespan: Timespan
    start_up_seconds: float | None = Field(description="median, from a slot's start to first work")
    warnings: list[ServiceWarning]
    pending: int = Field(description="number of undecided jobs")
    jobs: dict[str, int] = Field(description="number of open jobs by state")
    families: list[str]
    kinds: list[str]
    sequence: int
    last_event: int
    caller: TokenOwner
    health_error: str | None = Field(default=None, description="why the service is not ready")
    data: str | None = Field(default=None, description="data directory or database")
