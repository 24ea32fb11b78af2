"""Sections of a run's page; each is a function of the run that returns HTML, empty to be omitted.

`page.SECTIONS` lists them in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from shadowprice.core.wording import pluralize
from shadowprice.results.accounts import MICRO, TenantAccounts, compute_tenant_accounts, timeline
from shadowprice.results.job_history import guarantee_text
from shadowprice.results.metrics import NOT_ARRIVED, met_target, resources, restricted_mean
from shadowprice.results.report import charts
from shadowprice.results.report.charts import Floats, HeatGrid, figure, heat_map
from shadowprice.results.report.inline_assets import text
from shadowprice.results.report.number_format import format_duration, format_number
from shadowprice.results.report.tables import MAX_ROWS, Cell, TableColumn, data_table
from shadowprice.results.run_directory import Fields, RunData

OUTCOMES = (
    ("finished", "finished", 2),
    ("running", "running at the end", 0),
    ("waiting", "waiting at the end", 1),
    ("refused", "refused", 4),
    ("dropped", "dropped", 3),
    ("cancelled", "cancelled", 6),
    ("not arrived", "not arrived", 7),
)
"""Outcomes of jobs with their labels and colours."""

MAX_TENANT_LINES = charts.COLOURS - 1  # maximum number of tenants with a line: colours, no grey
MAX_LISTED_KINDS = 6  # maximum number of listed server kinds
MAX_LISTED_INCIDENTS = 40


# ---------------------------------------------------------------- jobs


def outcomes(run: RunData) -> str:
    """Return the jobs by outcome, by number and by value."""
    table = run.jobs.group_by("outcome").agg(pl.len().alias("jobs"), pl.col("value").sum())
    counts = {str(name): (int(jobs), float(value)) for name, jobs, value in table.iter_rows()}
    total = sum(value for _, value in counts.values()) or 1.0
    parts = []
    for key, label, colour in OUTCOMES:
        if key in counts:
            jobs, value = counts[key]
            name = f"{label}: {jobs:,}"
            parts.append((name, colour, [jobs, value], [f"{jobs:,}", f"{value / total:.1%}"]))
    drawn = charts.share_bars(["by number", "by value"], parts)
    return figure("Jobs and their value, by outcome", drawn)


def lateness(run: RunData) -> str:
    """Return completion less target, by utility class."""
    late = run.jobs.filter(pl.col("late").is_not_null())
    boxes = [
        (name, frame["late"].to_numpy(), index % (charts.COLOURS - 1))
        for index, (name, frame) in enumerate(_by_class(late))
    ]
    chart = charts.box_plot(boxes, x_label="completion less target, in slots", zero="on target")
    remark = (
        "Box: the middle half of the finished jobs, with the median; whiskers: 5 % and 95 %. "
        "Left of the line is in time."
    )
    return figure("Completion less target, by class", chart, remark)


def _by_class(jobs: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    names = sorted(jobs["class"].unique().to_list())
    return [(name, jobs.filter(pl.col("class") == name)) for name in names]


def refusals(run: RunData) -> str:
    """Return refused and dropped jobs with their reasons, the most valuable first."""
    refused = [item for item in run.decisions(False) if item["outcome"] in {"rejected", "dropped"}]
    if not refused:
        return "<p>No job was refused.</p>"
    reasons = Counter[str](record["reason"] for record in refused)
    ordered = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    overview = charts.bars([(reason, count, f"{count:,}", 4) for reason, count in ordered], "jobs")
    worth: dict[str, float] = dict(zip(run.jobs["job"], run.jobs["value"], strict=True))
    refused.sort(key=lambda record: -worth.get(record["job"], 0.0))
    columns = [
        TableColumn("job", link=True),
        TableColumn("slot", numeric=True, slot=True, minor=True),
        TableColumn("value", numeric=True),
        TableColumn("price", numeric=True),
        TableColumn("reason", long=True),
        TableColumn("first bottleneck", long=True, minor=True),
    ]
    rows: list[list[Cell]] = []
    for record in refused[:MAX_ROWS]:
        refusal: Fields = record["refusal"]
        numbers = record["slot"], refusal.get("value"), refusal.get("cost")
        rows.append([record["job"], *numbers, refusal["message"], refusal.get("bottleneck")])
    table = data_table(columns, rows, total=len(refused), remark="those with the largest value.")
    remark = (
        "Value: utility of the job's best plan; price: cost of that plan. Select a job for its "
        "history. <code>shadowprice explain RUN JOB</code> finds changes of the job that get it "
        "admitted."
    )
    return f"{figure('By reason', overview)}{table}<p class=remark>{remark}</p>"


def completion_times(run: RunData) -> str:
    """Return statistics of completion times by class."""
    arrived = run.jobs.filter(pl.col("outcome") != NOT_ARRIVED)
    jct = run.summary["jct"]
    if jct["mean"] is None:
        return ""
    rows: list[list[Cell]] = []
    for name, frame in _by_class(arrived):
        values = frame["jct"].drop_nulls().to_numpy()
        percentiles = np.percentile(values, (50, 90, 99)).tolist() if len(values) else [None] * 3
        mean = float(values.mean()) if len(values) else None
        share = met_target(frame)["share"]
        met = "-" if share is None else f"{share:.1%}"
        restricted = restricted_mean(frame, run.summary["end"])
        earned = float(frame["utility"].sum())
        rows.append([name, len(frame), len(values), mean, *percentiles, restricted, met, earned])
    columns = [
        TableColumn("class"),
        TableColumn("arrived", numeric=True, minor=True),
        TableColumn("finished", numeric=True),
        TableColumn("mean", numeric=True, minor=True),
        TableColumn("median", numeric=True),
        TableColumn("90 %", numeric=True, minor=True),
        TableColumn("99 %", numeric=True, minor=True),
        TableColumn("restricted mean", numeric=True),
        TableColumn("in time", minor=True),
        TableColumn("utility", numeric=True),
    ]
    remark = (
        "Slots from the submission to the end of the completion slot, of finished jobs "
        f"({format_number(jct['mean'])} over all classes). The restricted mean counts every job "
        "that arrived; a job that did not finish counts up to the end of the run, so no choice of "
        f"jobs improves the mean ({format_number(jct['restricted_mean'])} over all classes). In "
        "time: share of all jobs that arrived with a target."
    )
    return f"{data_table(columns, rows)}<p class=remark>{remark}</p>"


# ---------------------------------------------------------------- slots


def slot_label(run: RunData) -> str:
    """Return the label of the slot axis, with the length of a slot."""
    return f"slot (of {format_duration(run.info['cluster']['slot_seconds'])})"


def slot_chart(
    run: RunData, lines: Sequence[tuple[str, Floats, int]], *, last: bool = False, **options: Any
) -> str:
    """Return a chart of columns of the slot table; empty without lines or slots.

    ``lines`` are (name, values, colour). Many rows are reduced to means, or with ``last`` to last
    values, for sums over time. ``options`` are those of `charts.line_chart`.
    """
    if not lines or not len(run.slots):
        return ""
    drawn, positions = [], np.zeros(0, np.intp)
    for name, values, colour in lines:
        positions, thinned = charts.downsample(values, last=last)
        drawn.append((name, thinned, colour))
    xs = run.slots["slot"].to_numpy().astype(np.float64)[positions]
    return charts.line_chart(xs, drawn, x_label=slot_label(run), steps=True, **options)


def used_share(run: RunData, resource: str) -> Floats:
    """Return the used share of a resource by row of the slot table; 0 if all servers are lost."""
    used, total = (
        run.slots[f"{kind}_{resource}"].cast(pl.Float64).to_numpy() for kind in ("used", "total")
    )
    share = np.divide(used, total, out=np.zeros_like(used), where=total > 0)
    return np.asarray(share, dtype=np.float64)


def utility(run: RunData) -> str:
    """Return the earned utility and the value of the jobs that arrived."""
    arrivals = run.jobs.group_by("arrival").agg(pl.col("value").sum()).sort("arrival")
    arrival_slots = arrivals["arrival"].to_numpy()
    index = np.searchsorted(arrival_slots, run.slots["slot"].to_numpy(), side="right")
    offered = np.r_[0.0, np.cumsum(arrivals["value"].to_numpy())][index]
    lines = [
        ("value of the jobs that arrived", offered, 7),
        ("utility earned", np.cumsum(run.slots["utility"].to_numpy()), 0),
    ]
    remark = (
        "A job's value is the utility that it would earn with its maximum number of workers from "
        "its arrival on. Utility is earned in the slot in which the job completes."
    )
    chart = slot_chart(run, lines, last=True, y_label="utility")
    return figure("Earned and on offer", chart, remark)


def utilisation(run: RunData) -> str:
    """Return the used share of each resource."""
    means = run.summary["utilisation"]
    shown = [name for name in resources(run.slots) if means.get(name) is not None]
    lines = [
        (
            f"{name}, {means[name]:.0%} on average",
            used_share(run, name),
            index % (charts.COLOURS - 1),
        )
        for index, name in enumerate(shown)
    ]
    fill = len(lines) == 1
    chart = slot_chart(
        run, lines, y_label="in use", fill=fill, y_high=1.0, percent=True, legend=True
    )
    return figure("Share of each resource in use", chart)


def queue(run: RunData) -> str:
    """Return the number of running and waiting jobs."""
    lines = [
        ("running", run.slots["running"].to_numpy().astype(np.float64), 2),
        ("waiting", run.slots["queue"].to_numpy().astype(np.float64), 1),
    ]
    remark = (
        "Waiting: arrived, but not refused and not running; includes jobs planned for later slots."
    )
    chart = slot_chart(run, lines, y_label="jobs", height=220)
    return figure("Jobs in the cluster", chart, remark)


def prices(run: RunData) -> str:
    """Return the mean price of each resource."""
    lines = []
    for index, resource in enumerate(resources(run.slots)):
        column = run.slots[f"price_{resource}"]
        values = column.to_numpy()
        if column.null_count() < len(column) and np.nanmax(values) > 0:
            lines.append((resource, values, index % (charts.COLOURS - 1)))
    remark = (
        "Cost of a server's whole capacity for one slot, averaged over servers with the resource."
    )
    chart = slot_chart(run, lines, y_label="utility a slot", height=240, legend=True, prices=True)
    return figure("Mean price of each resource", chart, remark)


# ---------------------------------------------------------------- servers


def servers(run: RunData) -> str:
    """Return a heat map of load, and one of prices if the policy posts them."""
    if not len(run.heat) or not len(run.slots):
        return ""
    share = _grid(run, "share").fitted()
    remark = "A row is a server, a column a slot: the used share of its scarcest resource."
    if share.per_row > 1 or share.per_bin > 1:
        remark = (
            f"A row is {pluralize(share.per_row, 'server')}, a column "
            f"{pluralize(share.per_bin, 'slot')}: the mean used share of the scarcest resource."
        )
    what = "used share of a server"
    load = heat_map(share, ramp="load", low=0.0, high=1.0, log=False, what=what, title="Load")
    parts = [figure("Load", load, f"{remark} Select a server for its timeline.")]
    price = _grid(run, "price").fitted()
    positive = price.values[np.isfinite(price.values) & (price.values > 0)]
    if len(positive):
        high = float(positive.max())
        low = max(float(positive.min()), high * 1e-6)  # lower prices are indistinguishable
        log = high / low > 20  # on a linear scale, most cells would look alike
        drawn = heat_map(
            price,
            ramp="price",
            low=low if log else 0.0,
            high=high,
            log=log,
            what="price of a server, utility a slot",
            title="Price",
        )
        remark = "Price of all of a server's resources for one slot."
        parts.append(figure("Prices", drawn, remark))
    return "".join(parts)


def one_server(run: RunData) -> str:
    """Return the element in which the page's script draws a server's timeline."""
    return '<div id="server-timeline"></div>' if len(run.allocations) else ""


def _grid(run: RunData, column: str) -> HeatGrid:
    """Return a column of the heat table as a grid of servers and slots."""
    bins = run.heat["slot"].unique(maintain_order=True).to_numpy()
    groups = run.heat["server"].unique(maintain_order=True).to_numpy()
    values = run.heat[column].to_numpy().astype(np.float64).reshape(len(bins), len(groups)).T
    names = run.server_names
    # A single row stands for all servers.
    per_row = int(groups[1] - groups[0]) if len(groups) > 1 else len(names)
    return HeatGrid(
        values,
        first=int(run.slots.item(0, "slot")),
        per_bin=int(bins[1] - bins[0]) if len(bins) > 1 else max(run.slot_count, 1),
        slots=run.slot_count,
        names=[names[row * per_row] for row in range(len(groups))],
        per_row=per_row,
    )


# ---------------------------------------------------------------- tenants


def tenants(run: RunData) -> str:
    """Return the tenants' accounts; if the policy charges, also balances and loans over time."""
    if not run.info["cluster"]["tenants"]:
        return ""
    result = compute_tenant_accounts(run)
    table = _tenant_table(result)
    return table + _trade_over_time(run, result) if result.charged and len(run.slots) else table


def _tenant_table(result: TenantAccounts) -> str:
    columns = [
        TableColumn("tenant"),
        TableColumn("share", minor=True),
        TableColumn("jobs", numeric=True, minor=True),
        TableColumn("finished", numeric=True),
        TableColumn("earned", numeric=True),
        TableColumn("paid", numeric=True),
        TableColumn("received", numeric=True, minor=True),
        TableColumn("paid to itself", numeric=True, minor=True),
        TableColumn("lent, place-slots", numeric=True, minor=True),
        TableColumn("borrowed, place-slots", numeric=True, minor=True),
        TableColumn("revenue", numeric=True),
        TableColumn("fairness ratio", numeric=True),
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


def _trade_over_time(run: RunData, result: TenantAccounts) -> str:
    changes = timeline(run, result)
    slots = run.slots["slot"].to_numpy().astype(np.float64)
    busiest = sorted(
        result.accounts.values(),
        key=lambda entry: (
            -(entry.paid + entry.received + sum(entry.lent.values()) + sum(entry.borrowed.values()))
        ),
    )[:MAX_TENANT_LINES]
    names = [account.tenant for account in busiest]
    remark = (
        f"The {len(names)} tenants that traded most." if len(result.accounts) > len(names) else ""
    )
    balance, lending = [], []
    for colour, name in enumerate(names):
        own = changes.filter(pl.col("tenant") == name)
        money = _by_slot_row(own, "received", slots) - _by_slot_row(own, "paid", slots)
        balance.append((name, np.cumsum(money), colour))
        places = _by_slot_row(own, "lent", slots) - _by_slot_row(own, "borrowed", slots)
        lending.append((name, places, colour))
    paid = slot_chart(run, balance, last=True, y_label="utility", legend=True)
    lent = slot_chart(run, lending, y_label="places", legend=True)
    return figure("Received less paid, so far", paid, remark) + figure(
        "Places lent (above) and borrowed (below)", lent, remark
    )


def _by_slot_row(changes: pl.DataFrame, column: str, slots: Floats) -> Floats:
    """Return a column of a `timeline` for each row of the slot table, 0 without a change."""
    values = np.zeros(len(slots))
    changed_in = changes["slot"].to_numpy()
    inside = (changed_in >= slots[0]) & (changed_in <= slots[-1])
    # A row of the slot table stands for all slots up to the next row.
    rows = np.searchsorted(slots, changed_in[inside], side="right") - 1
    np.add.at(values, rows, changes[column].to_numpy()[inside])
    return values


# ---------------------------------------------------------------- setup


def what_was_run(run: RunData) -> str:
    """Return everything that the result depends on: cluster, parameters, inputs, versions."""
    info = run.info
    cluster = info["cluster"]
    all_kinds = cluster["kinds"]
    kinds = "; ".join(
        f"{kind['servers']:,} of role {kind['role']} ("
        + ", ".join(f"{name} {amount}" for name, amount in kind["capacity"].items())
        + ")"
        for kind in all_kinds[:MAX_LISTED_KINDS]
    )
    if len(all_kinds) > MAX_LISTED_KINDS:
        kinds += f"; and {len(all_kinds) - MAX_LISTED_KINDS:,} more kinds, in run.json"
    until = info["until"]
    facts = {
        "policy": info["policy"],
        "seed": info["seed"],
        "timespan": "until the last job" if until is None else pluralize(until, "slot"),
        "slot": format_duration(cluster["slot_seconds"]),
        "planning horizon": pluralize(cluster["horizon"], "slot"),
        "servers": kinds,
        "tenants": ", ".join(cluster["tenants"]),
        **{f"input: {item['kind']}": _input(item) for item in info["inputs"]},
        "decisions took": _latency(info["timing"]["decision_latency"]),
        "guarantee": guarantee_text(info),
        "simulated in": format_duration(info["timing"]["wall_seconds"]),
        "versions": ", ".join(f"{name} {version}" for name, version in info["versions"].items()),
        "state at the end": (info["state_digest"] or "")[:16],
    }
    incidents = [
        f"slot {record['slot']}: {kind.replace('_', ' ')} {subject}"
        for record in info["incidents"]
        for kind, subject in record.items()
        if kind != "slot"
    ]
    parts = [_facts(facts)]
    if incidents:
        remaining = len(incidents) - MAX_LISTED_INCIDENTS
        more = f"; and {remaining} more" if remaining > 0 else ""
        listed = "; ".join(incidents[:MAX_LISTED_INCIDENTS]) + more
        parts.append(f"<h3>Incidents</h3><p>{text(listed)}</p>")
    if parameters := dict(flatten(info["parameters"])):
        parts.append(f"<h3>Parameters in force</h3>{_facts(parameters)}")
    return "".join(parts)


def flatten(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield nested parameters by their dotted names."""
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from flatten(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def _input(part: Mapping[str, str]) -> str:
    digest = f" (sha256 {part['sha256'][:16]}…)" if part["sha256"] else ""
    return f"{part['name']}{digest}"


def _latency(record: Mapping[str, float]) -> str:
    if not record.get("decisions"):
        return ""
    spans = {name: format_duration(record[name]) for name in ("p50", "p90", "p99", "max")}
    return (
        f"median {spans['p50']}, 90 % {spans['p90']}, 99 % {spans['p99']}, longest {spans['max']} "
        f"({record['decisions']:,} decisions)"
    )


def _facts(facts: Mapping[str, object]) -> str:
    rows = "".join(
        f"<dt>{text(name)}</dt>"
        f"<dd>{text(f'{value:.6g}' if isinstance(value, float) else str(value))}</dd>"
        for name, value in facts.items()
        if value not in ("", None)
    )
    return f"<dl>{rows}</dl>"
