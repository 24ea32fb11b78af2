"""Section on several seeds: means with intervals, and tests between policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shadowprice.results.metric_definitions import OVER_SEEDS, MetricDefinition
from shadowprice.results.report.charts import figure, interval_plot
from shadowprice.results.report.inline_assets import text
from shadowprice.results.report.tables import HtmlCell, fixed_table

DRAWN: Final = ("total_utility", "in_time", "restricted_mean_jct", "utility_per_cost")
"""Measures that have a chart as well."""

SIGNIFICANT: Final = 0.05

TESTED: Final = (
    "p: paired permutation test over the seeds, with Holm's correction for the policies of a row; "
    "highlighted if it is below 0.05."
)

Entry = Mapping[str, Any]


def seeds_section(trials: Mapping[str, Any]) -> str:
    """Return the section on the metrics of policies over several seeds.

    ``trials`` is part of ``compare.json``: the ``seeds``, and by name of the ``policies`` the
    ``values``, ``mean``, ``low`` and ``high`` of every metric, and for all but the first policy
    their difference ``against_first``. ``remark`` is present if further seeds add nothing.
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
        parts.append(f"<h3>Beyond {text(first)}, seed by seed</h3>")
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
            scale = 100.0 if metric.share else 1.0
            mean = entry["mean"]
            # The bounds are None for a single value.
            low, high = (mean if entry[end] is None else entry[end] for end in ("low", "high"))
            ends = [scale * end for end in (low, mean, high)]
            rows.append((name, scale * measured, (ends[0], ends[1], ends[2]), index % 8))
    if len({float(value) for _, values, _, _ in rows for value in values}) < 2:
        return ""
    label = f"{metric.name}, %" if metric.share else metric.name
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
