"""The calls of the REST API: the request of each, and the model of its response. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

Json = Mapping[str, Any]
Model = TypeVar("Model", bound=ApiRecord)
Paged = TypeVar("Paged", bound=ApiPage)
T = TypeVar("T")

BATCH: Final = 1_000
"""Maximum number of jobs in one submission."""

PAGE: Final = 1_000
"""Maximum number of entries in one page."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request.

    Parameters
    ----------
    method, path : str
        HTTP method and path.
    read : callable
        Parses the content of the response.
    query : mapping
        Query parameters; None leaves one out.
    body : object
        JSON body; None for no body.
    patience : float
        Seconds in addition to the usual timeout.
    repeatable : bool
        Whether the request is idempotent, so that it may be retried.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    query: Mapping[str, str | int | None] | None = None
    body: Any = None
    patience: float = 0.0
    repeatable: bool = True

    @property
    def parameters(self) -> dict[str, str | int]:
        """Query parameters without those that are None."""
        return {key: value for key, value in (self.query or {}).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of submitting several jobs: accepted jobs, and the others' problems by name."""

    jobs: Sequence[Job]
    problems: Mapping[str, ServiceError]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a listing, and the cursor of the next one."""

    entries: Sequence[T]
    next: int | None


def _path(*parts: str) -> str:
    """Return a path; slashes in names are encoded."""
    return "/v1/" + "/".join(quoted(part, safe="") for part in parts)


def _nothing(content: bytes) -> None:
    del content


def _read(model: type[Model]) -> Callable[[bytes], Model]:
    return model.model_validate_json


def _listed(
    model: type[Model], entries: Callable[[Model], Sequence[T]]
) -> Callable[[bytes], tuple[T, ...]]:
    return lambda content: tuple(entries(model.model_validate_json(content)))


def _paged(
    model: type[Paged], entries: Callable[[Paged], Sequence[T]]
) -> Callable[[bytes], Page[T]]:
    def read(content: bytes) -> Page[T]:
        page = model.model_validate_json(content)
        return Page(entries(page), page.next)

    return read


def submit(job: Json, wait: int = 0) -> Call[Job]:
    """Submit one job, as in a job file."""
    return Call("POST", _path("jobs"), _read(Job), {"wait": wait or None}, dict(job), wait)


def submit_many(jobs: Sequence[Json], wait: int = 0) -> Call[Batch]:
    """Submit several jobs, all or none; a name that is taken is returned with its problem."""

    def read(content: bytes) -> Batch:
        results = SubmittedJobs.model_validate_json(content).jobs
        accepted = tuple(one for one in results if isinstance(one, Job))
        refused = [one for one in results if isinstance(one, RefusedSubmission)]
        return Batch(accepted, {one.name: _error(one.problem) for one in refused})

    body = {"jobs": [dict(job) for job in jobs]}
    patience = wait + len(jobs) / 100
    return Call("POST", _path("jobs"), read, {"wait": wait or None}, body, patience)


def _error(problem: Problem) -> ServiceError:
    return ServiceError(problem.status, problem.record)


def jobs(
    states: Sequence[str] = (),
    tenant: str | None = None,
    cursor: int | None = None,
    limit: int | None = None,
) -> Call[Page[Job]]:
    """List jobs, the newest first."""
    query = {
        "state": ",".join(states) or None,
        "tenant": tenant,
        "cursor": cursor,
        "limit": limit,
    }
    read = _paged(JobPage, lambda page: page.jobs)
    return Call("GET", _path("jobs"), read, query)


def job(name: str) -> Call[JobDetail]:
    """Get a job with its submission."""
    return Call("GET", _path("jobs", name), _read(JobDetail))


def cancel(name: str) -> Call[Job]:
    """Withdraw a job."""
    return Call("DELETE", _path("jobs", name), _read(Job))


def revise(name: str, changes: Json) -> Call[Job]:
    """Change a job's utility, work or ``deadline``."""
    return Call("PATCH", _path("jobs", name), _read(Job), body=dict(changes))


def explain(name: str) -> Call[JobHistory]:
    """Ask for a job's story."""
    return Call("GET", _path("jobs", name, "explain"), _read(JobHistory))


def job_events(
    name: str, cursor: int | None = None, limit: int | None = None
) -> Call[Page[JobEvent]]:
    """List a job's events, newest first."""
    read = _paged(JobEventPage, lambda page: page.events)
    return Call("GET", _path("jobs", name, "events"), read, {"cursor": cursor, "limit": limit})


def generations(name: str, limit: int | None = None) -> Call[tuple[Generation, ...]]:
    """Ask what ran where, the newest first."""
    read = _listed(GenerationList, lambda found: found.generations)
    return Call("GET", _path("jobs", name, "generations"), read, {"limit": limit})


def progress(name: str, limit: int | None = None) -> Call[tuple[ProgressPoint, ...]]:
    """Ask for what a job reported."""
    read = _listed(ProgressCurve, lambda found: found.points)
    return Call("GET", _path("jobs", name, "progress"), read, {"limit": limit})


def logs(
    name: str,
    process: str | None = None,
    generation: int | None = None,
    start: int | None = None,
    most: int | None = None,
) -> Call[LogChunk]:
    """Ask for a piece of what a process wrote."""
    query = {"process": process, "generation": generation, "start": start, "most": most}
    return Call("GET", _path("jobs", name, "logs"), _read(LogChunk), query)


def quote(job: Json) -> Call[Quote]:
    """Ask what would become of a job."""
    return Call("POST", _path("quote"), _read(Quote), body=dict(job), patience=30)


def prices(slots: int | None = None) -> Call[tuple[PriceSlot, ...]]:
    """Ask for prices over slots to come."""
    read = _listed(Prices, lambda found: found.slots)
    return Call("GET", _path("prices"), read, {"slots": slots}, patience=30)


def servers() -> Call[tuple[Server, ...]]:
    """List servers."""
    return Call(
        "GET",
        _path("servers"),
        _listed(ServerList, lambda found: found.servers),
    )


def add_servers(server: Json) -> Call[tuple[Server, ...]]:
    """Add a server, or ``count`` equal ones, as in a cluster file."""
    read = _listed(ServerList, lambda found: found.servers)
    return Call("POST", _path("servers"), read, body=dict(server), repeatable=False)


def change_server(name: str, changes: Json) -> Call[Server]:
    """Drain a server, let it take work again, or change what it has."""
    return Call("PATCH", _path("servers", name), _read(Server), body=dict(changes))


def remove_server(name: str) -> Call[None]:
    """Remove a server."""
    return Call("DELETE", _path("servers", name), _nothing)


def tenants() -> Call[tuple[Tenant, ...]]:
    """List tenants."""
    return Call(
        "GET",
        _path("tenants"),
        _listed(TenantList, lambda found: found.tenants),
    )


def put_tenant(name: str, share: Json | None = None, budget: Json | None = None) -> Call[Tenant]:
    """Add a tenant, or give it another share or budget; None leaves one as it is."""
    body = {
        key: dict(value)
        for key, value in (("share", share), ("budget", budget))
        if value is not None
    }
    return Call("PUT", _path("tenants", name), _read(Tenant), body=body)


def remove_budget(name: str) -> Call[Tenant]:
    """Let a tenant spend without limit."""
    return Call("PUT", _path("tenants", name), _read(Tenant), body={"budget": None})


def grant(name: str, points: float, note: str = "") -> Call[Tenant]:
    """Give a tenant points beyond its budget."""
    body = {"points": points, "note": note}
    return Call(
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
) -> Call[Statement]:
    """Ask for a tenant's statement."""
    query = {
        "since": None if since is None else since.isoformat(),
        "until": None if until is None else until.isoformat(),
        "back": back,
        "kind": ",".join(kinds) or None,
        "cursor": cursor,
        "limit": limit,
    }
    return Call("GET", _path("tenants", name, "statement"), _read(Statement), query)


def remove_tenant(name: str) -> Call[None]:
    """Remove a tenant without open jobs."""
    return Call("DELETE", _path("tenants", name), _nothing)


def tokens() -> Call[tuple[Token, ...]]:
    """List tokens, without what they are."""
    return Call("GET", _path("tokens"), _listed(TokenList, lambda found: found.tokens))


def create_token(
    tenant: str | None = None, *, expires: str | None = None, note: str = ""
) -> Call[NewToken]:
    """Hand out a token: a tenant's, or an operator's where no tenant is named."""
    body: dict[str, Any] = {"role": "operator" if tenant is None else "tenant", "note": note}
    body |= {} if tenant is None else {"tenant": tenant}
    body |= {} if expires is None else {"expires": expires}
    return Call("POST", _path("tokens"), _read(NewToken), body=body, repeatable=False)


def revoke_token(number: int) -> Call[None]:
    """Take a token back."""
    return Call("DELETE", _path("tokens", str(number)), _nothing)


def decisions(
    job: str | None = None,
    tenant: str | None = None,
    cursor: int | None = None,
    limit: int | None = None,
) -> Call[Page[StoredEvent]]:
    """List the policy's decisions, newest first."""
    read = _paged(DecisionPage, lambda page: page.decisions)
    query = {"job": job, "tenant": tenant, "cursor": cursor, "limit": limit}
    return Call("GET", _path("decisions"), read, query)


def ask_whatif(
    days: float | None = None,
    servers: Mapping[str, int] | None = None,
    policy: str | None = None,
    settings: Json | None = None,
) -> Call[WhatIf]:
    """Ask what the last days would have earned otherwise; the run goes on in the background."""
    asked = {"days": days, "servers": servers, "policy": policy, "set": settings}
    body = {key: value for key, value in asked.items() if value is not None}
    return Call("POST", _path("whatif"), _read(WhatIf), body=body, repeatable=False, patience=30)


def whatif(run: int) -> Call[WhatIf]:
    """Ask how far a what-if is, and what came of it."""
    return Call("GET", _path("whatif", str(run)), _read(WhatIf))


def whatifs() -> Call[tuple[WhatIf, ...]]:
    """List what-ifs, the newest first."""
    return Call("GET", _path("whatif"), _listed(WhatIfList, lambda found: found.runs))


def cancel_whatif(run: int) -> Call[WhatIf]:
    """End a what-if."""
    return Call("DELETE", _path("whatif", str(run)), _read(WhatIf))


def comparison(days: float | None = None) -> Call[Comparison]:
    """Compare what was decided with what really ran, where the service only observes."""
    query = {"days": None if days is None else f"{days:g}"}
    return Call("GET", _path("comparison"), _read(Comparison), query, patience=30)


def compared_jobs(cursor: int | None = None, limit: int | None = None) -> Call[Page[ComparedJob]]:
    """List jobs with both of their histories, newest first."""
    read = _paged(ComparedJobPage, lambda page: page.jobs)
    query = {"cursor": cursor, "limit": limit}
    return Call("GET", _path("comparison", "jobs"), read, query)


def service() -> Call[ServiceStatus]:
    """Get the service's configuration and status."""
    return Call("GET", _path("service"), _read(ServiceStatus))


def timespan() -> Call[Timespan]:
    """Return the end of the timespan."""
    return Call("GET", _path("timespan"), _read(Timespan))


def change_timespan(until: str | None) -> Call[Timespan]:
    """Set or move the end of the timespan, or remove it with None."""
    return Call("PUT", _path("timespan"), _read(Timespan), body={"until": until}, patience=30)
