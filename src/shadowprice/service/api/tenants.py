"""Routes of tenants: shares, budgets, statements."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import Depends, Query
from pydantic import Field

from shadowprice import rest
from shadowprice.core import bounds
from shadowprice.core.amounts import format_amount
from shadowprice.core.budget import POINT, parse_timestamp
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import validate
from shadowprice.core.specs.cluster import BudgetSpec, TenantSpec
from shadowprice.core.specs.fields import AmountsField, Positive, StrictSpec, max_value
from shadowprice.core.wording import quote_for_display
from shadowprice.service.api.requests import (
    CallerDep,
    Cursor,
    JsonBody,
    Limit,
    OperatorDep,
    ServiceDep,
    api_router,
    parse_choices,
    problems,
)
from shadowprice.service.api.servers import checked_amounts
from shadowprice.service.budgets import account_table, operations
from shadowprice.service.budgets.accounts import FAR_FUTURE_NS, Account, EntryKind
from shadowprice.service.clock import SECOND
from shadowprice.service.problems import ProblemError
from shadowprice.service.service import Service

router = api_router("/v1", "tenants")

MAX_NOTE_CHARS: Final = 200


class TenantChange(StrictSpec):
    """Changes of a tenant; absent keys stay unchanged, and a null budget is removed."""

    share: AmountsField = Field(default_factory=dict)
    budget: BudgetSpec | None = None


class GrantRequest(StrictSpec):
    """Points that a tenant gets beyond its budget, for the current period."""

    points: Annotated[Positive, Field(ge=1 / POINT), max_value(bounds.POINTS)]
    note: Annotated[str, Field(max_length=MAX_NOTE_CHARS)] = ""


def _tenants(service: Service, only: str | None) -> list[rest.Tenant]:
    """Return the tenants with a share, an account or an open job; ``only`` selects one of them."""
    published = service.require_writer().published
    cluster, accounts = published.servers.cluster, published.accounts
    states: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for view in published.jobs.values():
        states[view.tenant][view.state.value] += 1
    shares = {tenant.name: dict(tenant.share) for tenant in cluster.tenants}
    names = dict.fromkeys(name for name in (*shares, *accounts, *states) if name is not None)
    tenants = []
    for name in names if only is None else (key for key in (only,) if key in names):
        share = {
            resource: format_amount(amount, cluster.dimensions[cluster.column[resource]])
            for resource, amount in shares.get(name, {}).items()
        }
        budget_and_account = account_table.account_resources(accounts.get(name))
        tenants.append(rest.Tenant(name=name, share=share, jobs=states[name], **budget_and_account))
    return tenants


def _tenant(service: Service, name: str) -> rest.Tenant:
    """Return a tenant; raise `ProblemError` if it was removed after the request's change."""
    for tenant in _tenants(service, name):
        return tenant
    raise _unknown(name)


@router.get("/tenants")
async def list_tenants(service: ServiceDep, caller: CallerDep) -> rest.TenantList:
    """List tenants with shares, open jobs, budgets and accounts; a tenant sees only itself."""
    return rest.TenantList(tenants=_tenants(service, caller.scope))


@router.put("/tenants/{name:name}", responses=problems(404, 409))
async def put_tenant(
    name: str,
    service: ServiceDep,
    _: OperatorDep,
    change: Annotated[TenantChange, Depends(JsonBody(TenantChange))],
) -> rest.Tenant:
    """Add a tenant, or change its share or budget; absent keys stay unchanged.

    A null budget is removed, with its remaining points.
    """
    spec, faults = validate(TenantSpec, {"name": name}, "tenant")
    if spec is None:
        raise InputError(faults)
    share: Mapping[str, int] | None = None
    if "share" in change.model_fields_set:
        cluster = service.require_writer().published.servers.cluster
        share = checked_amounts(change.share, cluster, "body.share")
    budget = None if change.budget is None else change.budget.resolve()
    budgeted = "budget" in change.model_fields_set
    await service.require_writer().do(operations.put_tenant(name, share, budget, budgeted=budgeted))
    return _tenant(service, name)


@router.delete("/tenants/{name:name}", status_code=204, responses=problems(404, 409))
async def remove_tenant(name: str, service: ServiceDep, _: OperatorDep) -> None:
    """Remove a tenant without open jobs, and its budget."""
    published = service.require_writer().published
    if name not in published.servers.cluster.tenant_index and name not in published.accounts:
        raise _unknown(name)
    await service.require_writer().do(operations.remove_tenant(name))


@router.post("/tenants/{name:name}/grants", status_code=201, responses=problems(404, 409))
async def grant(
    name: str,
    service: ServiceDep,
    _: OperatorDep,
    request: Annotated[GrantRequest, Depends(JsonBody(GrantRequest))],
) -> rest.Tenant:
    """Grant a tenant points beyond its budget, for the current period. Not idempotent."""
    await service.require_writer().do(
        operations.grant_points(name, round(request.points * POINT), request.note)
    )
    return _tenant(service, name)


@router.get("/tenants/{name:name}/statement", responses=problems(404, 409))
async def statement(
    name: str,
    service: ServiceDep,
    caller: CallerDep,
    since: Annotated[str | None, Query(description="from this time on")] = None,
    until: Annotated[str | None, Query(description="before this time")] = None,
    back: Annotated[
        int | None, Query(ge=0, le=10**6, description="periods back: 0 is the current one")
    ] = None,
    kind: Annotated[str, Query(description="kinds of entries, separated by commas")] = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> rest.Statement:
    """Return a tenant's statement: balances, sums, and entries, newest first.

    `back` selects one period: 0 is the current one, 1 the previous one. `since` and `until` select
    any time span. Sums and balances are those of the whole span.
    """
    if caller.scope is not None and name != caller.scope:
        raise _unknown(name)
    published = service.require_writer().published
    account = published.accounts.get(name)
    if not (
        account is not None
        or caller.scope is not None
        or name in published.servers.cluster.tenant_index
        or await service.read(account_table.tenant_exists, name)
    ):
        raise _unknown(name)
    first, last = _span(account, name, since, until, back)
    kinds = parse_choices("?kind", kind, EntryKind)
    query = account_table.EntryFilter(
        name, first, last, kinds, cursor, limit, names_all=caller.is_operator
    )
    return await service.read(account_table.statement, query, account)


def _span(
    account: Account | None, name: str, since: str | None, until: str | None, back: int | None
) -> tuple[int | None, int | None]:
    """Return the start and end of a statement's time span, in nanoseconds; None without a limit."""
    if back is None:
        return _moment(since, "since"), _moment(until, "until")
    if since is not None or until is not None:
        raise InputError(Fault("?back", "excludes since and until", "remove them"))
    if account is None:
        raise ProblemError(
            "conflict", f"tenant {quote_for_display(name)} has no budget, so it has no periods"
        )
    period = account.period - back
    begins = account.budget.begins
    return _storable(begins(period)), _storable(begins(period + 1))


def _storable(seconds: int) -> int:
    """Return a time in nanoseconds, within what the store can hold."""
    return max(0, min(FAR_FUTURE_NS, seconds * SECOND))


def _moment(text: str | None, key: str) -> int | None:
    if text is None:
        return None
    try:
        return _storable(int(parse_timestamp(text).timestamp()))
    except InputError as error:
        raise InputError(Fault(f"?{key}", str(error))) from error


def _unknown(name: str) -> ProblemError:
    return ProblemError("not-found", f"unknown tenant {quote_for_display(name)}")
