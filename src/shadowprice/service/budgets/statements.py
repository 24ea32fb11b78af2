"""What is told of accounts: budgets, what is held, and statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, func, select

from shadowprice.core.budget import Budget, in_points
from shadowprice.service.budgets.accounts import Account, Kind
from shadowprice.service.clock import SECOND, stamp
from shadowprice.service.store import tables

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def budget_record(budget: Budget) -> dict[str, Any]:
    """Return a budget as clients write it."""
    unit, length = next(one for one in _UNITS if budget.period % one[1] == 0)
    return {
        "points": in_points(budget.points),
        "period": f"{budget.period // length}{unit}",
        "since": stamp(budget.since * SECOND),
        "carry": "all" if budget.carry is None else in_points(budget.carry),
    }


def account_record(account: Account, in_jobs: int) -> dict[str, Any]:
    """Return what an account holds now.

    Parameters
    ----------
    account : Account
        The account.
    in_jobs : int
        What open jobs were debited and have not used yet, in millionths of a point.
    """
    sums = {kind.value: in_points(account.sums.get(kind, 0)) for kind in Kind}
    return {
        "held": in_points(account.balance),
        "in_jobs": in_points(in_jobs),
        "spent": in_points(account.spent),
        "begins": stamp(account.begins),
        "ends": stamp(account.ends),
        "sums": sums,
    }


@dataclass(frozen=True, slots=True)
class Asked:
    """Which entries are asked for.

    Parameters
    ----------
    tenant : str
        Whose.
    since, until : int or None
        From which moment on, and before which, in nanoseconds since 1970.
    kinds : tuple of str
        Of which kinds; empty for all.
    before : int or None
        Before which number: the cursor of a page.
    limit : int
        How many.
    """

    tenant: str
    since: int | None = None
    until: int | None = None
    kinds: tuple[str, ...] = ()
    before: int | None = None
    limit: int = 100


def entries(connection: Connection, asked: Asked) -> list[dict[str, Any]]:
    """Return entries of an account, the newest first."""
    table = tables.entries
    query = _within(select(table), asked).order_by(table.c.id.desc()).limit(asked.limit)
    if asked.kinds:
        query = query.where(table.c.kind.in_(asked.kinds))
    if asked.before is not None:
        query = query.where(table.c.id < asked.before)
    return [_entry(row) for row in connection.execute(query)]


def totals(connection: Connection, asked: Asked) -> dict[str, Any]:
    """Return what an account held at the beginning and the end of a span, and what moved it."""
    table = tables.entries
    kind, points = table.c.kind, func.sum(table.c.points)
    rows = connection.execute(_within(select(kind, points), asked).group_by(kind))
    sums = {row[0]: int(row[1]) for row in rows}
    whole = _within(select(table.c.balance, table.c.points), asked)
    first = connection.execute(whole.order_by(table.c.id).limit(1)).first()
    last = connection.execute(whole.order_by(table.c.id.desc()).limit(1)).first()
    if first is None or last is None:
        held = _held_before(connection, asked)
        return {"opening": held, "closing": held, "sums": _sums(sums)}
    return {
        "opening": in_points(first.balance - first.points),
        "closing": in_points(last.balance),
        "sums": _sums(sums),
    }


def _sums(sums: dict[str, int]) -> dict[str, float]:
    return {kind.value: in_points(abs(sums.get(kind.value, 0))) for kind in Kind}


def _held_before(connection: Connection, asked: Asked) -> float:
    """Return what was held when nothing moved in a span."""
    table = tables.entries
    query = select(table.c.balance).where(table.c.tenant == asked.tenant)
    before = asked.until if asked.since is None else asked.since
    if before is not None:
        query = query.where(table.c.at < before)
    return in_points(connection.execute(query.order_by(table.c.id.desc()).limit(1)).scalar() or 0)


def known(connection: Connection, tenant: str) -> bool:
    """Whether a tenant ever had an account or a job."""
    return any(
        connection.execute(select(table.c.id).where(table.c.tenant == tenant).limit(1)).first()
        for table in (tables.entries, tables.jobs)
    )


def _within(query: Select[Any], asked: Asked) -> Select[Any]:
    table = tables.entries
    query = query.where(table.c.tenant == asked.tenant)
    if asked.since is not None:
        query = query.where(table.c.at >= asked.since)
    if asked.until is not None:
        query = query.where(table.c.at < asked.until)
    return query


def _entry(row: Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "at": stamp(row.at),
        "kind": row.kind,
        "points": in_points(row.points),
        "balance": in_points(row.balance),
        "job": row.job,
        "other": row.other,
        "note": row.note,
    }
