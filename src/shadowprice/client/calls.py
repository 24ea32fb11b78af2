"""The calls of the REST API: their requests and the models of their responses; errors. No I/O.

Most functions here become methods of both clients, with the same docstring. The methods send the
call that the function returns.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote as quoted

from shadowprice import rest
from shadowprice.core.errors import Fault, MissingExtraError, ShadowpriceError
from shadowprice.core.wording import pluralize
from shadowprice.short_table import ShortTable, ShownAsTable, table_of_records
from shadowprice.uploads.archive import MEDIA_TYPE
from shadowprice.uploads.packing import Archive

Json = Mapping[str, Any]
Model = TypeVar("Model", bound=rest.ApiRecord)
Paged = TypeVar("Paged", bound=rest.ApiPage)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_BATCH_JOBS: Final = 1_000  # maximum number of jobs in one submission
PAGE: Final = 1_000  # maximum number of entries in one page
_KEY_HEADER: Final = "Idempotency-Key"


class ServiceError(ShadowpriceError):
    """The service refused a request.

    ``record`` has the problem details (RFC 9457). ``code`` is the machine-readable kind, such as
    ``not-found``, ``name-conflict`` or ``forbidden``. ``faults`` are diagnostics with locations in
    the request, and may be empty.
    """

    def __init__(self, status: int, record: Mapping[str, Any]) -> None:
        super().__init__(str(record.get("detail") or record.get("title") or f"status {status}"))
        self.status = status
        self.code = str(record.get("code") or "error")
        self.exit_code = 2 if 400 <= status < 500 else 1
        errors = record.get("errors")
        self.faults = tuple(
            Fault(*(str(item.get(key) or "") for key in ("location", "message", "hint")))
            for item in (errors if isinstance(errors, list) else ())
            if isinstance(item, Mapping)
        )


class ServiceUnreachableError(ShadowpriceError):
    """The service is unreachable, or the connection broke; the request may have taken effect.

    Look for the job before you repeat a submission. If it has already failed, or was cancelled or
    refused, the repetition submits a new job.
    """

    code = "unreachable"


class MissingClientError(MissingExtraError):
    """The HTTP library isn't installed; a usage error, not a failed run."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[T_co]):
    """A request, and how its response is parsed."""

    method: str
    path: str
    read: Callable[[bytes], T_co]  # parses the content of the response
    query: Mapping[str, str | int | None] | None = None  # without values None, False and ""
    body: Any = None  # JSON; None for no body
    extra_seconds: float = 0.0  # added to the default timeout
    repeatable: bool = True  # whether it is idempotent, so that it may be retried
    headers: Mapping[str, str] = field(default_factory=dict)  # in addition to common headers
    archive: Archive | None = None  # content of the body instead of JSON
    sent: Callable[[int], None] | None = None  # called with the number of bytes sent so far
    may_be_absent: bool = False  # whether `not-found` gives the result None

    def or_none(self) -> ApiCall[T_co | None]:
        """Return the call whose result is None instead of a `not-found` error."""
        return replace(self, may_be_absent=True)

    @property
    def is_submission(self) -> bool:
        """Whether the call has an idempotency key, which only its own retries repeat."""
        return _KEY_HEADER in self.headers

    def next_page(self, cursor: int) -> ApiCall[T_co]:
        """Return the call for the page of a cursor."""
        return replace(self, query={**(self.query or {}), "cursor": cursor})

    @property
    def parameters(self) -> dict[str, str | int]:
        """Query parameters that are sent."""
        return {
            key: "true" if value is True else value
            for key, value in (self.query or {}).items()
            if not (value is None or value is False or value == "")
        }


@dataclass(frozen=True, slots=True)
class SubmitProblem:
    """Why one of several submitted jobs wasn't accepted."""

    index: int  # of the job in the request, from 0, because names may be equal
    name: str
    error: ServiceError


@dataclass(frozen=True, slots=True, repr=False)
class SubmitResult(ShownAsTable):
    """The result of submitting several jobs: the accepted jobs, and the problems of others."""

    jobs: Sequence[rest.Job]
    problems: Sequence[SubmitProblem]

    def short_table(self) -> ShortTable:
        """Return a table of the accepted jobs and the problems, one row each."""
        records = [
            *([("name", item.name), ("problem", str(item.error))] for item in self.problems),
            *(_short(job) for job in self.jobs),
        ]
        accepted = pluralize(len(self.jobs), "job")
        title = f"{accepted} accepted, {len(self.problems):,} with problems"
        return table_of_records(title, records)


@dataclass(frozen=True, slots=True, repr=False)
class Page(ShownAsTable, Generic[T]):
    """A page of a listing, and the cursor of the next page (None: the last page)."""

    entries: Sequence[T]
    next: int | None

    def short_table(self) -> ShortTable:
        """Return a table with a row for each entry."""
        more = ", more follow" if self.next is not None else ""
        title = f"{pluralize(len(self.entries), 'entry')}{more}"
        return table_of_records(title, [_short(entry) for entry in self.entries])


class RecordTuple(ShownAsTable, tuple[T, ...]):
    """Records of a complete listing."""

    __slots__ = ()

    def short_table(self) -> ShortTable:
        """Return a table with a row for each record."""
        return table_of_records(pluralize(len(self), "entry"), [_short(record) for record in self])


def _short(record: object) -> Iterable[tuple[str | None, object]]:
    """Return the fields of a record for a table; of a job, only the columns of `queue`."""
    if isinstance(record, rest.Job):
        return [(name, getattr(record, name)) for name in _JOB_COLUMNS]
    if isinstance(record, rest.ApiRecord):
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
    """Return a path of the API; slashes in names are encoded, as are the names ``.`` and ``..``."""
    dots = {".": "%2E", "..": "%2E%2E"}  # otherwise HTTP libraries would resolve them
    return "/v1/" + "/".join(dots.get(part) or quoted(part, safe="") for part in parts)


def _without_none(**values: object) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


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


def _idempotency_key() -> dict[str, str]:
    """Return a header by which the service recognizes a retry, even after the job has ended."""
    return {_KEY_HEADER: secrets.token_urlsafe(24)}


# ------------------------------------------------------------------ jobs


def submit(job: Json, *, wait: int = 0) -> ApiCall[rest.Job]:
    """Submit one job, as in a job file, and return it.

    If an open or finished job has the same name and content, return that job. ``wait`` is the
    maximum number of seconds to wait for the decision.
    """
    read, headers = _read(rest.Job), _idempotency_key()
    return ApiCall(
        "POST", _path("jobs"), read, {"wait": wait or None}, dict(job), wait, headers=headers
    )


def submit_many(jobs: Sequence[Json], *, wait: int = 0) -> ApiCall[SubmitResult]:
    """Submit at most 1,000 jobs. If one is invalid, none is submitted; taken names are problems.

    ``wait`` is the maximum number of seconds to wait for the decisions.
    """

    def read(content: bytes) -> SubmitResult:
        results = rest.SubmittedJobs.model_validate_json(content).jobs
        problems = tuple(
            SubmitProblem(
                index, result.name, ServiceError(result.problem.status, result.problem.record)
            )
            for index, result in enumerate(results)
            if isinstance(result, rest.RefusedSubmission)
        )
        return SubmitResult(tuple(job for job in results if isinstance(job, rest.Job)), problems)

    body = {"jobs": [dict(job) for job in jobs]}
    extra_seconds, headers = wait + len(jobs) / 100, _idempotency_key()
    return ApiCall(
        "POST", _path("jobs"), read, {"wait": wait or None}, body, extra_seconds, headers=headers
    )


def upload(digest: str, tenant: str | None = None) -> ApiCall[rest.Upload | None]:
    """Return an upload; None if the service doesn't have it."""
    call = ApiCall("GET", _path("uploads", digest), _read(rest.Upload), {"tenant": tenant})
    return call.or_none()


def send_upload(
    archive: Archive, tenant: str | None = None, sent: Callable[[int], None] | None = None
) -> ApiCall[rest.Upload]:
    """Store an archive of files for jobs."""
    return ApiCall(
        "PUT",
        _path("uploads", archive.digest),
        _read(rest.Upload),
        {"tenant": tenant},
        extra_seconds=60,  # the service writes the archive to disk
        headers={"Content-Type": MEDIA_TYPE, "Content-Length": str(archive.size)},
        archive=archive,
        sent=sent,
    )


def jobs(*states: str, tenant: str | None = None, search: str = "") -> ApiCall[Page[rest.Job]]:
    """Yield the jobs of some states and a tenant, newest first; ``search`` is a part of names."""
    return page_of_jobs(*states, tenant=tenant, search=search)


def page_of_jobs(
    *states: str,
    tenant: str | None = None,
    cursor: int | None = None,
    limit: int | None = None,
    search: str = "",
) -> ApiCall[Page[rest.Job]]:
    """Return one page of jobs. A page of a search may be empty without being the last page."""
    query = {"state": ",".join(states), "tenant": tenant, "search": search}
    read = _page_parser(rest.JobPage, lambda page: page.jobs)
    return ApiCall("GET", _path("jobs"), read, {**query, "cursor": cursor, "limit": limit})


def job(name: str) -> ApiCall[rest.JobDetail]:
    """Return a job with its submission."""
    return ApiCall("GET", _path("jobs", name), _read(rest.JobDetail))


def cancel(name: str) -> ApiCall[rest.Job]:
    """Cancel a job and stop its processes."""
    return ApiCall("DELETE", _path("jobs", name), _read(rest.Job))


def resubmit(name: str, new_name: str, *, cancel: bool = False) -> ApiCall[rest.Job]:
    """Submit a job again under a new name, from its beginning.

    With ``cancel``, an open job is cancelled in the same operation. Otherwise it is an error.
    """
    path, body = _path("jobs", name, "resubmit"), {"name": new_name}
    headers = _idempotency_key()
    return ApiCall("POST", path, _read(rest.Job), {"cancel": cancel}, body, headers=headers)


def revise(name: str, /, *, dry_run: bool = False, **changes: object) -> ApiCall[rest.Job]:
    """Revise an open job: its ``utility``, its work or its ``deadline``.

    With ``dry_run``, nothing changes, and the result is the job as it would be, with its price.
    """
    return revise_keys(name, changes, dry_run=dry_run)


def revise_keys(name: str, changes: Json, *, dry_run: bool = False) -> ApiCall[rest.Job]:
    """Revise an open job as `revise` does, with changes as a mapping."""
    query = {"dry_run": dry_run}
    return ApiCall("PATCH", _path("jobs", name), _read(rest.Job), query, dict(changes))


def explain(name: str, *, outlook: bool = False) -> ApiCall[rest.JobHistory]:
    """Return a job's history, which explains the decisions on it.

    ``outlook`` adds the expected start of a job that doesn't run yet. For a job that waits or was
    refused, it also adds what the job lacks now, and which changes would get it admitted. The
    service takes up to a second for an outlook.
    """
    path, read = _path("jobs", name, "explain"), _read(rest.JobHistory)
    return ApiCall("GET", path, read, {"outlook": outlook}, extra_seconds=30)


def job_events(name: str) -> ApiCall[Page[rest.JobEvent]]:
    """Yield a job's events, newest first."""
    read = _page_parser(rest.JobEventPage, lambda page: page.events)
    return ApiCall("GET", _path("jobs", name, "events"), read, {"limit": PAGE})


def generations(name: str, limit: int | None = None) -> ApiCall[tuple[rest.Generation, ...]]:
    """Return a job's generations with their placements, newest first."""
    read = _list_parser(rest.GenerationList, lambda response: response.generations)
    return ApiCall("GET", _path("jobs", name, "generations"), read, {"limit": limit})


def progress(name: str, limit: int | None = None) -> ApiCall[tuple[rest.ProgressPoint, ...]]:
    """Return a job's progress reports in order; above ``limit``, an even sample."""
    read = _list_parser(rest.ProgressCurve, lambda response: response.points)
    return ApiCall("GET", _path("jobs", name, "progress"), read, {"limit": limit})


def logs(
    name: str,
    *,
    process: str | None = None,
    generation: int | None = None,
    start: int | None = None,
    max_bytes: int | None = None,
) -> ApiCall[rest.LogChunk]:
    """Return a part of one process's output, by default the end of the output of worker-0.

    ``start`` is the first byte, and ``max_bytes`` the maximum number of bytes.
    """
    query = {"process": process, "generation": generation, "start": start, "max_bytes": max_bytes}
    return ApiCall("GET", _path("jobs", name, "logs"), _read(rest.LogChunk), query)


def log_chunk(
    name: str, process: str, generation: int | None, start: int | None
) -> ApiCall[rest.LogChunk | None]:
    """Return a part of an output; None if the generation hasn't started, or has no such process."""
    return logs(name, process=process, generation=generation, start=start).or_none()


def quote(job: Json, *, outlook: bool = False) -> ApiCall[rest.Quote]:
    """Return the decision that a job would get now, without reserving anything.

    ``outlook`` adds an outlook, as for `explain`.
    """
    return ApiCall("POST", _path("quote"), _read(rest.Quote), {"outlook": outlook}, dict(job), 30)


# ------------------------------------------------------------------ cluster


def prices(slots: int | None = None) -> ApiCall[tuple[rest.PriceSlot, ...]]:
    """Return prices by kind of server over the coming slots."""
    read = _list_parser(rest.Prices, lambda response: response.slots)
    return ApiCall("GET", _path("prices"), read, {"slots": slots}, extra_seconds=30)


def servers() -> ApiCall[tuple[rest.Server, ...]]:
    """Return the servers with their jobs."""
    read = _list_parser(rest.ServerList, lambda response: response.servers)
    return ApiCall("GET", _path("servers"), read)


def add_servers(server: Json) -> ApiCall[tuple[rest.Server, ...]]:
    """Add a server as in a cluster file, or several equal servers with ``count``."""
    read = _list_parser(rest.ServerList, lambda response: response.servers)
    return ApiCall("POST", _path("servers"), read, body=dict(server), repeatable=False)


def drain(name: str) -> ApiCall[rest.Server]:
    """Drain a server; its jobs continue until the end of the slot."""
    return change_server(name, drain=True)


def cordon(name: str) -> ApiCall[rest.Server]:
    """Cordon a server; its jobs continue until they end."""
    return change_server(name, cordon=True)


def uncordon(name: str) -> ApiCall[rest.Server]:
    """Return a drained or cordoned server to service."""
    return change_server(name, drain=False)


def change_server(name: str, /, **changes: object) -> ApiCall[rest.Server]:
    """Change a server's ``capacity``, ``role`` or ``cost``."""
    return ApiCall("PATCH", _path("servers", name), _read(rest.Server), body=changes)


def remove_server(name: str) -> ApiCall[None]:
    """Remove a server; its jobs are stopped and replanned."""
    return ApiCall("DELETE", _path("servers", name), _ignore)


# ------------------------------------------------------------------ tenants


def tenants() -> ApiCall[tuple[rest.Tenant, ...]]:
    """Return the tenants."""
    read = _list_parser(rest.TenantList, lambda response: response.tenants)
    return ApiCall("GET", _path("tenants"), read)


def put_tenant(
    name: str, share: Json | None = None, *, budget: Json | None = None
) -> ApiCall[rest.Tenant]:
    """Add a tenant, or change its share or budget; None keeps the current value."""
    changes = {"share": share, "budget": budget}
    body = {key: dict(value) for key, value in changes.items() if value is not None}
    return ApiCall("PUT", _path("tenants", name), _read(rest.Tenant), body=body)


def remove_budget(name: str) -> ApiCall[rest.Tenant]:
    """Remove a tenant's budget; its remaining points expire."""
    return ApiCall("PUT", _path("tenants", name), _read(rest.Tenant), body={"budget": None})


def grant(name: str, points: float, *, note: str = "") -> ApiCall[rest.Tenant]:
    """Grant a tenant points beyond its budget. Not idempotent."""
    path, body = _path("tenants", name, "grants"), {"points": points, "note": note}
    return ApiCall("POST", path, _read(rest.Tenant), body=body, repeatable=False)


def statement(
    name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    back: int | None = None,
    kinds: Sequence[str] = (),
    cursor: int | None = None,
    limit: int | None = None,
) -> ApiCall[rest.Statement]:
    """Return a tenant's statement, with one page of its entries.

    ``kinds`` filters the entries; empty for all kinds. The time span is from ``since`` to before
    ``until`` (times with a time zone), or the period ``back``: 0 is the current period, 1 the
    previous one. ``cursor`` is the ``next`` of the previous page, and ``limit`` the maximum number
    of entries.
    """
    query = {
        "since": None if since is None else since.isoformat(),
        "until": None if until is None else until.isoformat(),
        "back": back,
        "kind": ",".join(kinds),
        "cursor": cursor,
        "limit": limit,
    }
    return ApiCall("GET", _path("tenants", name, "statement"), _read(rest.Statement), query)


def entries(
    name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    back: int | None = None,
    kinds: Sequence[str] = (),
) -> ApiCall[rest.Statement]:
    """Yield the entries of a tenant's account, newest first; parameters as for `statement`."""
    return statement(name, since=since, until=until, back=back, kinds=kinds)


def remove_tenant(name: str) -> ApiCall[None]:
    """Remove a tenant without open jobs."""
    return ApiCall("DELETE", _path("tenants", name), _ignore)


# ------------------------------------------------------------------ operating


def tokens() -> ApiCall[tuple[rest.Token, ...]]:
    """Return all tokens, without their secrets."""
    read = _list_parser(rest.TokenList, lambda response: response.tokens)
    return ApiCall("GET", _path("tokens"), read)


def create_token(
    tenant: str | None = None, *, expires: str | None = None, note: str = ""
) -> ApiCall[rest.NewToken]:
    """Create a token: a tenant's, or an operator's if ``tenant`` is None."""
    role = "operator" if tenant is None else "tenant"
    body = _without_none(role=role, note=note, tenant=tenant, expires=expires)
    return ApiCall("POST", _path("tokens"), _read(rest.NewToken), body=body, repeatable=False)


def revoke_token(number: int) -> ApiCall[None]:
    """Revoke a token."""
    return ApiCall("DELETE", _path("tokens", str(number)), _ignore)


def decisions(
    *, job: str | None = None, tenant: str | None = None
) -> ApiCall[Page[rest.StoredEvent]]:
    """Yield the policy's decisions, newest first."""
    read = _page_parser(rest.DecisionPage, lambda page: page.decisions)
    return ApiCall("GET", _path("decisions"), read, {"job": job, "tenant": tenant})


def start_whatif(
    days: float | None = None,
    servers: Mapping[str, int] | None = None,
    policy: str | None = None,
    settings: Json | None = None,
    at: datetime | None = None,
) -> ApiCall[rest.WhatIf]:
    """Start a what-if run, which simulates the last days, and return without waiting for it.

    The run repeats the ``days`` before the moment ``at`` (default: now). ``servers`` is the number
    of added servers by kind, negative if removed. ``policy`` and its ``settings`` are those of the
    service by default.
    """
    end = None if at is None else at.isoformat()
    body = _without_none(days=days, servers=servers, policy=policy, set=settings, at=end)
    read = _read(rest.WhatIf)
    return ApiCall("POST", _path("whatif"), read, body=body, repeatable=False, extra_seconds=30)


def whatif(run: int) -> ApiCall[rest.WhatIf]:
    """Return the progress and the result of a what-if run."""
    return ApiCall("GET", _path("whatif", str(run)), _read(rest.WhatIf))


def whatifs() -> ApiCall[tuple[rest.WhatIf, ...]]:
    """Return the what-if runs, newest first."""
    read = _list_parser(rest.WhatIfList, lambda response: response.runs)
    return ApiCall("GET", _path("whatif"), read)


def cancel_whatif(run: int) -> ApiCall[rest.WhatIf]:
    """Cancel a what-if run."""
    return ApiCall("DELETE", _path("whatif", str(run)), _read(rest.WhatIf))


def comparison(days: float | None = None) -> ApiCall[rest.Comparison]:
    """Compare an observing service's decisions with what really ran."""
    query = {"days": None if days is None else f"{days:g}"}
    return ApiCall("GET", _path("comparison"), _read(rest.Comparison), query, extra_seconds=30)


def compared_jobs() -> ApiCall[Page[rest.ComparedJob]]:
    """Yield jobs with their simulated and observed results, newest first."""
    read = _page_parser(rest.ComparedJobPage, lambda page: page.jobs)
    return ApiCall("GET", _path("comparison", "jobs"), read)


def service() -> ApiCall[rest.ServiceStatus]:
    """Return the service's version, configuration and status."""
    return ApiCall("GET", _path("service"), _read(rest.ServiceStatus))


def timespan() -> ApiCall[rest.Timespan]:
    """Return the end of the timespan."""
    return ApiCall("GET", _path("timespan"), _read(rest.Timespan))


def change_timespan(until: str | None) -> ApiCall[rest.Timespan]:
    """Set or move the end of the timespan (``18:00``, ``6h``), or remove it with None."""
    read, body = _read(rest.Timespan), {"until": until}
    return ApiCall("PUT", _path("timespan"), read, body=body, extra_seconds=30)
