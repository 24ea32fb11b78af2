"""What operators, the cluster file and time do to budgets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from shadowprice.core.budget import Budget
from shadowprice.core.cluster import Tenant
from shadowprice.service.store import tables
from shadowprice.service.truth.batch import Batch
from shadowprice.service.truth.operations import ChangeTenants

_KEY: Final = "budgets"


@dataclass(frozen=True, slots=True)
class Renew:
    """Periods begin that are due, though nothing else happens."""

    def perform(self, batch: Batch) -> None:
        """Do nothing: that is done before whatever happens."""


@dataclass(frozen=True, slots=True)
class PutTenant:
    """A tenant is added, or has another share or budget.

    Parameters
    ----------
    name : str
        The tenant.
    share : mapping of str to int or None
        Its share, None to leave it as it is.
    budget : Budget or None
        Its budget, where it is one that changes.
    budgeted : bool
        Whether the budget changes; without one it is then removed.
    """

    name: str
    share: Mapping[str, int] | None
    budget: Budget | None = None
    budgeted: bool = False

    def perform(self, batch: Batch) -> None:
        """Let the engine follow where the share is another, and the account."""
        tenants = batch.engine.cluster.tenants
        known = next((tenant for tenant in tenants if tenant.name == self.name), None)
        share = self.share if self.share is not None or known is not None else {}
        if share is not None and (known is None or dict(known.share) != dict(share)):
            others = [tenant for tenant in tenants if tenant.name != self.name]
            ChangeTenants((*others, Tenant(self.name, share))).perform(batch)
        if self.budgeted:
            batch.billing.set_budget(self.name, self.budget)


@dataclass(frozen=True, slots=True)
class RemoveTenant:
    """A tenant goes, with its share and its budget."""

    name: str

    def perform(self, batch: Batch) -> None:
        """Let the engine follow, and the account."""
        tenants = batch.engine.cluster.tenants
        others = tuple(tenant for tenant in tenants if tenant.name != self.name)
        if len(others) < len(tenants):
            ChangeTenants(others).perform(batch)
        batch.billing.set_budget(self.name, None)


@dataclass(frozen=True, slots=True)
class Grant:
    """A tenant is given points beyond its budget."""

    tenant: str
    points: int
    note: str

    def perform(self, batch: Batch) -> None:
        """Let its account follow."""
        batch.billing.grant(self.tenant, self.points, self.note)


@dataclass(frozen=True, slots=True)
class FollowBudgets:
    """The cluster file's budgets are others than when it was last read.

    Parameters
    ----------
    budgets : mapping of str to Budget
        Those of the file, by tenant; what operators set is left as it is where the file did not
        change it.
    """

    budgets: Mapping[str, Budget]

    def perform(self, batch: Batch) -> None:
        """Let accounts follow what the file changed."""
        table = tables.meta
        text = batch.connection.execute(
            select(table.c.value).where(table.c.key == _KEY)
        ).scalar_one_or_none()
        before = {
            name: Budget.from_record(record) for name, record in json.loads(text or "{}").items()
        }
        if before == self.budgets:
            return
        for name in dict.fromkeys([*before, *self.budgets]):
            budget = self.budgets.get(name)
            if budget != before.get(name):
                batch.billing.set_budget(name, budget)
        records = {name: budget.record() for name, budget in self.budgets.items()}
        batch.put(_KEY, json.dumps(records))
