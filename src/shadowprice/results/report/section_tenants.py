"""Section on tenants: earnings, payments and loans."""

from __future__ import annotations

import numpy as np
import polars as pl

from shadowprice.results.accounts import MICRO, TenantAccounts, compute_tenant_accounts, timeline
from shadowprice.results.report.charts import Floats, Series, downsample, line_chart
from shadowprice.results.report.section_time import slot_label
from shadowprice.results.report.sections import figure, section
from shadowprice.results.report.tables import TableColumn, data_table
from shadowprice.results.run_directory import RunData

_MINOR = {"jobs", "received", "paid to itself", "lent, place-slots", "borrowed, place-slots"}
"""Columns that narrow screens omit."""

MAX_LINES = 7  # maximum number of tenants with a line, which is the number of colours


@section("Tenants", 60)
def tenants(run: RunData) -> str | None:
    """Return the tenants' accounts; if the policy charges, also balances and loans over time."""
    if not run.info["cluster"]["tenants"]:
        return None
    result = compute_tenant_accounts(run)
    parts = [_table(result)]
    if result.charged and len(run.slots):
        parts.append(_over_time(run, result))
    return "".join(parts)


def _table(result: TenantAccounts) -> str:
    columns = [TableColumn("tenant"), TableColumn("share", minor=True)]
    columns += [
        TableColumn(name, numeric=True, minor=name in _MINOR)
        for name in (
            *("jobs", "finished", "earned", "paid", "received", "paid to itself"),
            *("lent, place-slots", "borrowed, place-slots", "revenue", "fairness ratio"),
        )
    ]
    rows = [
        (
            account.tenant,
            ", ".join(f"{count} {kind}" for kind, count in account.share.items()),
            account.jobs,
            account.finished,
            account.earned,
            (account.paid - account.to_itself) / MICRO,
            (account.received - account.to_itself) / MICRO,
            account.to_itself / MICRO,
            sum(account.lent.values()),
            sum(account.borrowed.values()),
            account.revenue,
            account.fairness,
        )
        for account in result.accounts.values()
    ]
    variance = result.fairness_variance
    remark = (
        "Revenue is utility less what was paid plus what was received. The fairness ratio is a "
        "tenant's share of all revenue over its share of the places."
    )
    if variance is not None:
        remark += f" Its variance over tenants is {variance:.4g}."
    return f"{data_table(columns, rows)}<p class=remark>{remark}</p>"


def _over_time(run: RunData, result: TenantAccounts) -> str:
    moves = timeline(run, result)
    slots = run.slots["slot"].to_numpy().astype(np.float64)
    busiest = sorted(
        result.accounts.values(),
        key=lambda entry: (
            -(entry.paid + entry.received + sum(entry.lent.values()) + sum(entry.borrowed.values()))
        ),
    )[:MAX_LINES]
    names = [account.tenant for account in busiest]
    remark = (
        f"The {len(names)} tenants that traded most." if len(result.accounts) > len(names) else ""
    )
    balance, lending = [], []
    lasts = firsts = np.zeros(0, np.intp)
    for colour, name in enumerate(names):
        own = moves.filter(pl.col("tenant") == name)
        money = _spread(own, "received", slots) - _spread(own, "paid", slots)
        places = _spread(own, "lent", slots) - _spread(own, "borrowed", slots)
        lasts, sums = downsample(np.cumsum(money), last=True)
        balance.append(Series(name, sums, colour))
        firsts, means = downsample(places)
        lending.append(Series(name, means, colour))
    label = slot_label(run)
    charts = [
        figure(
            "Received less paid, so far",
            line_chart(
                slots[lasts], balance, x_label=label, y_label="utility", legend=True, steps=True
            ),
            remark,
        ),
        figure(
            "Places lent (above) and borrowed (below)",
            line_chart(
                slots[firsts], lending, x_label=label, y_label="places", legend=True, steps=True
            ),
            remark,
        ),
    ]
    return "".join(charts)


def _spread(moves: pl.DataFrame, column: str, slots: Floats) -> Floats:
    """Return a column of payments for each row of the slot table, 0 without a payment."""
    values = np.zeros(len(slots))
    paid_in = moves["slot"].to_numpy()
    inside = (paid_in >= slots[0]) & (paid_in <= slots[-1])
    rows = np.searchsorted(slots, paid_in[inside], side="right") - 1
    np.add.at(values, rows, moves[column].to_numpy()[inside])
    return values
