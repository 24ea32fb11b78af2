"""Routes of tenants: shares, budgets, statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from shadowprice.core import bounds
from shadowprice.core.amounts import format_amount
from shadowprice.core.budget import POINT, parse_moment
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import validate
from shadowprice.core.specs.cluster import TenantSpec
from shadowprice.core.wording import is_text, shown
from shadowprice.service.api.clusters import checked_amounts
from shadowprice.service.api.documents import tenants as documents
from shadowprice.service.api.requests import (
    Anyone,
    Asked,
    Operator,
    answer,
    body_of,
    known_query,
    limit_of,
    object_of,
    whole_of,
)
from shadowprice.service.budgets import statements
from shadowprice.service.budgets.accounts import NEVER, Kind
from shadowprice.service.budgets.budgeting import Grant, PutTenant, RemoveTenant
from shadowprice.service.clock import SECOND
from shadowprice.service.problems import ProblemError
from shadowprice.service.service import Service

router = APIRouter(prefix="/v1", tags=["tenants"])

NOTE: Final = 200
"""Characters of a note, at most."""


def _tenants(service: Service, only: str | None) -> list[dict[str, Any]]:
    published = service.writing.published
    cluster, accounts = published.servers.cluster, published.accounts
    states: dict[str | None, dict[str, int]] = {}
    in_jobs: dict[str | None, int] = {}
    for view in published.jobs.values():
        counts = states.setdefault(view.tenant, {})
        counts[view.state.value] = counts.get(view.state.value, 0) + 1
        in_jobs[view.tenant] = in_jobs.get(view.tenant, 0) + (view.price or 0) - view.used
    shares = {tenant.name: dict(tenant.share) for tenant in cluster.tenants}
    names = dict.fromkeys([*shares, *accounts, *(name for name in states if name is not None)])
    found = []
    for name in names if only is None else (one for one in (only,) if one in names):
        account = accounts.get(name)
        record: dict[str, Any] = {
            "name": name,
            "share": {
                resource: format_amount(amount, cluster.dimensions[cluster.column[resource]])
                for resource, amount in shares.get(name, {}).items()
            },
            "jobs": states.get(name, {}),
            "budget": None,
            "account": None,
        }
        if account is not None:
            record["budget"] = statements.budget_record(account.budget)
            record["account"] = statements.account_record(account, in_jobs.get(name, 0))
        found.append(record)
    return found


@router.get("/tenants", **documents.LIST_TENANTS)
async def list_tenants(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """List tenants with shares, open jobs, budgets and what they hold; a tenant sees itself."""
    known_query(request, ())
    return answer({"tenants": _tenants(service, caller.scope)})


@router.put("/tenants/{name:name}", **documents.PUT_TENANT)
async def put_tenant(name: str, request: Request, service: Asked, caller: Operator) -> JSONResponse:
    """Add a tenant, or give it another share or budget; what is left out stays as it is.

    A budget that is null is removed, with what is left of it.
    """
    del caller
    known_query(request, ())
    body = object_of(await body_of(request), ("share", "budget"))
    spec, faults = validate(TenantSpec, {"name": name, **body}, "tenant")
    if spec is None:
        raise InputError(faults)
    share: Mapping[str, int] | None = None
    if "share" in body:
        share = checked_amounts(spec.share, service.writing.published.servers.cluster)
    budget = spec.resolve().budget
    await service.writing.do(PutTenant(name, share, budget, budgeted="budget" in body))
    return answer(_tenants(service, name)[0])


@router.delete("/tenants/{name:name}", status_code=204, **documents.REMOVE_TENANT)
async def remove_tenant(name: str, request: Request, service: Asked, caller: Operator) -> Response:
    """Remove a tenant without open jobs, and its budget."""
    del caller
    known_query(request, ())
    published = service.writing.published
    if name not in published.servers.cluster.tenant_index and name not in published.accounts:
        raise _unknown(name)
    await service.writing.do(RemoveTenant(name))
    return Response(status_code=204)


@router.post("/tenants/{name:name}/grants", status_code=201, **documents.GRANT)
async def grant(name: str, request: Request, service: Asked, caller: Operator) -> JSONResponse:
    """Give a tenant points beyond its budget, for the period that runs; done twice, it is twice."""
    del caller
    known_query(request, ())
    body = object_of(await body_of(request), ("points", "note"))
    points, note = body.get("points"), body.get("note", "")
    faults = []
    if isinstance(points, bool) or not isinstance(points, int | float) or not points * POINT >= 1:
        faults.append(Fault("body.points", "is no number of points", "write 50"))
    elif points > bounds.POINTS.most:
        faults.append(Fault("body.points", bounds.POINTS.message(points)))
    if not isinstance(note, str) or len(note) > NOTE or not is_text(note):
        faults.append(Fault("body.note", f"is no text of at most {NOTE} characters"))
    if faults:
        raise InputError(faults)
    assert isinstance(points, int | float)
    await service.writing.do(Grant(name, round(points * POINT), note))
    return answer(_tenants(service, name)[0], 201)


@router.get("/tenants/{name:name}/statement", **documents.STATEMENT)
async def statement(name: str, request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return a tenant's statement: what it held, was granted, paid and got back, entry by entry.

    `back` asks for one period: 0 the one that runs, 1 the one before; `since` and `until` for any
    span. Entries come the newest first; sums and balances are of the whole span.
    """
    known_query(request, ("since", "until", "back", "kind", "cursor", "limit"))
    if caller.scope is not None and name != caller.scope:
        raise _unknown(name)
    published = service.writing.published
    account = published.accounts.get(name)
    sure = account is not None or caller.scope is not None
    if not sure and name not in published.servers.cluster.tenant_index:
        sure = await service.read(lambda connection: statements.known(connection, name))
        if not sure:
            raise _unknown(name)
    since, until = _span(request, service, name)
    asked = statements.Asked(
        name,
        since,
        until,
        _kinds(request),
        whole_of(request, "cursor", None),
        limit_of(request),
    )
    found, totals = await service.read(
        lambda connection: (
            statements.entries(connection, asked),
            statements.totals(connection, asked),
        )
    )
    jobs = published.jobs.values()
    in_jobs = sum((view.price or 0) - view.used for view in jobs if view.tenant == name)
    return answer(
        {
            "tenant": name,
            "budget": None if account is None else statements.budget_record(account.budget),
            "account": None if account is None else statements.account_record(account, in_jobs),
            **totals,
            "entries": found,
            "next": found[-1]["id"] if len(found) == asked.limit else None,
        }
    )


def _kinds(request: Request) -> tuple[str, ...]:
    kinds = tuple(text for text in request.query_params.get("kind", "").split(",") if text)
    for text in kinds:
        if text not in list(Kind):
            known = ", ".join(Kind)
            raise InputError(Fault("?kind", f"{shown(text)} is no kind", f"one of: {known}"))
    return kinds


def _span(request: Request, service: Service, name: str) -> tuple[int | None, int | None]:
    """Return from when on, and until when, entries are asked for."""
    since, until = _moment(request, "since"), _moment(request, "until")
    back = whole_of(request, "back", None, 0, 10**6)
    if back is None:
        return since, until
    if since is not None or until is not None:
        raise InputError(Fault("?back", "is a span of its own", "leave since and until out"))
    account = service.writing.published.accounts.get(name)
    if account is None:
        raise ProblemError("conflict", f"tenant {shown(name)} has no budget, and so no periods")
    period = account.period - back
    begins = account.budget.begins
    return _storable(begins(period)), _storable(begins(period + 1))


def _storable(seconds: int) -> int:
    """Return a moment in nanoseconds, or the last one that the store knows."""
    return max(0, min(NEVER, seconds * SECOND))


def _moment(request: Request, key: str) -> int | None:
    text = request.query_params.get(key)
    if text is None:
        return None
    try:
        return _storable(int(parse_moment(text).timestamp()))
    except InputError as error:
        raise InputError(Fault(f"?{key}", str(error))) from error


def _unknown(name: str) -> ProblemError:
    return ProblemError("not-found", f"there is no tenant {shown(name)}")
