"""Routes of jobs: submit, list, look, cancel, revise, explain, logs, progress, quote."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.wording import shown
from shadowprice.executors.progress import read_progress
from shadowprice.service.api.documents import jobs as documents
from shadowprice.service.api.requests import (
    Anyone,
    Asked,
    answer,
    body_of,
    known_query,
    limit_of,
    object_of,
    problem,
    service_of,
    whole_of,
)
from shadowprice.service.auth import Caller, generation_of
from shadowprice.service.clock import SECOND, stamp
from shadowprice.service.driver import Driver
from shadowprice.service.problems import ProblemError
from shadowprice.service.queries.causes import broken_promise
from shadowprice.service.queries.stories import told_line
from shadowprice.service.running.modes import user_fault
from shadowprice.service.service import Service
from shadowprice.service.settings import BATCH_JOBS
from shadowprice.service.truth import reading
from shadowprice.service.truth.operations import AskQuote, Cancel, Quoted, Revise, Submit
from shadowprice.service.truth.submission import Submission, read_submissions
from shadowprice.service.truth.views import JobView, State

router = APIRouter(prefix="/v1", tags=["jobs"])

LONGEST_WAIT: Final = 60
"""Seconds that an answer may wait for decisions."""


@router.post("/jobs", **documents.SUBMIT)
async def submit(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Submit one job, or several as ``{"jobs": [...]}``.

    One job is decided on at once. Several are accepted as `pending`, all or none, and decided on as
    fast as the policy can; `?wait=10` waits so many seconds for that. The same name and content
    again is the same job.
    """
    known_query(request, ("wait",))
    wait = whole_of(request, "wait", 0, 0, LONGEST_WAIT) or 0
    body = await body_of(request)
    several = isinstance(body, dict) and "jobs" in body and "name" not in body
    records = object_of(body, ("jobs",))["jobs"] if several else [body]
    if not isinstance(records, list) or not 1 <= len(records) <= BATCH_JOBS:
        message = f"is no list of 1 to {BATCH_JOBS} jobs"
        raise InputError(Fault("body.jobs", message))
    driver = service.writing
    cluster = driver.published.servers.cluster

    def read() -> list[Submission]:
        return read_submissions(
            records,
            cluster,
            tenant=caller.scope,
            runs=service.runner is not None,
            single=not several,
            families=service.families,
        )

    # Checking many takes long enough that others would notice.
    found = await asyncio.to_thread(read) if len(records) > 4 else read()
    if service.runner is not None:
        _check_users(service, found, single=not several)
    told = await driver.do(Submit(found, at_once=not several))
    if wait:
        await _decided(
            driver,
            [name for name, _ in told],
            wait,
            lambda: service.tokens.holds(caller, driver.clock.now()),
        )
        service.tokens.caller(request.headers.get("authorization"), driver.clock.now())
    if not several:
        [(name, trouble)] = told
        if trouble is not None:
            return problem(trouble)
        return answer((await job_of(service, name)).record())
    answers = [
        (await job_of(service, name)).record()
        if trouble is None
        else {"name": name, "problem": trouble.record()}
        for name, trouble in told
    ]
    return answer({"jobs": answers}, 202)


def _check_users(service: Service, found: list[Submission], *, single: bool) -> None:
    """Refuse jobs that ask for users they may not be.

    Raises
    ------
    InputError
        With every fault.
    """
    faults = [
        user_fault(service.settings, one.spec, "job" if single else f"jobs[{at}]")
        for at, one in enumerate(found)
    ]
    if any(faults):
        raise InputError([fault for fault in faults if fault is not None][:50])


async def _decided(
    driver: Driver, names: list[str], seconds: float, allowed: Callable[[], bool]
) -> None:
    """Wait until jobs are decided on, but no longer than that, nor than who waits may."""
    until = time.monotonic() + seconds
    jobs = driver.published.jobs
    while time.monotonic() < until and allowed():
        if not any(name in jobs and jobs[name].state is State.PENDING for name in names):
            return
        await asyncio.sleep(0.02)


async def job_of(service: Service, name: str) -> JobView:
    """Return a job, open or closed.

    Raises
    ------
    ProblemError
        If there is none.
    """
    published = service.writing.published
    view = published.jobs.get(name) or published.recent.get(name)
    if view is not None:
        return view
    found = await service.read(lambda connection: reading.job(connection, name))
    if found is None:
        raise ProblemError("not-found", f"there is no job {shown(name)}")
    return found[0]


async def own_job(service: Service, caller: Caller, name: str) -> JobView:
    """Return a job that the caller may see.

    Raises
    ------
    ProblemError
        If there is none, or it is another tenant's, which looks the same.
    """
    view = await job_of(service, name)
    if not caller.operates and view.tenant != caller.tenant:
        raise ProblemError("not-found", f"there is no job {shown(name)}")
    return view


@router.get("/jobs", **documents.LIST_JOBS)
async def list_jobs(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """List jobs, the newest first; `next` is the cursor of the page that follows."""
    known_query(request, ("state", "tenant", "cursor", "limit"))
    states = [text for text in request.query_params.get("state", "").split(",") if text]
    for text in states:
        if text not in list(State):
            known = ", ".join(State)
            raise InputError(Fault("?state", f"{shown(text)} is no state", f"one of: {known}"))
    tenant = request.query_params.get("tenant")
    if caller.scope is not None:
        if tenant is not None and tenant != caller.scope:
            raise ProblemError("forbidden", "a tenant lists its own jobs only")
        tenant = caller.scope
    limit, cursor = limit_of(request), whole_of(request, "cursor", None)
    views = await service.read(
        lambda connection: reading.list_jobs(
            connection, states=states, tenant=tenant, before=cursor, limit=limit
        )
    )
    jobs = service.writing.published.jobs
    told = [jobs.get(view.name, view).record() for view in views]
    following = views[-1].id if len(views) == limit else None
    return answer({"jobs": told, "next": following})


@router.get("/jobs/{name:name}", **documents.GET_JOB)
async def get_job(name: str, request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return a job, with what was submitted in `spec`."""
    known_query(request, ())
    view = await own_job(service, caller, name)
    found = await service.read(lambda connection: reading.job(connection, name))
    record = view.record() | {"broken_promise": await _broken_promise(service, view)}
    if found is not None:
        record["spec"] = without_secrets(found[1])
    return answer(record)


def without_secrets(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was submitted without the values of a program's environment."""
    told = dict(spec)
    run = told.get("run")
    if isinstance(run, Mapping) and isinstance(run.get("env"), Mapping):
        told["run"] = {**run, "env": dict.fromkeys(run["env"], "***")}
    return told


@router.delete("/jobs/{name:name}", **documents.CANCEL)
async def cancel(name: str, request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Withdraw a job; what runs of it is stopped. Again is the same as once."""
    known_query(request, ())
    await own_job(service, caller, name)
    view: JobView = await service.writing.do(Cancel(name))
    return answer(view.record())


@router.patch("/jobs/{name:name}", **documents.REVISE)
async def revise(name: str, request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Change what is known of an open job: its utility, its work, its `deadline`."""
    known_query(request, ())
    changes = await body_of(request)
    if not isinstance(changes, dict) or not changes:
        raise InputError(Fault("body", "changes nothing", 'write {"deadline": "4h"}'))
    await own_job(service, caller, name)
    view: JobView = await service.writing.do(Revise(name, changes))
    return answer(view.record())


@router.get("/jobs/{name:name}/explain", **documents.EXPLAIN)
async def explain(name: str, request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Tell a job's story: what was decided, when, and why; `lines` are for people.

    A long one has its beginning and its newest entries; `left_out` tells how many lie between, and
    after which. All are in `events`, page by page.
    """
    known_query(request, ())
    view = await own_job(service, caller, name)
    story, left_out = await service.read(lambda connection: reading.story(connection, name))
    ran = await service.read(lambda connection: reading.generations(connection, name, 100))
    return answer(
        {
            "job": view.record(),
            "broken_promise": await _broken_promise(service, view),
            "events": story,
            "left_out": left_out,
            "generations": ran,
            "lines": [_line(entry) for entry in story],
        }
    )


async def _broken_promise(service: Service, view: JobView) -> dict[str, Any] | None:
    servers, now = service.writing.published.servers, service.writing.clock.now()
    return await service.read(
        lambda connection: broken_promise(connection, view, servers.cluster, servers.calendar, now)
    )


def _line(entry: Mapping[str, Any]) -> str:
    return f"{entry['at'][:19].replace('T', ' ')}  {told_line(entry)}"


@router.get("/jobs/{name:name}/events", **documents.JOB_EVENTS)
async def job_events(name: str, request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """List what happened to a job, the newest first; `line` is for people."""
    known_query(request, ("cursor", "limit"))
    limit, cursor = limit_of(request), whole_of(request, "cursor", None)
    await own_job(service, caller, name)
    found = await service.read(
        lambda connection: reading.list_events(connection, before=cursor, job=name, limit=limit)
    )
    following = found[-1]["id"] if len(found) == limit else None
    return answer(
        {"events": [entry | {"line": _line(entry)} for entry in found], "next": following}
    )


@router.get("/jobs/{name:name}/generations", **documents.GENERATIONS)
async def generations(name: str, request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return what ran of a job and where, the newest first."""
    known_query(request, ("limit",))
    limit = limit_of(request)
    await own_job(service, caller, name)
    found = await service.read(lambda connection: reading.generations(connection, name, limit))
    return answer({"generations": found})


@router.get("/jobs/{name:name}/progress", **documents.CURVE)
async def curve(name: str, request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return what a job reported: mini-batches and metrics, in order.

    Where there are more points than `limit`, they are left out evenly; the last one is there.
    """
    known_query(request, ("limit",))
    limit = whole_of(request, "limit", 1_000, 1, 5_000) or 1_000
    await own_job(service, caller, name)
    found = await service.read(lambda connection: reading.curve(connection, name, limit))
    return answer({"points": found})


@router.post("/jobs/{name:name}/progress", status_code=202, **documents.PROGRESS)
async def progress(name: str, request: Request) -> Response:
    """Take in how far a job is: cumulative mini-batches, and what it measures.

    The token is the job's own, `SHADOWPRICE_PROGRESS_TOKEN`. What goes back, or is of an old
    generation, is ignored; what is no report is refused, and the job's story tells why.
    """
    service = service_of(request)
    driver = service.writing
    generation = generation_of(service.key, name, request.headers.get("authorization"))
    try:
        body = await body_of(request, 64 << 10)
        if isinstance(body, dict):
            body.setdefault("generation", generation)
        report = read_progress(name, body, driver.clock.now() / SECOND)
        if report.generation != generation:
            raise ProblemError("forbidden", f"the token is that of generation {generation}")
    except ShadowpriceError as error:
        await service.misreports.tell(driver, name, generation, error)
        raise
    view = driver.published.jobs.get(name)
    if view is not None and view.generation == generation:
        driver.report(report)
    return Response(status_code=202)


@router.get("/jobs/{name:name}/logs", **documents.LOGS)
async def logs(name: str, request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return a piece of what one process of a job wrote; ask again from `end` on to follow it."""
    known_query(request, ("generation", "process", "start", "most"))
    await own_job(service, caller, name)
    if service.runner is None:
        raise ProblemError("unsupported", "nothing runs here: the service only observes")
    generation = whole_of(request, "generation", None, 1, 2**31)
    start = whole_of(request, "start", None)
    most = whole_of(request, "most", 65_536, 1, 1 << 20) or 65_536
    process = request.query_params.get("process", "worker-0")
    try:
        chunk = await service.runner.executor.logs(
            name, generation, process, start=start, most=most
        )
    except KeyError as error:
        detail = "there are no logs of that job, generation and process"
        raise ProblemError("not-found", detail) from error
    return answer(
        {
            "generation": chunk.generation,
            "process": chunk.process,
            "start": chunk.start,
            "end": chunk.end,
            "text": chunk.text,
            "complete": chunk.complete,
        }
    )


@router.post("/quote", **documents.QUOTE)
async def quote(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Tell what would become of a job if it were submitted now; nothing is reserved."""
    known_query(request, ())
    body = await body_of(request)
    if isinstance(body, dict):
        body = {"name": "quote", **body}
    driver = service.writing
    cluster = driver.published.servers.cluster
    [one] = read_submissions(
        [body],
        cluster,
        tenant=caller.scope,
        runs=False,
        single=True,
        families=service.families,
    )
    quoted: Quoted = await driver.do(AskQuote(one))
    found = quoted.quote
    calendar = driver.published.servers.calendar
    record = found.record()
    record["job"] = one.name
    record["admitted"] = found.admitted
    record["promise"] = None if found.completion is None else stamp(calendar.ends(found.completion))
    if not caller.operates and found.displaced:
        record["displaced"] = len(found.displaced)  # others' names are others' business
    return answer(record | quoted.record())
