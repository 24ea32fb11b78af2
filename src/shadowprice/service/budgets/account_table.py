"""Accounts and their entries in the store: rows, and the statements of tenants."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, func, select

from shadowprice import rest
from shadowprice.core.budget import Budget, in_points
from shadowprice.core.job_keys import name_of_key
from shadowprice.service.budgets.accounts import Account, AccountEntry, Accounts, EntryKind
from shadowprice.service.clock import SECOND, to_datetime
from shadowprice.service.resources import build_resource
from shadowprice.service.store import Store, tables


def write_entries(
    store: Store,
    connection: Connection,
    accounts: Accounts,
    entries: Iterable[AccountEntry],
    now: int,
) -> None:
    """Write new entries, with the next numbers of the accounts."""
    rows = [
        {"id": number, "at": now, **asdict(entry), "kind": entry.kind.value}
        for number, entry in enumerate(entries, accounts.next_entry)
    ]
    accounts.next_entry += len(rows)
    store.write(connection, tables.entries.insert(), rows)


def write_accounts(
    store: Store, connection: Connection, accounts: Accounts, tenants: Sequence[str]
) -> None:
    """Write the accounts of tenants, and delete the rows of tenants without an account."""
    if not tenants:
        return
    store.delete(connection, tables.budgets.c.tenant, tenants)
    rows = [
        asdict(account)
        | {"budget": json.dumps(account.budget.record()), "sums": json.dumps(account.sums)}
        for name in tenants
        if (account := accounts.get(name)) is not None
    ]
    store.write(connection, tables.budgets.insert(), rows)


def read_accounts(connection: Connection) -> Accounts:
    """Read all accounts from the store."""
    accounts = Accounts()
    for row in connection.execute(select(tables.budgets)):
        accounts[row.tenant] = Account(
            row.tenant,
            Budget.from_record(json.loads(row.budget)),
            row.balance,
            row.reserved,
            row.spent,
            row.period,
            row.room,
            {EntryKind(kind): points for kind, points in json.loads(row.sums).items()},
        )
    accounts.next_entry = (connection.scalar(select(func.max(tables.entries.c.id))) or 0) + 1
    return accounts


# ------------------------------------------------------------------ statements

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))  # of periods, in seconds


def account_resources(account: Account | None) -> dict[str, Any]:
    """Return the REST resources ``budget`` and ``account``, both None without an account."""
    if account is None:
        return {"budget": None, "account": None}
    budget = account.budget
    unit, length = next(entry for entry in _UNITS if budget.period % entry[1] == 0)
    return {
        "budget": rest.Budget(
            points=in_points(budget.points),
            period=f"{budget.period // length}{unit}",
            since=to_datetime(budget.since * SECOND),
            carry="all" if budget.carry is None else in_points(budget.carry),
        ),
        "account": rest.Account(
            held=in_points(account.balance),
            reserved_points=in_points(account.reserved),
            spent=in_points(account.spent),
            begins=to_datetime(account.begins),
            ends=to_datetime(account.ends),
            sums={kind.value: in_points(account.sums.get(kind, 0)) for kind in EntryKind},
        ),
    }


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Query of a tenant's entries."""

    tenant: str
    since: int | None = None  # inclusive, in nanoseconds since 1970
    until: int | None = None  # exclusive
    kinds: Sequence[str] = ()  # empty: all kinds
    before: int | None = None  # cursor of a page: only entries with lower ids
    limit: int = 100
    names_all: bool = True  # False for a tenant, who gets no names of other tenants' jobs


def statement(
    connection: Connection, entry_filter: EntryFilter, account: Account | None
) -> rest.Statement:
    """Return a tenant's statement; balances and sums cover the whole time span, not one page."""
    page = entries(connection, entry_filter)
    return rest.Statement(
        tenant=entry_filter.tenant,
        **account_resources(account),
        **totals(connection, entry_filter),
        entries=page,
        next=page[-1].id if len(page) == entry_filter.limit else None,
    )


def entries(connection: Connection, entry_filter: EntryFilter) -> list[rest.AccountEntry]:
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


def totals(connection: Connection, entry_filter: EntryFilter) -> dict[str, Any]:
    """Return the balances at both ends of a time span, and the points moved in it by kind."""
    table = tables.entries
    kind, points = table.c.kind, func.sum(table.c.points)
    rows = connection.execute(_within(select(kind, points), entry_filter).group_by(kind))
    moved = {row[0]: int(row[1]) for row in rows}
    sums = {kind.value: in_points(abs(moved.get(kind.value, 0))) for kind in EntryKind}
    query = _within(select(table.c.balance, table.c.points), entry_filter)
    first = connection.execute(query.order_by(table.c.id).limit(1)).first()
    last = connection.execute(query.order_by(table.c.id.desc()).limit(1)).first()
    if first is None or last is None:
        balance = _balance_without_entries(connection, entry_filter)
        return {"opening": balance, "closing": balance, "sums": sums}
    opening = in_points(first.balance - first.points)
    return {"opening": opening, "closing": in_points(last.balance), "sums": sums}


def _balance_without_entries(connection: Connection, entry_filter: EntryFilter) -> float:
    """Return the balance in a time span without entries, from later entries or the account."""
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


def _entry(row: Row[Any], entry_filter: EntryFilter) -> rest.AccountEntry:
    is_other = row.other not in (None, entry_filter.tenant)
    is_named = row.job is not None and (entry_filter.names_all or not is_other)
    return build_resource(
        rest.AccountEntry,
        row,
        points=in_points(row.points),
        balance=in_points(row.balance),
        job=name_of_key(row.job) if is_named else None,
        job_id=row.job_id if is_named else None,
    )
