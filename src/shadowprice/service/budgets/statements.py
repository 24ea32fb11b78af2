"""Queries of accounts: budgets, balances and statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, func, select

from shadowprice.core.budget import Budget, in_points
from shadowprice.core.job_keys import name_of_key
from shadowprice.rest.tenants import Account as AccountResource
from shadowprice.rest.tenants import AccountEntry
from shadowprice.rest.tenants import Budget as BudgetResource
from shadowprice.service.budgets.accounts import Account, EntryKind
from shadowprice.service.clock import SECOND, to_datetime
from shadowprice.service.store import tables

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def budget_resource(budget: Budget) -> BudgetResource:
    """Return a budget as a REST resource."""
    unit, length = next(entry for entry in _UNITS if budget.period % entry[1] == 0)
    return BudgetResource(
        points=in_points(budget.points),
        period=f"{budget.period // length}{unit}",
        since=to_datetime(budget.since * SECOND),
        carry="all" if budget.carry is None else in_points(budget.carry),
    )


def account_resource(account: Account) -> AccountResource:
    """Return an account as a REST resource."""
    return AccountResource(
        held=in_points(account.balance),
        reserved_points=in_points(account.reserved),
        spent=in_points(account.spent),
        begins=to_datetime(account.begins),
        ends=to_datetime(account.ends),
        sums={kind.value: in_points(account.sums.get(kind, 0)) for kind in EntryKind},
    )


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Query of a tenant's entries.

    ``since`` is inclusive and ``until`` exclusive, in nanoseconds since 1970. Empty ``kinds`` mean
    all kinds. ``before`` is the cursor of a page: only entries with lower ids are returned.
    ``names_all`` is False for a tenant, who gets no names of other tenants' jobs.
    """

    tenant: str
    since: int | None = None
    until: int | None = None
    kinds: tuple[str, ...] = ()
    before: int | None = None
    limit: int = 100
    names_all: bool = True


@dataclass(frozen=True, slots=True)
class Totals:
    """Balances at the start and the end of a time span, and the points moved in it by kind."""

    opening: float
    closing: float
    sums: dict[str, float]


def entries(connection: Connection, entry_filter: EntryFilter) -> list[AccountEntry]:
    """Return entries of an account, newest first."""
    table, jobs = tables.entries, tables.jobs
    joined = table.outerjoin(jobs, jobs.c.key == table.c.job)
    query = _within(select(table, jobs.c.id.label("job_id")).select_from(joined), entry_filter)
    query = query.order_by(table.c.id.desc()).limit(entry_filter.limit)
    if entry_filter.kinds:
        query = query.where(table.c.kind.in_(entry_filter.kinds))
    if entry_filter.before is not None:
        query = query.where(table.c.id < entry_filter.before)
    return [_entry(row, entry_filter) for row in connection.execute(query)]


def totals(connection: Connection, entry_filter: EntryFilter) -> Totals:
    """Return the balances and sums of a time span."""
    table = tables.entries
    kind, points = table.c.kind, func.sum(table.c.points)
    rows = connection.execute(_within(select(kind, points), entry_filter).group_by(kind))
    sums = {row[0]: int(row[1]) for row in rows}
    query = _within(select(table.c.balance, table.c.points), entry_filter)
    first = connection.execute(query.order_by(table.c.id).limit(1)).first()
    last = connection.execute(query.order_by(table.c.id.desc()).limit(1)).first()
    if first is None or last is None:
        balance = _balance_without_entries(connection, entry_filter)
        return Totals(balance, balance, _sums(sums))
    opening = in_points(first.balance - first.points)
    return Totals(opening, in_points(last.balance), _sums(sums))


def _sums(sums: dict[str, int]) -> dict[str, float]:
    return {kind.value: in_points(abs(sums.get(kind.value, 0))) for kind in EntryKind}


def _balance_without_entries(connection: Connection, entry_filter: EntryFilter) -> float:
    """Return the balance of a time span without entries.

    Earlier entries may have been purged. Then it follows from later ones or the account.
    """
    table, budgets = tables.entries, tables.budgets
    query = select(table.c.balance - table.c.points).where(table.c.tenant == entry_filter.tenant)
    if entry_filter.until is not None:
        query = query.where(table.c.at >= entry_filter.until)
        before_next = connection.execute(query.order_by(table.c.id).limit(1)).scalar()
        if before_next is not None:
            return in_points(before_next)
    account = select(budgets.c.balance).where(budgets.c.tenant == entry_filter.tenant)
    return in_points(connection.execute(account).scalar() or 0)


def tenant_exists(connection: Connection, tenant: str) -> bool:
    """Return whether a tenant ever had an account or a job."""
    return any(
        connection.execute(select(table.c.id).where(table.c.tenant == tenant).limit(1)).first()
        for table in (tables.entries, tables.jobs)
    )


def _within(query: Select[Any], entry_filter: EntryFilter) -> Select[Any]:
    table = tables.entries
    query = query.where(table.c.tenant == entry_filter.tenant)
    if entry_filter.since is not None:
        query = query.where(table.c.at >= entry_filter.since)
    if entry_filter.until is not None:
        query = query.where(table.c.at < entry_filter.until)
    return query


def _entry(row: Row[Any], entry_filter: EntryFilter) -> AccountEntry:
    is_other = row.other not in (None, entry_filter.tenant)
    is_named = row.job is not None and (entry_filter.names_all or not is_other)
    return AccountEntry(
        id=row.id,
        at=to_datetime(row.at),
        kind=row.kind,
        points=in_points(row.points),
        balance=in_points(row.balance),
        job=name_of_key(row.job) if is_named else None,
        job_id=row.job_id if is_named else None,
        other=row.other,
        note=row.note,
    )
