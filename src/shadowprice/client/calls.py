"""The calls of the REST API: the request of each, and the model of its response. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote as quoted

from shadowprice.client.errors import ServiceError
from shadowprice.rest.base import ApiPage, ApiRecord, Problem
from shadowprice.rest.comparison import ComparedJob, ComparedJobPage, Comparison
from shadowprice.rest.jobs import (
    Generation,
    GenerationList,
    Job,
    JobDetail,
    JobEvent,
    JobEventPage,
    JobHistory,
    JobPage,
    LogChunk,
    ProgressCurve,
    ProgressPoint,
    Quote,
    RefusedSubmission,
    StoredEvent,
    SubmittedJobs,
)
from shadowprice.rest.monitoring import (
    DecisionPage,
    Prices,
    PriceSlot,
    WhatIf,
    WhatIfList,
)
from shadowprice.rest.ops import ServiceStatus, Timespan
from shadowprice.rest.servers import Server, ServerList
from shadowprice.rest.tenants import Statement, Tenant, TenantList
from shadowprice.rest.tokens import NewToken, Token, TokenList
from shadowprice.rest.uploads import Upload
from shadowprice.short_table import ShortTable, ShownAsTable, table_of_records
from shadowprice.uploads.archive import MEDIA_TYPE
from shadowprice.uploads.packing import Archive

Json = Mapping[str, Any]
Model = TypeVar("Model", bound=ApiRecord)
Paged = TypeVar("Paged", bound=ApiPage)
T = TypeVar("T")

MAX_BATCH_JOBS: Final = 1_000  # maximum number of jobs in one submission

PAGE: Final = 1_000  # maximum number of entries in one page


_KEY_HEADER: Final = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[T]):
    """One request."""

    method: str
    path: str
    read: Callable[[bytes], T]  # parses the content of the response
    query: Mapping[str, str | int | None] | None = None  # parameters; None leaves one out
    body: Any = None  # JSON; None for no body
    patience: float = 0.0  # seconds added to the usual timeout
    repeatable: bool = True  # idempotent, so that it may be retried
    headers: Mapping[str, str] = field(default_factory=dict)  # besides those of every request
    archive: Archive | None = None  # content of the body instead of JSON
    sent: Callable[[int], None] | None = None  # receives the number of bytes sent

    @property
    def is_submission(self) -> bool:
        """Whether it has a key, by which only its own retries are recognized."""
        return _KEY_HEADER in self.headers

    @property
    def parameters(self) -> dict[str, str | int]:
        """Query parameters without those that are None."""
        return {key: value for key, value in (self.query or {}).items() if value is not None}


@dataclass(frozen=True, slots=True)
class SubmitProblem:
    """Why one of several submitted jobs wasn't accepted."""

    index: int  # of the job in the request, from 0; several tenants may use its name
    name: str
    error: ServiceError


@dataclass(frozen=True, slots=True, repr=False)
class SubmitResult(ShownAsTable):
    """The result of submitting several jobs: accepted jobs, and the problems of the others."""

    jobs: Sequence[Job]
    problems: Sequence[SubmitProblem]

    def short_table(self) -> ShortTable:
        """Return a table of the accepted jobs and the problems, one row each."""
        records = [
            *([("name", item.name), ("problem", str(item.error))] for item in self.problems),
            *(_short(job) for job in self.jobs),
        ]
        jobs = "1 job" if len(self.jobs) == 1 else f"{len(self.jobs):,} jobs"
        title = f"{jobs} accepted, {len(self.problems):,} with problems"
        return table_of_records(title, records)


@dataclass(frozen=True, slots=True, repr=False)
class Page(ShownAsTable, Generic[T]):
    """A page of a listing, and the cursor of the next one."""

    entries: Sequence[T]
    next: int | None

    def short_table(self) -> ShortTable:
        """Return a table with a row for each entry."""
        more = ", more follow" if self.next is not None else ""
        title = f"{_entry_count(self.entries)}{more}"
        return table_of_records(title, [_short(entry) for entry in self.entries])


class RecordTuple(ShownAsTable, tuple[T, ...]):
    """Records of one listing."""

    __slots__ = ()

    def short_table(self) -> ShortTable:
        """Return a table with a row for each record."""
        return table_of_records(_entry_count(self), [_short(record) for record in self])


def _entry_count(entries: Sequence[object]) -> str:
    return "1 entry" if len(entries) == 1 else f"{len(entries):,} entries"


def _short(record: object) -> Iterable[tuple[str | None, object]]:
    """Return the fields of a record for a table: those of a job that `queue` prints."""
    if isinstance(record, Job):
        return [(name, getattr(record, name)) for name in _JOB_COLUMNS]
    if isinstance(record, ApiRecord):
        return record.__repr_args__()
    return record.items() if isinstance(record, Mapping) else [("entry", record)]


_JOB_COLUMNS: Final = (
    "name",
    "tenant",
    "state",
    "promise",
    "completion",
    "progress",
    "required",
    "workers",
    "ps",
    "reason_text",
)


def _path(*parts: str) -> str:
    """Return a path; slashes in names are encoded, and names that are steps of a path."""
    steps = {".": "%2E", "..": "%2E%2E"}
    return "/v1/" + "/".join(steps.get(part) or quoted(part, safe="") for part in parts)


def _ignore(content: bytes) -> None:
    del content


def _read(model: type[Model]) -> Callable[[bytes], Model]:
    return model.model_validate_json


def _list_parser(
    model: type[Model], entries: Callable[[Model], Sequence[T]]
) -> Callable[[bytes], RecordTuple[T]]:
    return lambda content: RecordTuple(entries(model.model_validate_json(content)))


def _page_parser(
    model: type[Paged], entries: Callable[[Paged], Sequence[T]]
) -> Callable[[bytes], Page[T]]:
    def read(content: bytes) -> Page[T]:
        page = model.model_validate_json(content)
        return Page(entries(page), page.next)

    return read


def submit(job: Json, wait: int = 0) -> ApiCall[Job]:
    """Submit one job, as in a job file."""
    query = {"wait": wait or None}
    return ApiCall(
        "POST", _path("jobs"), _read(Job), query, dict(job), wait, headers=_idempotency_key()
    )


def submit_many(jobs: Sequence[Json], wait: int = 0) -> ApiCall[SubmitResult]:
    """Submit several jobs, all or none; a name that is taken is returned with its problem."""

    def read(content: bytes) -> SubmitResult:
        results = SubmittedJobs.model_validate_json(content).jobs
        accepted = tuple(result for result in results if isinstance(result, Job))
        problems = tuple(
            SubmitProblem(index, result.name, _error(result.problem))
            for index, result in enumerate(results)
            if isinstance(result, RefusedSubmission)
        )
        return SubmitResult(accepted, problems)

    body = {"jobs": [dict(job) for job in jobs]}
    patience = wait + len(jobs) / 100
    query = {"wait": wait or None}
    return ApiCall("POST", _path("jobs"), read, query, body, patience, headers=_idempotency_key())


def _idempotency_key() -> dict[str, str]:
    """Return a header by which the service recognizes a retry, also after the job has ended."""
    return {_KEY_HEADER: secrets.token_urlsafe(24)}


def _error(problem: Problem) -> ServiceError:
    return ServiceError(problem.status, problem.record)


def upload(digest: str, tenant: str | None = None) -> ApiCall[Upload]:
    """Get an upload."""
    return ApiCall("GET", _path("uploads", digest), _read(Upload), {"tenant": tenant})


def send_upload(
    archive: Archive, tenant: str | None = None, sent: Callable[[int], None] | None = None
) -> ApiCall[Upload]:
    """Store an archive of files for jobs."""
    headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(archive.size)}
    return ApiCall(
        "PUT",
        _path("uploads", archive.digest),
        _read(Upload),
        {"tenant": tenant},
        patience=60,  # the service writes it to its disk
        headers=headers,
        archive=archive,
        sent=sent,
    )


def jobs(
    states: Sequence[str] = (),
    tenant: str | None = None,
    cursor: int | None = None,
    limit: int | None = None,
    search: str = "",
) -> ApiCall[Page[Job]]:
    """List jobs, newest first; ``search`` is a part of their names."""
    query = {
        "state": ",".join(states) or None,
        "tenant": tenant,
        "search": search or None,
        "cursor": cursor,
        "limit": limit,
    }
    read = _page_parser(JobPage, lambda page: page.jobs)
    return ApiCall("GET", _path("jobs"), read, query)


def job(name: str) -> ApiCall[JobDetail]:
    """Get a job with its submission."""
    return ApiCall("GET", _path("jobs", name), _read(JobDetail))


def cancel(name: str) -> ApiCall[Job]:
    """Cancel a job."""
    return ApiCall("DELETE", _path("jobs", name), _read(Job))


def resubmit(name: str, new_name: str, *, cancel: bool = False) -> ApiCall[Job]:
    """Submit a job again under a new name; ``cancel`` cancels an open one, or neither happens."""
    query = {"cancel": "true" if cancel else None}
    body = {"name": new_name}
    path = _path("jobs", name, "resubmit")
    headers = _idempotency_key()
    return ApiCall("POST", path, _read(Job), query=query, body=body, headers=headers)


def revise(name: str, changes: Json, *, dry_run: bool = False) -> ApiCall[Job]:
    """Revise a job's utility, work or ``deadline``."""
    query = {"dry_run": "true" if dry_run else None}
    return ApiCall("PATCH", _path("jobs", name), _read(Job), query=query, body=dict(changes))


def explain(name: str, *, outlook: bool = False) -> ApiCall[JobHistory]:
    """Get a job's history, and with ``outlook`` what it lacks and what would admit it."""
    query = {"outlook": "true" if outlook else None}
    return ApiCall("GET", _path("jobs", name, "explain"), _read(JobHistory), query, patience=30)


def job_events(
    name: str, cursor: int | None = None, limit: int | None = None
) -> ApiCall[Page[JobEvent]]:
    """List a job's events, newest first."""
    read = _page_parser(JobEventPage, lambda page: page.events)
    return ApiCall("GET", _path("jobs", name, "events"), read, {"cursor": cursor, "limit": limit})


def generations(name: str, limit: int | None = None) -> ApiCall[tuple[Generation, ...]]:
    """List a job's generations, newest first."""
    read = _list_parser(GenerationList, lambda response: response.generations)
    return ApiCall("GET", _path("jobs", name, "generations"), read, {"limit": limit})


def progress(name: str, limit: int | None = None) -> ApiCall[tuple[ProgressPoint, ...]]:
    """Get a job's progress reports."""
    read = _list_parser(ProgressCurve, lambda response: response.points)
    return ApiCall("GET", _path("jobs", name, "progress"), read, {"limit": limit})


def logs(
    name: str,
    process: str | None = None,
    generation: int | None = None,
    start: int | None = None,
    max_bytes: int | None = None,
) -> ApiCall[LogChunk]:
    """Get a part of a process's output."""
    query = {"process": process, "generation": generation, "start": start, "max_bytes": max_bytes}
    return ApiCall("GET", _path("jobs", name, "logs"), _read(LogChunk), query)


def quote(job: Json, *, outlook: bool = False) -> ApiCall[Quote]:
    """Get the decision that a job would get now, and with ``outlook`` what would admit it."""
    query = {"outlook": "true" if outlook else None}
    return ApiCall("POST", _path("quote"), _read(Quote), query, body=dict(job), patience=30)


def prices(slots: int | None = None) -> ApiCall[tuple[PriceSlot, ...]]:
    """Get prices over the coming slots."""
    read = _list_parser(Prices, lambda response: response.slots)
    return ApiCall("GET", _path("prices"), read, {"slots": slots}, patience=30)


def servers() -> ApiCall[tuple[Server, ...]]:
    """List servers."""
    return ApiCall(
        "GET",
        _path("servers"),
        _list_parser(ServerList, lambda response: response.servers),
    )


def add_servers(server: Json) -> ApiCall[tuple[Server, ...]]:
    """Add a server, or ``count`` equal ones, as in a cluster file."""
    read = _list_parser(ServerList, lambda response: response.servers)
    return ApiCall("POST", _path("servers"), read, body=dict(server), repeatable=False)


def change_server(name: str, changes: Json) -> ApiCall[Server]:
    """Drain or cordon a server, return it to service, or change its capacity, role or cost."""
    return ApiCall("PATCH", _path("servers", name), _read(Server), body=dict(changes))


def remove_server(name: str) -> ApiCall[None]:
    """Remove a server."""
    return ApiCall("DELETE", _path("servers", name), _ignore)


def tenants() -> ApiCall[tuple[Tenant, ...]]:
    """List tenants."""
    return ApiCall(
        "GET",
        _path("tenants"),
        _list_parser(TenantList, lambda response: response.tenants),
    )


def put_tenant(name: str, share: Json | None = None, budget: Json | None = None) -> ApiCall[Tenant]:
    """Add a tenant, or change its share or budget; None keeps the current value."""
    body = {
        key: dict(value)
        for key, value in (("share", share), ("budget", budget))
        if value is not None
    }
    return ApiCall("PUT", _path("tenants", name), _read(Tenant), body=body)


def remove_budget(name: str) -> ApiCall[Tenant]:
    """Remove a tenant's budget."""
    return ApiCall("PUT", _path("tenants", name), _read(Tenant), body={"budget": None})


def grant(name: str, points: float, note: str = "") -> ApiCall[Tenant]:
    """Grant a tenant points beyond its budget."""
    body = {"points": points, "note": note}
    return ApiCall(
        "POST", _path("tenants", name, "grants"), _read(Tenant), body=body, repeatable=False
    )


def statement(
    name: str,
    since: datetime | None = None,
    until: datetime | None = None,
    back: int | None = None,
    kinds: Sequence[str] = (),
    cursor: int | None = None,
    limit: int | None = None,
) -> ApiCall[Statement]:
    """Get a tenant's statement."""
    query = {
        "since": None if since is None else since.isoformat(),
        "until": None if until is None else until.isoformat(),
        "back": back,
        "kind": ",".join(kinds) or None,
        "cursor": cursor,
        "limit": limit,
    }
    return ApiCall("GET", _path("tenants", name, "statement"), _read(Statement), query)


def remove_tenant(name: str) -> ApiCall[None]:
    """Remove a tenant without open jobs."""
    return ApiCall("DELETE", _path("tenants", name), _ignore)


def tokens() -> ApiCall[tuple[Token, ...]]:
    """List tokens, without their secrets."""
    return ApiCall(
        "GET", _path("tokens"), _list_parser(TokenList, lambda response: response.tokens)
    )


def create_token(
    tenant: str | None = None, *, expires: str | None = None, note: str = ""
) -> ApiCall[NewToken]:
    """Create a token: a tenant's, or an operator's if ``tenant`` is None."""
    body: dict[str, Any] = {"role": "operator" if tenant is None else "tenant", "note": note}
    body |= {} if tenant is None else {"tenant": tenant}
    body |= {} if expires is None else {"expires": expires}
    return ApiCall("POST", _path("tokens"), _read(NewToken), body=body, repeatable=False)


def revoke_token(number: int) -> ApiCall[None]:
    """Revoke a token."""
    return ApiCall("DELETE", _path("tokens", str(number)), _ignore)


def decisions(
    job: str | None = None,
    tenant: str | None = None,
    cursor: int | None = None,
    limit: int | None = None,
) -> ApiCall[Page[StoredEvent]]:
    """List the policy's decisions, newest first."""
    read = _page_parser(DecisionPage, lambda page: page.decisions)
    query = {"job": job, "tenant": tenant, "cursor": cursor, "limit": limit}
    return ApiCall("GET", _path("decisions"), read, query)


def start_whatif(
    days: float | None = None,
    servers: Mapping[str, int] | None = None,
    policy: str | None = None,
    settings: Json | None = None,
    at: datetime | None = None,
) -> ApiCall[WhatIf]:
    """Start a what-if run, which simulates the days until ``at`` (now) in the background."""
    parameters = {"days": days, "servers": servers, "policy": policy, "set": settings}
    parameters["at"] = None if at is None else at.isoformat()
    body = {key: value for key, value in parameters.items() if value is not None}
    return ApiCall("POST", _path("whatif"), _read(WhatIf), body=body, repeatable=False, patience=30)


def whatif(run: int) -> ApiCall[WhatIf]:
    """Get the progress and the result of a what-if run."""
    return ApiCall("GET", _path("whatif", str(run)), _read(WhatIf))


def whatifs() -> ApiCall[tuple[WhatIf, ...]]:
    """List what-if runs, newest first."""
    return ApiCall("GET", _path("whatif"), _list_parser(WhatIfList, lambda response: response.runs))


def cancel_whatif(run: int) -> ApiCall[WhatIf]:
    """Cancel a what-if run."""
    return ApiCall("DELETE", _path("whatif", str(run)), _read(WhatIf))


def comparison(days: float | None = None) -> ApiCall[Comparison]:
    """Compare an observing service's decisions with what really ran."""
    query = {"days": None if days is None else f"{days:g}"}
    return ApiCall("GET", _path("comparison"), _read(Comparison), query, patience=30)


def compared_jobs(
    cursor: int | None = None, limit: int | None = None
) -> ApiCall[Page[ComparedJob]]:
    """List jobs with both of their histories, newest first."""
    read = _page_parser(ComparedJobPage, lambda page: page.jobs)
    query = {"cursor": cursor, "limit": limit}
    return ApiCall("GET", _path("comparison", "jobs"), read, query)


def service() -> ApiCall[ServiceStatus]:
    """Get the service's configuration and status."""
    return ApiCall("GET", _path("service"), _read(ServiceStatus))


def timespan() -> ApiCall[Timespan]:
    """Get the end of the timespan."""
    return ApiCall("GET", _path("timespan"), _read(Timespan))


def change_timespan(until: str | None) -> ApiCall[Timespan]:
    """Set or move the end of the timespan, or remove it with None."""
    return ApiCall("PUT", _path("timespan"), _read(Timespan), body={"until": until}, patience=30)
