"""Page that compares several policies on one workload."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import polars as pl

from shadowprice.core.wording import pluralize
from shadowprice.results.difference import GAINS_REMARK, HEADS, CapacityGain
from shadowprice.results.metric_definitions import OVER_SEEDS, MetricDefinition
from shadowprice.results.metrics import common_completion, resources
from shadowprice.results.report import charts
from shadowprice.results.report.charts import COLOURS, POINTS, Floats, figure, interval_plot
from shadowprice.results.report.inline_assets import escape_invisible, text
from shadowprice.results.report.number_format import format_duration, format_number
from shadowprice.results.report.page import Tile, page, partial_warning, start_time, workload_name
from shadowprice.results.report.sections import OUTCOMES, slot_label, used_share
from shadowprice.results.report.tables import Cell, HtmlCell, TableColumn, data_table, fixed_table
from shadowprice.results.run_directory import RunData, folder_name

MAX_DIFFERENT_JOBS = 20  # maximum number of listed jobs with different results

LONG_TAIL = 3
"""Ratio of the longest time to the 99th percentile above which the curve's tail is cut off."""

Table = Sequence[tuple[str, Sequence[str], frozenset[int]]]


def render_comparison(
    runs: Sequence[RunData],
    metrics: Table,
    trials: Mapping[str, Any] | None = None,
    gains: Sequence[CapacityGain] = (),
    drawn_text: str = "",
) -> str:
    """Return the page of a comparison.

    ``metrics`` are the rows of the table: (name, text by run, positions of the best). ``trials``
    holds metrics of several seeds; see `seeds_section`. ``gains`` are those of more servers, and
    ``drawn_text`` lists the inputs that were drawn at random.
    """
    first = runs[0]
    drawn: list[tuple[str, Callable[[Sequence[RunData]], str]]] = [
        ("Utility over time", _utility),
        ("Utility by class", _by_class),
        ("Outcomes", _outcomes),
        ("Completion times", _completion),
        ("Completion times, pair by pair", _pairs),
        ("Lateness", _lateness),
        ("Utilisation", _utilisation),
        ("Queue", _queue),
        ("Jobs with different results", _different),
    ]
    bodies = [("Metrics", "metrics", _table(runs, metrics))]
    if gains:
        cells = [[text(cell) for cell in gain.cells()] for gain in gains]
        table = fixed_table([text(head) for head in HEADS], cells, labels=2, classes="table")
        table += f"<p class=remark>{text(GAINS_REMARK)}</p>"
        bodies.append(("With more servers", "with-more-servers", table))
    if trials is not None and len(trials["seeds"]) > 1:
        title = f"Over {len(trials['seeds'])} seeds"
        bodies.append((title, "seeds", seeds_section(trials)))
    for title, draw in drawn:
        body = draw(runs)
        if body:
            bodies.append((title, title.lower().replace(" ", "-"), body))
    cluster = first.info["cluster"]
    # A run without timing is a cluster log as it was recorded, not a policy.
    count = sum(bool(run.info["timing"]) for run in runs)
    policies = "1 policy" if count == 1 else f"{count} policies"
    drawn_sentence = f". {drawn_text[0].upper()}{drawn_text[1:]}." if drawn_text else ""
    return page(
        title=f"{policies} on {workload_name(first)}",
        lead=f"{pluralize(first.summary['arrived'], 'job')} on "
        f"{pluralize(len(first.server_names), 'server')}, "
        f"slots of {format_duration(cluster['slot_seconds'])}, "
        f"seed {first.info['seed']}{drawn_sentence}",
        warning=partial_warning(runs),
        tiles=_tiles(runs),
        bodies=bodies,
        slot_seconds=cluster["slot_seconds"],
        begins=start_time(first),
    )


def _tiles(runs: Sequence[RunData]) -> list[Tile]:
    best = max(run.summary["total_utility"] for run in runs)
    return [
        (
            run.policy,
            format_number(run.summary["total_utility"]),
            f"{run.summary['total_utility'] / best:.0%} of the best; "
            f"{run.summary['finished']:,} finished"
            if best
            else f"{run.summary['finished']:,} finished",
        )
        for run in runs
    ]


def _table(runs: Sequence[RunData], metrics: Table) -> str:
    names = [
        f'<a href="{_report_link(run)}">{text(run.policy)}</a>'
        if run.info["timing"]
        else text(run.policy)  # a cluster log has no page of its own
        for run in runs
    ]
    rows: list[list[HtmlCell]] = []
    for name, texts, best in metrics:
        styles = ("best" if index in best else "" for index in range(len(texts)))
        rows.append([text(name), *zip(map(text, texts), styles, strict=True)])
    return (
        f"{fixed_table(['metric', *names], rows)}<p class=remark>The best value of a row is "
        "highlighted if a direction is better. A policy's name links to its own page.</p>"
    )


def _report_link(run: RunData) -> str:
    """Return the relative URL of a run's page: folder names may hold characters such as ``%``."""
    return f"{quote(folder_name(run.policy), errors='surrogateescape')}/report.html"


def _slots(runs: Sequence[RunData], maximum: int) -> Floats:
    """Return slots common to all runs, so that their lines share an axis."""
    ends = [run.slots["slot"][[0, -1]].to_list() for run in runs if len(run.slots)]
    if not ends:
        return np.zeros(0)
    first, last = min(first for first, _ in ends), max(last for _, last in ends)
    step = max(1, -(-(last - first + 1) // maximum))
    return np.arange(first, last + 1, step, dtype=np.float64)


def _sample_column(run: RunData, values: Floats, common: Floats, *, mean: bool) -> Floats:
    """Return a column of a run at common slots: means over each step, or last values."""
    if not len(run.slots):
        return np.full(len(common), np.nan)
    step = float(common[1] - common[0]) if len(common) > 1 else float(run.slot_count)
    slots = run.slots["slot"].to_numpy().astype(np.float64)
    first, last = slots[0], slots[-1] + 1.0
    starts, ends = np.clip(common, first, last), np.clip(common + step, first, last)
    if not mean:
        return np.asarray(values[np.maximum(np.searchsorted(slots, ends) - 1, 0)], dtype=np.float64)
    # A row stands for all slots up to the next row: a long idle stretch has a single row.
    edges = np.append(slots, last)
    sums = np.concatenate(([0.0], np.cumsum(values * np.diff(edges))))
    spans = ends - starts
    totals = np.interp(ends, edges, sums) - np.interp(starts, edges, sums)
    means = np.divide(totals, spans, out=np.full(len(common), np.nan), where=spans > 0)
    return np.asarray(means, dtype=np.float64)


def _slot_chart(
    runs: Sequence[RunData],
    column: Callable[[RunData], Floats],
    *,
    mean: bool = True,
    points: int = POINTS,
    **options: Any,
) -> str:
    """Return a chart of a column of every run, empty without slots.

    ``options`` are those of `charts.line_chart`.
    """
    slots = _slots(runs, points)
    if not len(slots):
        return ""
    series = [
        (run.policy, _sample_column(run, column(run), slots, mean=mean), order % COLOURS)
        for order, run in enumerate(runs)
    ]
    label = slot_label(runs[0])
    return charts.line_chart(slots, series, x_label=label, steps=True, legend=True, **options)


def _grid(figures: Sequence[str]) -> str:
    """Return figures in two columns, empty without figures."""
    return f'<div class="grid2">{"".join(figures)}</div>' if any(figures) else ""


def _utility(runs: Sequence[RunData]) -> str:

    def earned(run: RunData) -> Floats:
        return np.cumsum(run.slots["utility"].to_numpy())

    chart = _slot_chart(runs, earned, mean=False, y_label="utility")
    return figure("Utility earned up to each slot", chart)


def _by_class(runs: Sequence[RunData]) -> str:
    names = sorted(runs[0].jobs["class"].unique().to_list())
    figures = []
    for name in names:
        rows = []
        for order, run in enumerate(runs):
            earned = float(run.jobs.filter(pl.col("class") == name)["utility"].sum())
            rows.append((run.policy, earned, format_number(earned), order % COLOURS))
        count = int((runs[0].jobs["class"] == name).sum())
        figures.append(figure(f"{name}: {pluralize(count, 'job')}", charts.bars(rows, "utility")))
    return _grid(figures)


def _outcomes(runs: Sequence[RunData]) -> str:
    counts = [dict(run.jobs["outcome"].value_counts().iter_rows()) for run in runs]
    parts = []
    for key, label, colour in OUTCOMES:
        values = [int(by_outcome.get(key, 0)) for by_outcome in counts]
        parts.append((label, colour, values, [f"{value:,}" for value in values]))
    return figure("Jobs by outcome", charts.share_bars([run.policy for run in runs], parts))


def _completion(runs: Sequence[RunData]) -> str:
    """Return the cumulative share of jobs that completed within a number of slots."""
    durations = [np.sort(run.jobs["jct"].drop_nulls().to_numpy()) for run in runs]
    longest = math.ceil(max((spans[-1] for spans in durations if len(spans)), default=0.0))
    if not longest:
        return ""
    # If a few jobs took far longer than all others, cut the axis at the 99th percentile.
    p99 = math.ceil(max(run.summary["jct"]["p99"] or 0.0 for run in runs))
    shown_to = longest if longest <= LONG_TAIL * p99 else p99
    xs = np.unique(np.round(np.linspace(0, shown_to, 300))).astype(np.float64)
    series = []
    for order, (run, spans) in enumerate(zip(runs, durations, strict=True)):
        share = np.searchsorted(spans, xs, side="right") / max(run.summary["arrived"], 1)
        series.append((run.policy, share, order % COLOURS))
    chart = charts.line_chart(
        xs,
        series,
        x_label="slots from submission to completion",
        slots=False,
        y_label="share of jobs that arrived",
        percent=True,
        y_high=1.0,
        steps=True,
        legend=True,
    )
    remark = "A line ends below 100 % if the policy refused jobs or didn't finish them."
    if shown_to < longest:
        beyond = max(int((spans > shown_to).sum()) for spans in durations)
        remark += (
            f" Under one policy, up to {pluralize(beyond, 'job')} took longer than the axis shows: "
            f"at most {longest:,} slots."
        )
    return figure("Jobs completed, by slots since submission", chart, remark)


def _pairs(runs: Sequence[RunData]) -> str:
    """Return mean completion times of the jobs that both policies of each pair finished."""
    rows: list[list[Cell]] = []
    for index, run in enumerate(runs):
        for other in runs[index + 1 :]:
            jobs, (mine, theirs) = common_completion([run.jobs, other.jobs])
            rows.append([run.policy, other.policy, jobs, mine, theirs])
    if not rows:
        return ""
    columns = [
        TableColumn("policy"),
        TableColumn("other"),
        TableColumn("jobs both finished", numeric=True),
        TableColumn("mean of the policy", numeric=True),
        TableColumn("mean of the other", numeric=True),
    ]
    remark = "Slots from the submission to the end of the completion slot, on the same jobs."
    return f"{data_table(columns, rows)}<p class=remark>{remark}</p>"


def _lateness(runs: Sequence[RunData]) -> str:
    late = [run.jobs.filter(pl.col("late").is_not_null()) for run in runs]
    names = sorted({name for frame in late for name in frame["class"].unique().to_list()})
    figures = []
    for name in names:
        boxes = [
            (run.policy, frame.filter(pl.col("class") == name)["late"].to_numpy(), order % COLOURS)
            for order, (run, frame) in enumerate(zip(runs, late, strict=True))
        ]
        chart = charts.box_plot(boxes, x_label="completion less target, in slots", zero="on target")
        figures.append(figure(name, chart))
    return "".join(figures)


def _utilisation(runs: Sequence[RunData]) -> str:
    figures = []
    for resource in resources(runs[0].slots):
        if runs[0].summary["utilisation"].get(resource) is None:
            continue
        share = partial(used_share, resource=resource)
        chart = _slot_chart(
            runs, share, points=300, y_label="in use", height=220, percent=True, y_high=1.0
        )
        figures.append(figure(resource, chart))
    return _grid(figures)


def _queue(runs: Sequence[RunData]) -> str:

    def waiting(run: RunData) -> Floats:
        return run.slots["queue"].to_numpy().astype(np.float64)

    chart = _slot_chart(runs, waiting, y_label="waiting jobs", height=220)
    return figure("Jobs that wait", chart)


def _different(runs: Sequence[RunData]) -> str:
    """Return the jobs whose utility differs most between policies, linked to their histories."""
    if (
        len(runs) < 2
        or not len(runs[0].jobs)
        or any(not run.jobs["job"].equals(runs[0].jobs["job"]) for run in runs)
    ):
        return ""
    earned = np.stack([run.jobs["utility"].to_numpy() for run in runs], axis=1)
    spread = earned.max(axis=1) - earned.min(axis=1)
    order = np.argsort(-spread, kind="stable")[:MAX_DIFFERENT_JOBS]
    chosen = [int(row) for row in order if spread[row] > 0]
    if not chosen:
        return ""
    rows = []
    for row in chosen:
        name = runs[0].jobs["job"][row]
        fragment = quote(escape_invisible(name), safe="")
        links = [
            f'<a href="{_report_link(run)}#job={fragment}">{text(_outcome_text(run.jobs, row))}</a>'
            for run in runs
        ]
        rows.append([f'<span title="{text(name)}">{text(name)}</span>', *links])
    remark = (
        f"{len(chosen):,} of {int((spread > 0).sum()):,} jobs whose utility differs between "
        "policies: those with the largest difference. Select a number for the job's history."
    )
    table = fixed_table(["job", *(text(run.policy) for run in runs)], rows)
    return f'{table}<p class="remark">{remark}</p>'


def _outcome_text(jobs: pl.DataFrame, row: int) -> str:
    """Return the utility of a finished job, the outcome of any other."""
    outcome, utility = jobs["outcome"][row], float(jobs["utility"][row])
    return format_number(utility) if outcome == "finished" else str(outcome)


DRAWN: Final = ("total_utility", "in_time", "restricted_mean_jct", "utility_per_cost")
"""Keys of the metrics that have a chart, too."""

SIGNIFICANT: Final = 0.05  # p below which a difference is highlighted

TESTED: Final = (
    "p: paired permutation test over the seeds, with Holm's correction for the policies of a row; "
    "highlighted if it is below 0.05."
)

Entry = Mapping[str, Any]


def seeds_section(trials: Mapping[str, Any]) -> str:
    """Return the section on the metrics of policies over several seeds.

    ``trials`` is part of ``compare.json``: the ``seeds``, and by name of the ``policies`` the
    ``values``, ``mean``, ``low`` and ``high`` of every metric. All but the first policy have their
    difference ``against_first``. ``remark`` is present if further seeds change nothing.
    """
    policies: Mapping[str, Mapping[str, Entry]] = trials["policies"]
    count = len(trials["seeds"])
    metrics = [
        metric for metric in OVER_SEEDS if any(metric.key in entry for entry in policies.values())
    ]
    means = fixed_table(
        [f"mean of {count} seeds, ± half of its 95 % interval", *map(text, policies)],
        [
            [
                text(metric.name),
                *(_mean(metric, policies[name].get(metric.key)) for name in policies),
            ]
            for metric in metrics
        ],
    )
    charts = [_chart(metric, policies) for metric in metrics if metric.key in DRAWN]
    parts = [f'<div class="grid2">{"".join(chart for chart in charts if chart)}</div>', means]
    if "remark" in trials:
        parts.append(f'<p class="remark">{text(trials["remark"].capitalize())}.</p>')
    first, *others = policies
    rows = [
        [
            text(metric.name),
            *(_significance_cell(metric, policies[name].get(metric.key)) for name in others),
        ]
        for metric in metrics
        if metric.better
        and any("against_first" in policies[name].get(metric.key, {}) for name in others)
    ]
    if rows:
        parts.append(f"<h3>Difference from {text(first)}, seed by seed</h3>")
        parts.append(fixed_table(["metric", *map(text, others)], rows))
        parts.append(f'<p class="remark">{TESTED}</p>')
    return "".join(parts)


def _chart(metric: MetricDefinition, policies: Mapping[str, Mapping[str, Entry]]) -> str:
    """Return a metric's intervals and values as a chart; empty if all values are equal."""
    rows = []
    for index, (name, entries) in enumerate(policies.items()):
        entry = entries.get(metric.key, {})
        measured = np.array(
            [number for number in entry.get("values", ()) if number is not None], dtype=np.float64
        )
        if len(measured):
            scale = 100.0 if metric.unit == "share" else 1.0
            mean = entry["mean"]
            # The bounds are None for a single value.
            low, high = (mean if entry[end] is None else entry[end] for end in ("low", "high"))
            ends = [scale * end for end in (low, mean, high)]
            rows.append((name, scale * measured, (ends[0], ends[1], ends[2]), index % COLOURS))
    if len({float(value) for _, values, _, _ in rows for value in values}) < 2:
        return ""
    label = f"{metric.name}, %" if metric.unit == "share" else metric.name
    remark = "Box: the 95 % interval of the mean, with the mean; a dot is the run of one seed."
    return figure(metric.name, interval_plot(rows, x_label=label), remark)


def _mean(metric: MetricDefinition, entry: Entry | None) -> str:
    return "-" if entry is None or "mean" not in entry else _with_reach(metric, entry)


def _with_reach(metric: MetricDefinition, entry: Entry) -> str:
    formatted = metric.written(entry["mean"])
    if entry["low"] is None:
        return formatted
    return f"{formatted} ± {metric.written((entry['high'] - entry['low']) / 2)}"


def _significance_cell(metric: MetricDefinition, entry: Entry | None) -> HtmlCell:
    test = (entry or {}).get("against_first")
    if test is None:
        return "-"
    sign = "+" if test["mean"] >= 0 else ""
    formatted = f"{sign}{_with_reach(metric, test)}, p {test['p_holm']:.2g}"
    if test["p_holm"] >= SIGNIFICANT:
        return formatted
    return formatted, "best" if test["mean"] * metric.better > 0 else "worse"
