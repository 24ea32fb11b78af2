"""Operations on budgets: requests of operators, changes of the cluster file, and due periods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from shadowprice.core.budget import Budget
from shadowprice.core.cluster import Tenant
from shadowprice.service.budgets import accounts
from shadowprice.service.budgets.billing import Billing
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.batch import Batch, operation
from shadowprice.service.state.operations import update_tenants
from shadowprice.service.store.lookups import stored_value

_KEY: Final = "budgets"


@operation
def start_due_periods(batch: Batch) -> None:
    """Do nothing: every batch starts due budget periods, so an empty batch starts only these."""


@operation
def put_tenant(
    batch: Batch,
    name: str,
    share: Mapping[str, int] | None,
    budget: Budget | None = None,
    *,
    budgeted: bool = False,
) -> None:
    """Add a tenant, or change its share or budget.

    A ``share`` of None keeps the share. If ``budgeted``, ``budget`` replaces the budget, and None
    removes it.
    """
    tenants = batch.engine.cluster.tenants
    existing = next((tenant for tenant in tenants if tenant.name == name), None)
    share = share if share is not None or existing is not None else {}
    if share is not None and (existing is None or dict(existing.share) != dict(share)):
        others = [tenant for tenant in tenants if tenant.name != name]
        update_tenants((*others, Tenant(name, share))).perform(batch)
    if budgeted:
        Billing(batch).set_budget(name, budget)


@operation
def remove_tenant(batch: Batch, name: str) -> None:
    """Remove a tenant, with its share and its budget."""
    tenants = batch.engine.cluster.tenants
    others = tuple(tenant for tenant in tenants if tenant.name != name)
    if len(others) < len(tenants):
        update_tenants(others).perform(batch)
    Billing(batch).set_budget(name, None)


@operation
def grant_points(batch: Batch, tenant: str, points: int, note: str) -> None:
    """Grant points to a tenant beyond its budget. ``points`` is in millionths of a point.

    Raise `ProblemError` if the tenant has no budget.
    """
    account, billing = batch.state.accounts.get(tenant), Billing(batch)
    if account is None:
        raise ProblemError("not-found", f"tenant {tenant!r} has no budget")
    billing.emit(billing.apply(accounts.grant(account, points, note)), "granted")


@operation
def sync_budgets(batch: Batch, budgets: Mapping[str, Budget]) -> None:
    """Apply the budgets of the cluster file, by tenant, that changed since it was last read.

    Budgets set by operators persist unless the file changes them.
    """
    stored = json.loads(stored_value(batch.connection, _KEY) or "{}")
    before = {name: Budget.from_record(record) for name, record in stored.items()}
    if before == budgets:
        return
    for name in dict.fromkeys([*before, *budgets]):
        budget = budgets.get(name)
        if budget != before.get(name):
            Billing(batch).set_budget(name, budget)
    records = {name: budget.record() for name, budget in budgets.items()}
    batch.set_value(_KEY, json.dumps(records))
