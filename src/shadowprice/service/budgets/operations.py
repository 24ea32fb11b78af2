"""Operations on budgets: requests of operators, changes of the cluster file, and due periods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shadowprice.core.budget import Budget
from shadowprice.core.cluster import Tenant
from shadowprice.service.budgets.billing import Billing
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.operations import UpdateTenants
from shadowprice.service.store.lookups import stored_value

_KEY: Final = "budgets"


@dataclass(frozen=True, slots=True)
class StartDuePeriods:
    """Start the budget periods that are due, even if there is no other operation."""

    def perform(self, batch: Batch) -> None:
        """Do nothing: every batch starts due periods first."""


@dataclass(frozen=True, slots=True)
class PutTenant:
    """Add a tenant, or change its share or budget."""

    name: str
    share: Mapping[str, int] | None  # None keeps the share
    budget: Budget | None = None
    budgeted: bool = False  # whether the request sets the budget; None then removes it

    def perform(self, batch: Batch) -> None:
        """Change the engine's tenants if the share differs, and the account."""
        tenants = batch.engine.cluster.tenants
        existing = next((tenant for tenant in tenants if tenant.name == self.name), None)
        share = self.share if self.share is not None or existing is not None else {}
        if share is not None and (existing is None or dict(existing.share) != dict(share)):
            others = [tenant for tenant in tenants if tenant.name != self.name]
            UpdateTenants((*others, Tenant(self.name, share))).perform(batch)
        if self.budgeted:
            Billing(batch).set_budget(self.name, self.budget)


@dataclass(frozen=True, slots=True)
class RemoveTenant:
    """Remove a tenant, with its share and its budget."""

    name: str

    def perform(self, batch: Batch) -> None:
        """Remove the tenant from the engine, and its account."""
        tenants = batch.engine.cluster.tenants
        others = tuple(tenant for tenant in tenants if tenant.name != self.name)
        if len(others) < len(tenants):
            UpdateTenants(others).perform(batch)
        Billing(batch).set_budget(self.name, None)


@dataclass(frozen=True, slots=True)
class Grant:
    """Grant points to a tenant beyond its budget. ``points`` is in millionths of a point."""

    tenant: str
    points: int
    note: str

    def perform(self, batch: Batch) -> None:
        """Credit the tenant's account."""
        Billing(batch).grant(self.tenant, self.points, self.note)


@dataclass(frozen=True, slots=True)
class SyncBudgets:
    """Apply the budgets of the cluster file, by tenant, that changed since it was last read.

    Budgets set by operators persist unless the file changes them.
    """

    budgets: Mapping[str, Budget]

    def perform(self, batch: Batch) -> None:
        """Apply the changed budgets to the accounts."""
        stored = json.loads(stored_value(batch.connection, _KEY) or "{}")
        before = {name: Budget.from_record(record) for name, record in stored.items()}
        if before == self.budgets:
            return
        for name in dict.fromkeys([*before, *self.budgets]):
            budget = self.budgets.get(name)
            if budget != before.get(name):
                Billing(batch).set_budget(name, budget)
        records = {name: budget.record() for name, budget in self.budgets.items()}
        batch.set_value(_KEY, json.dumps(records))
