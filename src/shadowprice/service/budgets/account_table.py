"""Accounts and their entries as rows of the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, delete, func, select

from shadowprice.core.budget import Budget
from shadowprice.service.budgets.accounts import Account, AccountEntry, Accounts, EntryKind
from shadowprice.service.store import Store, tables
from shadowprice.service.store.lookups import PreparedStatement, in_chunks


def write_entries(
    store: Store,
    connection: Connection,
    accounts: Accounts,
    entries: Iterable[AccountEntry],
    now: int,
) -> None:
    """Write new entries, with the next numbers of the accounts."""
    rows = []
    for entry in entries:
        rows.append(
            {
                "id": accounts.next_entry,
                "at": now,
                "tenant": entry.tenant,
                "kind": entry.kind.value,
                "points": entry.points,
                "balance": entry.balance,
                "job": entry.job,
                "other": entry.other,
                "note": entry.note,
            }
        )
        accounts.next_entry += 1
    store.write(connection, _INSERT_ENTRIES, rows)


def write_accounts(
    store: Store, connection: Connection, accounts: Accounts, tenants: Sequence[str]
) -> None:
    """Write the accounts of tenants, and delete the rows of those that have none now."""
    if not tenants:
        return
    table = tables.budgets
    for chunk in in_chunks(tenants):
        store.write(connection, delete(table).where(table.c.tenant.in_(chunk)))
    existing = [account for name in tenants if (account := accounts.get(name)) is not None]
    store.write(connection, _INSERT_BUDGETS, [_row(account) for account in existing])


def _row(account: Account) -> dict[str, Any]:
    return {
        "tenant": account.tenant,
        "budget": json.dumps(account.budget.record()),
        "balance": account.balance,
        "reserved": account.reserved,
        "spent": account.spent,
        "period": account.period,
        "room": account.room,
        "sums": json.dumps(account.sums),
    }


def read_accounts(connection: Connection) -> Accounts:
    """Read all accounts from the store."""
    by_tenant = {
        row.tenant: Account(
            row.tenant,
            Budget.from_record(json.loads(row.budget)),
            row.balance,
            row.reserved,
            row.spent,
            row.period,
            row.room,
            {EntryKind(kind): points for kind, points in json.loads(row.sums).items()},
        )
        for row in connection.execute(select(tables.budgets))
    }
    last = connection.execute(select(func.max(tables.entries.c.id))).scalar() or 0
    return Accounts(by_tenant, last + 1)


_INSERT_ENTRIES: Final = PreparedStatement(tables.entries.insert())
_INSERT_BUDGETS: Final = PreparedStatement(tables.budgets.insert())
