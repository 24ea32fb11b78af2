"""Routes of jobs, and of quotes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response, Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, create_model
from sqlalchemy import Connection

from shadowprice import rest
from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.job_keys import RESERVED_LABELS, name_of_key
from shadowprice.core.specs import JobSpec, validate
from shadowprice.core.specs.fields import LimitedModel, PathSegmentName
from shadowprice.core.wording import escape_controls, quote_for_display
from shadowprice.executors.contract import Obstacle
from shadowprice.executors.progress import decode_report, describe_omitted, read_progress
from shadowprice.service.api.references import JobDep, find_job, find_reporting_job
from shadowprice.service.api.requests import (
    CallerDep,
    Cursor,
    JsonBody,
    Limit,
    ServiceDep,
    api_router,
    get_service,
    in_turn,
    parse_choices,
    parse_json,
    problems,
    read_body,
    requested_tenant,
)
from shadowprice.service.auth import Caller
from shadowprice.service.clock import SECOND
from shadowprice.service.execution import modes
from shadowprice.service.host import find_view
from shadowprice.service.problems import ProblemError
from shadowprice.service.queries.causes import broken_promise
from shadowprice.service.queries.event_text import format_event
from shadowprice.service.resources import build_resource
from shadowprice.service.service import Service
from shadowprice.service.settings import MAX_JOBS_PER_REQUEST
from shadowprice.service.state import operations, store_queries
from shadowprice.service.state.ending import with_clock_times
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.submission import (
    REVISABLE_KEYS,
    Submission,
    merge_changes,
    read_submissions,
    request_hash,
)
from shadowprice.service.usage import added_memory, estimate_memory
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")
router = api_router("/v1", "jobs")

MAX_WAIT_SECONDS: Final = 60
MAX_REPORT_BYTES: Final = 64 << 10
DECISION_POLL_SECONDS: Final = 0.02

_DECISIONS: Final = frozenset(
    {"admitted", "standby", "refused", "given-up", "moved", "broken", "stopped"}
)
"""Kinds of events whose text names slots (`with_clock_times`), and has no output of a job."""


IdempotencyKey = Annotated[
    str | None, Header(max_length=200, description="random text, equal in repeated requests")
]


class JobBatch(BaseModel):
    """Several jobs: all are accepted, or none."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[JobSpec], Field(min_length=1, max_length=MAX_JOBS_PER_REQUEST)]


_OPTIONAL_FIELDS: Any = {
    name: (JobSpec.model_fields[name].annotation, None) for name in REVISABLE_KEYS
} | {"deadline": (str, None)}

JobRevision = create_model(
    "JobRevision",
    __doc__="Changes of an open job; `deadline` changes a utility of that kind.",
    __config__=ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, json_schema_extra={"minProperties": 1}
    ),
    **_OPTIONAL_FIELDS,
)


class Resubmission(LimitedModel):
    """The name of a job that repeats a closed one."""

    name: PathSegmentName


class ProgressReport(BaseModel):
    """A progress report of one generation; `read_progress` validates it."""

    generation: int | None = None
    minibatches: Annotated[float, Field(ge=0, description="since the job's beginning")]
    metrics: dict[str, float] = Field(default_factory=dict)
    checkpoints: bool = Field(False, description="whether the job continues from checkpoints")


@router.post("/jobs", responses={202: {"model": rest.SubmittedJobs}, **problems(403, 409)})
async def submit(
    request: Request,
    response: Response,
    service: ServiceDep,
    caller: CallerDep,
    body: Annotated[Any, Depends(JsonBody(JobSpec | JobBatch, validated=False))],
    wait: Annotated[int, Query(ge=0, le=MAX_WAIT_SECONDS, description="seconds")] = 0,
    idempotency_key: IdempotencyKey = None,
) -> rest.Job | rest.SubmittedJobs:
    """Submit one job, or several as `{"jobs": [...]}`.

    A job object is decided at once (200); a refused job is returned too, with its reason. Jobs in
    `{"jobs": [...]}` are accepted as `pending`, all or none, and decided as fast as the policy can
    (202); `wait` waits for the decisions. Submitting the name and content of an open or finished
    job again returns that job; a job that ended otherwise is submitted again. With an
    `Idempotency-Key`, repeating the request returns its jobs, even if they have ended or other jobs
    have their names now.
    """
    several = isinstance(body, dict) and "jobs" in body and "name" not in body
    if several and body.keys() != {"jobs"}:
        unknown = next(key for key in body if key != "jobs")
        raise InputError(Fault(f"body.{quote_for_display(unknown)}", "unknown key", "known: jobs"))
    records = body["jobs"] if several else [body]
    if not isinstance(records, list) or not 1 <= len(records) <= MAX_JOBS_PER_REQUEST:
        raise InputError(Fault("body.jobs", f"expected a list of 1 to {MAX_JOBS_PER_REQUEST} jobs"))
    writer = service.require_writer()
    read = partial(_submissions, service, caller, records, single=not several)
    submissions = await in_turn(request, read)
    if service.execution is not None:
        _check_runs(service, submissions, single=not several)
    submissions = [
        replace(item, request=request_hash(caller.scope, idempotency_key, item.content_hash))
        for item in submissions
    ]
    if service.execution is not None:
        await _use_uploads(service, submissions, single=not several)
    new = await _new_submissions(service, caller.scope, submissions)
    with _reserve(service, caller.scope, new):
        results = await writer.do(operations.SubmitJobs(submissions, at_once=not several))
    if wait:
        await _wait_for_decisions(
            writer,
            [key for key, _ in results],
            wait,
            lambda: service.tokens.is_valid(caller, writer.clock.now()),
        )
        # Raises if the token became invalid meanwhile.
        service.tokens.caller(request.headers.get("authorization"), writer.clock.now())
    if not several:
        [(key, error)] = results
        if error is not None:
            raise error
        return (await get_view(service, key)).to_resource()
    response.status_code = 202
    return rest.SubmittedJobs(
        jobs=[
            (await get_view(service, key)).to_resource()
            if error is None
            else rest.RefusedSubmission(name=submission.name, problem=error.to_resource())
            for submission, (key, error) in zip(submissions, results, strict=True)
        ]
    )


def _submissions(
    service: Service,
    caller: Caller,
    records: list[Any],
    *,
    single: bool,
    quoted: bool = False,
) -> list[Submission]:
    """Validate the jobs of a request.

    Diagnostics of a ``single`` job have no index. A job that is only ``quoted`` needs no command.
    """
    writer = service.require_writer()
    return read_submissions(
        records,
        writer.published.servers.cluster,
        tenant=caller.scope,
        runs=service.execution is not None and not quoted,
        single=single,
        families=service.families,
        now=writer.clock.now(),
    )


def _reserve(
    service: Service, tenant: str | None, submissions: list[Submission]
) -> AbstractContextManager[None]:
    memory = sum(estimate_memory(submission.record) for submission in submissions)
    return service.reserve(tenant, len(submissions), memory)


async def _new_submissions(
    service: Service, tenant: str | None, submissions: list[Submission]
) -> list[Submission]:
    """Return the submissions that count for the tenant's limits, because they add an open job.

    Repeated submissions of closed jobs add none. To exclude them, the store must be read. That is
    done only if the limits would refuse the request otherwise.
    """
    open_job = service.require_writer().published.job_with_qualified_name
    new = [item for item in submissions if open_job(item.qualified_name) is None]
    try:
        with _reserve(service, tenant, new):  # only tests the limits; the caller reserves later
            return new
    except ProblemError:
        return await service.read(operations.without_known_jobs, new)


def _check_runs(service: Service, submissions: list[Submission], *, single: bool) -> None:
    """Raise `InputError` if jobs name users that aren't allowed, or need unsupported containers."""
    execution = service.execution
    assert execution is not None  # checked by the caller
    faults: list[Fault | None] = []
    for index, submission in enumerate(submissions):
        place = "job" if single else f"jobs[{index}]"
        faults.append(modes.user_diagnostic(service.settings, submission.spec, place))
        faults.append(modes.container_diagnostic(execution.executor, submission.spec, place))
    if any(faults):
        raise InputError([fault for fault in faults if fault is not None][:50])


async def _use_uploads(service: Service, submissions: list[Submission], *, single: bool) -> None:
    """Mark the jobs' uploads as used; raise `InputError` if a new job's upload doesn't exist."""
    uploads, now = service.upload_store, service.require_writer().clock.now()
    faults: dict[str, Fault] = {}
    for index, submission in enumerate(submissions):
        run, place = submission.spec.run, "job" if single else f"jobs[{index}]"
        if run is None or run.upload is None:
            continue
        if uploads is not None:
            uploads.use(submission.tenant, run.upload, now)
        fault = modes.upload_diagnostic(uploads, submission.spec, place)
        if fault is not None:
            faults[submission.qualified_name] = fault
    if not faults:
        return
    missing = [item for item in submissions if item.qualified_name in faults]
    # A repeated submission needs no upload, so only missing uploads of new jobs are errors.
    new = await service.read(operations.without_known_jobs, missing)
    if new:
        raise InputError([faults[item.qualified_name] for item in new][:50])


async def _wait_for_decisions(
    writer: Writer, keys: list[str], seconds: float, is_allowed: Callable[[], bool]
) -> None:
    """Wait for the decisions on jobs, at most ``seconds``, while the caller's token is valid."""
    deadline = time.monotonic() + seconds
    jobs = writer.published.jobs
    while time.monotonic() < deadline and is_allowed():
        if not any(key in jobs and jobs[key].state is State.PENDING for key in keys):
            return
        await asyncio.sleep(DECISION_POLL_SECONDS)


async def _job_of_request(service: Service, request: str | None) -> JobView | None:
    """Return the job of an earlier request with the same hash; None if there was none."""
    if request is None:
        return None
    jobs = await service.read(
        lambda connection: store_queries.jobs_of_requests(connection, [request])
    )
    return await find_view(service, jobs[request].view.key) if jobs else None


async def get_view(service: Service, key: str) -> JobView:
    """Return the job with a key, open or closed; raise `ProblemError` if it is unknown."""
    view = await find_view(service, key)
    if view is None:
        raise ProblemError("not-found", f"unknown job {quote_for_display(name_of_key(key))}")
    return view


@router.get("/jobs", responses=problems(403))
async def list_jobs(
    service: ServiceDep,
    caller: CallerDep,
    state: Annotated[str, Query(description="states, separated by commas")] = "",
    tenant: str | None = None,
    search: Annotated[
        str,
        Query(
            max_length=bounds.NAME.maximum,
            description="part of the name, letters a to z in any case",
        ),
    ] = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> rest.JobPage:
    """List jobs, newest first; `next` is the cursor of the next page.

    A page of a search by name ends after 20,000 jobs, of a tenant if the list is a tenant's. It
    may have fewer than `limit` entries, even none, and still a `next`.
    """
    states = parse_choices("?state", state, State)
    tenant = requested_tenant(caller, tenant)
    jobs = service.require_writer().published.jobs

    # Builds the page in the reader's thread, because a thousand jobs would delay other requests.
    def read(connection: Connection) -> rest.JobPage:
        after = store_queries.search_start(connection, cursor, tenant) if search else 0
        views = store_queries.list_jobs(
            connection,
            states=states,
            tenant=tenant,
            search=search,
            before=cursor,
            after=after,
            limit=limit,
            current=jobs,
        )
        page = [view.to_resource() for view in views]
        # A search that stopped before the oldest job continues after the last job that it read.
        next_search = after + 1 if after else None
        return rest.JobPage(jobs=page, next=page[-1].id if len(page) == limit else next_search)

    return await service.read(read)


@router.get("/jobs/{name:name}", responses=problems(404))
async def get_job(view: JobDep, service: ServiceDep) -> rest.JobDetail:
    """Return a job with its submission in `spec`."""
    stored = await service.read(store_queries.job, view.key)
    spec = {} if stored is None else redact_environment(stored[1])
    obstacles = (item for item in service.obstacles() if item.job == view.key)
    return rest.JobDetail(
        **dict(view.to_resource()),
        broken_promise=await _broken_promise(service, view),
        spec=spec,
        obstacle=next((describe_obstacle(item) for item in obstacles), None),
    )


def describe_obstacle(obstacle: Obstacle) -> str:
    """Return a sentence that says why a generation can't be started or ended."""
    job = quote_for_display(name_of_key(obstacle.job))
    on = f" on {', '.join(obstacle.servers)}" if obstacle.servers else ""
    name = f"generation {obstacle.generation} of {job}{on}"
    return escape_controls(f"{name} can't be started or ended: {obstacle.reason}")


def redact_environment(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a submission whose values of environment variables are masked."""
    redacted = dict(spec)
    run = redacted.get("run")
    if isinstance(run, Mapping) and isinstance(run.get("env"), Mapping):
        redacted["run"] = {**run, "env": dict.fromkeys(run["env"], "***")}
    return redacted


@router.delete("/jobs/{name:name}", responses=problems(404, 409))
async def cancel(view: JobDep, service: ServiceDep) -> rest.Job:
    """Cancel a job and stop its processes. Repeating it has no effect."""
    cancelled = await service.require_writer().do(operations.cancel_job(view.key))
    return cancelled.to_resource()


@router.post("/jobs/{name:name}/resubmit", responses=problems(403, 404, 409))
async def resubmit(
    name: str,
    service: ServiceDep,
    caller: CallerDep,
    body: Annotated[Resubmission, Depends(JsonBody(Resubmission))],
    cancel: bool = False,
    idempotency_key: IdempotencyKey = None,
) -> rest.Job:
    """Submit a closed job again under a new name, from its beginning.

    With `cancel`, an open job is cancelled if the new job is accepted. Repeating the call returns
    the same job; with an `Idempotency-Key` even if `name` means another job now.
    """
    request = request_hash(caller.scope, idempotency_key, "resubmit", name, body.name)
    resubmitted = await _job_of_request(service, request)
    if resubmitted is not None:
        return resubmitted.to_resource()
    view = await find_job(service, caller, name)
    if body.name == view.name:
        message = f"{quote_for_display(body.name)} is the name of the job itself"
        raise InputError(Fault("body.name", message, "use a new name"))
    if view.state.open and not cancel:
        raise ProblemError("conflict", f"job {view.name!r} is {view.state}; requeue it instead")
    stored = await service.read(store_queries.job, view.key)
    assert stored is not None  # `find_job` found it
    labels = {
        key: value
        for key, value in (stored[1].get("labels") or {}).items()
        if not key.startswith(RESERVED_LABELS)  # a TrainingJob that owns the job won't own this one
    }
    record = {**stored[1], "name": body.name, "labels": labels}
    writer = service.require_writer()
    submissions = _submissions(service, caller, [record], single=True)
    if service.execution is not None:
        _check_runs(service, submissions, single=True)
        run = submissions[0].spec.run
        upload = None if run is None else run.upload
        if upload is not None and not service.uploads.use(view.tenant, upload, writer.clock.now()):
            detail = f"the files of job {view.name!r} were deleted; submit it from its directory"
            raise ProblemError("conflict", detail)
    submissions = [replace(item, request=request) for item in submissions]
    new = await _new_submissions(service, caller.scope, submissions)
    with _reserve(service, caller.scope, new):
        key = await writer.do(operations.resubmit_job(view.key, submissions[0]))
    return (await get_view(service, key)).to_resource()


@router.patch("/jobs/{name:name}", responses=problems(404, 409))
async def revise(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    changes: Annotated[Any, Depends(JsonBody(JobRevision, validated=False))],
    view: JobDep,
    dry_run: bool = False,
) -> rest.Job:
    """Revise an open job: its utility, its work or its `deadline`.

    With `dry_run`, nothing changes: the response is the job as it would be, with its price.
    """
    if not isinstance(changes, dict) or not changes:
        raise InputError(Fault("body", "contains no change", 'write {"deadline": "4h"}'))
    writer = service.require_writer()
    memory = await in_turn(request, partial(_check_revision, service, view, changes))
    with service.reserve(caller.scope, 0, memory):
        revised = await writer.do(operations.revise_job(view.key, changes, dry_run=dry_run))
    return revised.to_resource()


def _check_revision(service: Service, view: JobView, changes: Mapping[str, Any]) -> int:
    """Validate the changes of a job; return the memory that they add to its record.

    The writer validates them again, against the job and the servers at that time. The validation
    here spares the writer changes with many invalid values, which take long.
    """
    writer = service.require_writer()
    record = writer.published.specs.get(view.key)
    if record is None:  # the job was closed meanwhile
        return estimate_memory(changes)
    _, faults = validate(JobSpec, merge_changes(record, changes), "job")
    if faults:
        raise InputError(faults)
    return added_memory(record, changes)


@router.get("/jobs/{name:name}/explain", responses=problems(404))
async def explain(
    view: JobDep, service: ServiceDep, caller: CallerDep, outlook: bool = False
) -> rest.JobHistory:
    """Return a job's history: what was decided, when and why; `lines` are for people.

    A long history has its first and its newest events. `omitted` counts the events between them;
    `/events` lists all. `outlook` adds the expected start of a job that doesn't run yet. For a job
    that waits or was refused, it also adds what it lacks now, and the smallest changes that would
    get it admitted. An outlook takes up to a second.
    """
    events, gap = await service.read(store_queries.job_history, view.key)
    runs = await service.read(store_queries.generations, view.key, 100)
    return rest.JobHistory(
        job=view.to_resource(),
        broken_promise=await _broken_promise(service, view),
        events=events,
        omitted=gap,
        generations=runs,
        lines=[_line(service, event) for event in events],
        outlook=await _outlook(service, view, caller.scope) if outlook else None,
    )


async def _outlook(service: Service, view: JobView, tenant: str | None) -> rest.JobOutlook | None:
    """Return the outlook of a job that doesn't run yet or was refused; None if it has none."""
    is_promised = view.state is State.ADMITTED and not view.servers
    if view.state not in {State.STANDBY, State.REFUSED} and not is_promised:
        return None
    stored = await service.read(store_queries.job, view.key)
    if stored is None:
        return None
    try:
        return await service.outlooks.build(
            service.require_writer(),
            view.key,
            stored[1],
            tenant=tenant,
            waits=view.state is not State.REFUSED,
            promised=is_promised,
        )
    except ShadowpriceError as error:
        if error.code == "overloaded":
            raise
        log.info("job %s has no outlook: %s", view.key, error)
        return None


async def _broken_promise(service: Service, view: JobView) -> rest.BrokenPromise | None:
    servers, now = service.require_writer().published.servers, service.require_writer().clock.now()
    return await service.read(broken_promise, view, servers.cluster, servers.calendar, now)


def _line(service: Service, event: rest.StoredEvent) -> str:
    text = format_event(event.kind, event.data)
    if event.kind in _DECISIONS:
        text = with_clock_times(text, service.require_writer().published.servers.calendar)
    return f"{event.at:%Y-%m-%d %H:%M:%S}  {text}"


@router.get("/jobs/{name:name}/events", responses=problems(404))
async def job_events(
    view: JobDep, service: ServiceDep, cursor: Cursor = None, limit: Limit = 100
) -> rest.JobEventPage:
    """List a job's events, newest first; `line` is for people."""
    events = await service.read(store_queries.list_events, before=cursor, job=view.key, limit=limit)
    return rest.JobEventPage(
        events=[rest.JobEvent(**dict(event), line=_line(service, event)) for event in events],
        next=events[-1].id if len(events) == limit else None,
    )


@router.get("/jobs/{name:name}/generations", responses=problems(404))
async def generations(view: JobDep, service: ServiceDep, limit: Limit = 100) -> rest.GenerationList:
    """List a job's generations, newest first."""
    page = await service.read(store_queries.generations, view.key, limit)
    return rest.GenerationList(generations=page)


@router.get("/jobs/{name:name}/progress", responses=problems(404))
async def progress_points(
    view: JobDep,
    service: ServiceDep,
    limit: Annotated[int, Query(ge=1, le=5_000, description="maximum number of points")] = 1_000,
) -> rest.ProgressCurve:
    """Return a job's progress reports in order; above `limit`, an even sample with the last."""
    points = await service.read(store_queries.progress_points, view.key, limit)
    return rest.ProgressCurve(points=points)


_progress_token = HTTPBearer(scheme_name="progress", auto_error=False)


@router.post(
    "/jobs/{name:name}/progress",
    status_code=202,
    response_class=Response,
    responses=problems(400, 403, 413, 415, 422),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": ProgressReport.model_json_schema()}},
        }
    },
)
async def report_progress(
    name: str, request: Request, _header: Annotated[Any, Security(_progress_token)]
) -> None:
    """Record a progress report: cumulative mini-batches, and metrics.

    The token is the job's own, `SHADOWPRICE_PROGRESS_TOKEN`. Reports that go back or come from an
    old generation are ignored. An invalid report is refused, and becomes an event of the job.
    Invalid metrics are removed from a valid report, and become an event too.
    """
    service = get_service(request)
    writer = service.require_writer()
    key, generation = await find_reporting_job(service, name, request.headers.get("authorization"))
    try:
        content = await read_body(request, MAX_REPORT_BYTES)
        try:
            body = decode_report(content)
        except (ValueError, RecursionError):
            parse_json(content, strict=False)  # raises a problem with a location
            raise
        if isinstance(body, dict):
            body.setdefault("generation", generation)
        report, omitted = read_progress(key, body, writer.clock.now() / SECOND)
        if report.generation != generation:
            raise ProblemError("forbidden", f"the token is valid for generation {generation} only")
    except ShadowpriceError as error:
        await service.invalid_progress.record(writer, key, generation, str(error))
        raise
    view = writer.published.jobs.get(key)
    if view is not None and view.generation == generation:
        service.report_progress(report)
    if omitted:
        await service.invalid_progress.record(writer, key, generation, describe_omitted(omitted))


@router.get("/jobs/{name:name}/logs", responses=problems(404, 409))
async def logs(
    view: JobDep,
    service: ServiceDep,
    generation: Annotated[
        int | None, Query(ge=1, le=2**31, description="default: the newest")
    ] = None,
    process: Annotated[str, Query(description="such as worker-0")] = "worker-0",
    start: Annotated[int | None, Query(ge=0, le=2**53, description="first byte")] = None,
    max_bytes: Annotated[
        int, Query(ge=1, le=1 << 20, description="maximum number of bytes")
    ] = 65_536,
) -> rest.LogChunk:
    """Return a part of the output of one process; request `end` as `start` to follow it."""
    if service.execution is None:
        raise ProblemError("unsupported", "the service only observes and runs no processes")
    try:
        chunk = await service.execution.executor.logs(
            view.key, generation, process, start=start, max_bytes=max_bytes
        )
    except KeyError as error:
        raise ProblemError("not-found", "no logs of this job, generation and process") from error
    return build_resource(rest.LogChunk, chunk)


@router.post("/quote", responses=problems(403, 409))
async def quote(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    body: Annotated[Any, Depends(JsonBody(JobSpec, validated=False))],
    outlook: bool = False,
) -> rest.Quote:
    """Return what would be decided if a job were submitted now; nothing is reserved.

    `outlook` adds the expected start. For a job that would wait or be refused, it also adds what
    the job lacks, and the smallest changes that would get it promised or admitted. An outlook takes
    up to a second.
    """
    if isinstance(body, dict):
        body = {"name": "quote", **body}
    writer = service.require_writer()
    calendar = writer.published.servers.calendar
    read = partial(_submissions, service, caller, [body], single=True, quoted=True)
    [submission] = await in_turn(request, read)
    quoted = await writer.do(operations.quote_job(submission))
    # Names of other tenants' jobs are confidential.
    resource = quoted.to_resource(submission.name, calendar, names=caller.is_operator)
    if not outlook:
        return resource
    # Like the quote, the outlook uses what was measured of an open job of the same name.
    open_job = writer.published.job_with_qualified_name(submission.qualified_name)
    answer = await service.outlooks.build(
        writer,
        submission.qualified_name if open_job is None else open_job.key,
        submission.record,
        tenant=caller.scope,
        waits=resource.answer != "refused",
        promised=resource.answer == "admitted",
        quoted=True,
    )
    return resource.model_copy(update={"outlook": answer})
