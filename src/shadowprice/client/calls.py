"""The calls of the service's API: what each sends, and how its answer is read. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote as quoted

from shadowprice.client.errors import ServiceError
from shadowprice.client.records import (
    Event,
    Generation,
    Job,
    Json,
    LogPiece,
    Page,
    Point,
    PriceSlot,
    Quote,
    Server,
    Statement,
    Story,
    Tenant,
    Token,
)

T = TypeVar("T")
R = TypeVar("R")

BATCH: Final = 1_000
"""Jobs of one submission, at most."""

PAGE: Final = 1_000
"""Entries of one page, at most."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request.

    Parameters
    ----------
    method, path : str
        What is asked for.
    read : callable
        Returns what the answer's record tells.
    query : mapping
        Parameters; those that are None are left out.
    body : object
        What is sent as JSON; None for nothing.
    patience : float
        Seconds that the answer may take longer than usual.
    repeatable : bool
        Whether asking twice is the same as asking once.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    query: Mapping[str, str | int | None] | None = None
    body: Any = None
    patience: float = 0.0
    repeatable: bool = True

    @property
    def parameters(self) -> dict[str, str | int]:
        """Parameters that are given."""
        return {key: value for key, value in (self.query or {}).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Batch:
    """What became of several jobs that were submitted together.

    Parameters
    ----------
    jobs : sequence of Job
        Those that were taken.
    problems : mapping of str to ServiceError
        Why others were not, by name.
    """

    jobs: Sequence[Job]
    problems: Mapping[str, ServiceError]


def _at(*parts: str) -> str:
    """Return a path; what stands in a name stays within its part."""
    return "/v1/" + "/".join(quoted(part, safe="") for part in parts)


def _listed(name: str, read: Callable[[Json], R]) -> Callable[[Any], tuple[R, ...]]:
    return lambda record: tuple(read(one) for one in record[name])


def _paged(name: str, read: Callable[[Json], R]) -> Callable[[Any], Page[R]]:
    return lambda record: Page(tuple(read(one) for one in record[name]), record.get("next"))


def _nothing(record: Any) -> None:
    del record


def submit(job: Json, wait: int = 0) -> Call[Job]:
    """Submit one job, as in a job file."""
    return Call("POST", _at("jobs"), Job.read, {"wait": wait or None}, dict(job), wait)


def submit_many(jobs: Sequence[Json], wait: int = 0) -> Call[Batch]:
    """Submit several, all accepted or none; names that are taken come back with the problem."""

    def read(record: Any) -> Batch:
        told = record["jobs"]
        return Batch(
            tuple(Job.read(one) for one in told if "problem" not in one),
            {
                one["name"]: ServiceError(one["problem"].get("status", 409), one["problem"])
                for one in told
                if "problem" in one
            },
        )

    body = {"jobs": [dict(job) for job in jobs]}
    return Call("POST", _at("jobs"), read, {"wait": wait or None}, body, wait + len(jobs) / 100)


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
    return Call("GET", _at("jobs"), _paged("jobs", Job.read), query)


def job(name: str) -> Call[Job]:
    """Look at one job; ``record["spec"]`` is what was submitted."""
    return Call("GET", _at("jobs", name), Job.read)


def cancel(name: str) -> Call[Job]:
    """Withdraw a job."""
    return Call("DELETE", _at("jobs", name), Job.read)


def revise(name: str, changes: Json) -> Call[Job]:
    """Change a job's utility, work or ``deadline``."""
    return Call("PATCH", _at("jobs", name), Job.read, body=dict(changes))


def explain(name: str) -> Call[Story]:
    """Ask for a job's story."""
    return Call("GET", _at("jobs", name, "explain"), Story.read)


def job_events(name: str, cursor: int | None = None, limit: int | None = None) -> Call[Page[Event]]:
    """List what happened to a job, the newest first."""
    read = _paged("events", Event.read)
    return Call("GET", _at("jobs", name, "events"), read, {"cursor": cursor, "limit": limit})


def generations(name: str, limit: int | None = None) -> Call[tuple[Generation, ...]]:
    """Ask what ran where, the newest first."""
    read = _listed("generations", Generation.read)
    return Call("GET", _at("jobs", name, "generations"), read, {"limit": limit})


def progress(name: str, limit: int | None = None) -> Call[tuple[Point, ...]]:
    """Ask for what a job reported."""
    read = _listed("points", Point.read)
    return Call("GET", _at("jobs", name, "progress"), read, {"limit": limit})


def logs(
    name: str,
    process: str | None = None,
    generation: int | None = None,
    start: int | None = None,
    most: int | None = None,
) -> Call[LogPiece]:
    """Ask for a piece of what a process wrote."""
    query = {"process": process, "generation": generation, "start": start, "most": most}
    return Call("GET", _at("jobs", name, "logs"), LogPiece.read, query)


def quote(job: Json) -> Call[Quote]:
    """Ask what would become of a job."""
    return Call("POST", _at("quote"), Quote.read, body=dict(job), patience=30)


def prices(slots: int | None = None) -> Call[tuple[PriceSlot, ...]]:
    """Ask for prices over slots to come."""
    read = _listed("slots", PriceSlot.read)
    return Call("GET", _at("prices"), read, {"slots": slots}, patience=30)


def servers() -> Call[tuple[Server, ...]]:
    """List servers."""
    return Call("GET", _at("servers"), _listed("servers", Server.read))


def add_servers(server: Json) -> Call[tuple[Server, ...]]:
    """Add a server, or ``count`` equal ones, as in a cluster file."""
    read = _listed("servers", Server.read)
    return Call("POST", _at("servers"), read, body=dict(server), repeatable=False)


def change_server(name: str, changes: Json) -> Call[Server]:
    """Drain a server, let it take work again, or change what it has."""
    return Call("PATCH", _at("servers", name), Server.read, body=dict(changes))


def remove_server(name: str) -> Call[None]:
    """Remove a server."""
    return Call("DELETE", _at("servers", name), _nothing)


def tenants() -> Call[tuple[Tenant, ...]]:
    """List tenants."""
    return Call("GET", _at("tenants"), _listed("tenants", Tenant.read))


def put_tenant(name: str, share: Json | None = None, budget: Json | None = None) -> Call[Tenant]:
    """Add a tenant, or give it another share or budget; None leaves one as it is."""
    body = {
        key: dict(value)
        for key, value in (("share", share), ("budget", budget))
        if value is not None
    }
    return Call("PUT", _at("tenants", name), Tenant.read, body=body)


def remove_budget(name: str) -> Call[Tenant]:
    """Let a tenant spend without limit."""
    return Call("PUT", _at("tenants", name), Tenant.read, body={"budget": None})


def grant(name: str, points: float, note: str = "") -> Call[Tenant]:
    """Give a tenant points beyond its budget."""
    body = {"points": points, "note": note}
    return Call("POST", _at("tenants", name, "grants"), Tenant.read, body=body, repeatable=False)


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
    return Call("GET", _at("tenants", name, "statement"), Statement.read, query)


def remove_tenant(name: str) -> Call[None]:
    """Remove a tenant without open jobs."""
    return Call("DELETE", _at("tenants", name), _nothing)


def tokens() -> Call[tuple[Token, ...]]:
    """List tokens, without what they are."""
    return Call("GET", _at("tokens"), _listed("tokens", Token.read))


def create_token(
    tenant: str | None = None, *, expires: str | None = None, note: str = ""
) -> Call[Token]:
    """Hand out a token: a tenant's, or an operator's where no tenant is named."""
    body: dict[str, Any] = {"role": "operator" if tenant is None else "tenant", "note": note}
    body |= {} if tenant is None else {"tenant": tenant}
    body |= {} if expires is None else {"expires": expires}
    return Call("POST", _at("tokens"), Token.read, body=body, repeatable=False)


def revoke_token(number: int) -> Call[None]:
    """Take a token back."""
    return Call("DELETE", _at("tokens", str(number)), _nothing)


def decisions(
    job: str | None = None,
    tenant: str | None = None,
    cursor: int | None = None,
    limit: int | None = None,
) -> Call[Page[Event]]:
    """List what was decided, the newest first."""
    query = {"job": job, "tenant": tenant, "cursor": cursor, "limit": limit}
    return Call("GET", _at("decisions"), _paged("decisions", Event.read), query)


def ask_whatif(
    days: float | None = None,
    servers: Mapping[str, int] | None = None,
    policy: str | None = None,
    settings: Json | None = None,
) -> Call[Json]:
    """Ask what the last days would have earned otherwise; the run goes on in the background."""
    asked = {"days": days, "servers": servers, "policy": policy, "set": settings}
    body = {key: value for key, value in asked.items() if value is not None}
    return Call("POST", _at("whatif"), dict, body=body, repeatable=False, patience=30)


def whatif(run: int) -> Call[Json]:
    """Ask how far a what-if is, and what came of it."""
    return Call("GET", _at("whatif", str(run)), dict)


def whatifs() -> Call[tuple[Json, ...]]:
    """List what-ifs, the newest first."""
    return Call("GET", _at("whatif"), _listed("runs", dict))


def cancel_whatif(run: int) -> Call[Json]:
    """End a what-if."""
    return Call("DELETE", _at("whatif", str(run)), dict)


def comparison(days: float | None = None) -> Call[Json]:
    """Compare what was decided with what really ran, where the service only observes."""
    query = {"days": None if days is None else f"{days:g}"}
    return Call("GET", _at("comparison"), dict, query, patience=30)


def compared_jobs(cursor: int | None = None, limit: int | None = None) -> Call[Page[Json]]:
    """List jobs with both of their histories, the newest first."""
    query = {"cursor": cursor, "limit": limit}
    return Call("GET", _at("comparison", "jobs"), _paged("jobs", dict), query)


def service() -> Call[Json]:
    """Ask what the service is: its version, policy, slots."""
    return Call("GET", _at("service"), dict)


def timespan() -> Call[Json]:
    """Return the end of the timespan: ``until``, ``ends``, ``slot`` and ``ended``."""
    return Call("GET", _at("timespan"), dict)


def change_timespan(until: str | None) -> Call[Json]:
    """Set or move the end of the timespan, or remove it with None."""
    return Call("PUT", _at("timespan"), dict, body={"until": until}, patience=30)
