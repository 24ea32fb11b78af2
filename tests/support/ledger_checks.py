"""Consistency of a store's point ledger: entries, accounts and jobs have to agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, select

from shadowprice.service.state.job_views import JobView
from shadowprice.service.store import Store, tables


def check_ledger(store: Store, *, purged: bool = False) -> None:
    """Sum all entries again, and compare accounts and jobs with the sums.

    Points are conserved: those held, in open jobs and used by jobs are those granted, paid to the
    tenant and expired. If `purged`, the oldest entries and jobs may be missing.
    """
    with store.reading() as connection:
        rows = connection.execute(select(tables.entries).order_by(tables.entries.c.id)).all()
        accounts = connection.execute(select(tables.budgets)).all()
        texts = connection.execute(select(tables.jobs.c.view)).scalars().all()
    views = {view.key: view for view in map(JobView.from_json, texts)}
    sums: Counter[str] = Counter()
    paid: Counter[str] = Counter()
    given: Counter[str] = Counter()
    times: Counter[tuple[str | None, str]] = Counter()
    for row in rows:
        if purged and row.tenant not in sums:
            sums[row.tenant] = row.balance - row.points
        sums[row.tenant] += row.points
        assert sums[row.tenant] == row.balance, row
        assert row.balance >= 0 or row.kind != "debit", row
        assert (row.points < 0) == (row.kind in {"debit", "expiry"}), row
        if row.kind == "debit":
            paid[row.job] -= row.points
            times[row.job, row.kind] += not row.note
        elif row.kind == "refund":
            given[row.job] += row.points
            times[row.job, row.kind] += 1
    assert all(count <= 1 for count in times.values()), times  # an admission can be free
    known = {row.tenant: row.balance for row in accounts}
    in_jobs: Counter[str] = Counter()
    for view in views.values():
        if view.state.open and view.price and view.refund is None:
            in_jobs[view.tenant or ""] += view.price - view.used
    assert {row.tenant: row.reserved for row in accounts} == {name: in_jobs[name] for name in known}
    assert all(row.spent >= 0 for row in accounts), accounts
    if purged:
        known = {name: balance for name, balance in known.items() if name in sums}
        oldest = min((row.at for row in rows), default=0)
        views = {name: view for name, view in views.items() if view.submitted >= oldest}
        paid, given = (Counter({n: c[n] for n in views if c[n]}) for c in (paid, given))
    assert known == {name: sums[name] for name in known}
    assert not any(points for name, points in sums.items() if name not in known)
    assert paid == Counter({name: view.price for name, view in views.items() if view.price})
    assert given == Counter({name: view.refund for name, view in views.items() if view.refund})
    for name, view in views.items():
        price = view.price or 0
        assert 0 <= view.overrun <= view.used <= price, view
        if price and not (view.state.open and view.refund is None):
            assert price - given[name] == view.used, view
    if not purged:
        _check_conservation(rows, known, in_jobs, views)


def _check_conservation(
    rows: Sequence[Row[Any]],
    known: Mapping[str, int],
    in_jobs: Mapping[str, int],
    views: Mapping[str, JobView],
) -> None:
    """Check that points held, in open jobs and used by jobs are those granted, paid and expired."""
    used = Counter[str]()
    for view in views.values():
        used[view.tenant or ""] += view.used
    granted = Counter[str]()
    for row in rows:
        if row.kind not in {"debit", "refund"}:
            granted[row.tenant] += row.points
    for name in granted:
        assert known.get(name, 0) + in_jobs[name] + used[name] == granted[name], name
