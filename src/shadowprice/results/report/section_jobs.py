"""Sections on the jobs' results: outcomes, lateness, completion times, refusals."""

from __future__ import annotations

import numpy as np
import polars as pl

from shadowprice.results.metrics import NOT_ARRIVED, met_target, restricted_mean
from shadowprice.results.report.charts import Box, bars, box_plot, share_bars
from shadowprice.results.report.number_format import format_number
from shadowprice.results.report.sections import figure, section
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


@section("Outcomes", 10)
def outcomes(run: RunData) -> str | None:
    """Return the jobs by outcome, by number and by value."""
    if not len(run.jobs):
        return None
    table = run.jobs.group_by("outcome").agg(pl.len().alias("jobs"), pl.col("value").sum())
    counts = {str(name): (int(jobs), float(value)) for name, jobs, value in table.iter_rows()}
    total = sum(value for _, value in counts.values()) or 1.0
    parts = []
    for key, label, colour in OUTCOMES:
        if key in counts:
            jobs, value = counts[key]
            name = f"{label}: {jobs:,}"
            parts.append((name, colour, [jobs, value], [f"{jobs:,}", f"{value / total:.1%}"]))
    return figure("Jobs, and the value they had", share_bars(["by number", "by value"], parts))


@section("Lateness", 60)
def lateness(run: RunData) -> str | None:
    """Return completion less target, by utility class."""
    late = run.jobs.filter(pl.col("late").is_not_null())
    if not len(late):
        return None
    boxes = [
        Box(name, frame["late"].to_numpy(), index % 7)
        for index, (name, frame) in enumerate(_by_class(late))
    ]
    chart = box_plot(boxes, x_label="completion less target, in slots", zero="on target")
    remark = (
        "Box: the middle half of the finished jobs, with the median; whiskers: 5 % and 95 %. "
        "Left of the line is in time."
    )
    return figure("Completion less target, by class", chart, remark)


def _by_class(jobs: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    names = sorted(jobs["class"].unique().to_list())
    return [(name, jobs.filter(pl.col("class") == name)) for name in names]


@section("Refusals", 70)
def refusals(run: RunData) -> str | None:
    """Return refused and dropped jobs with their reasons, the most valuable first."""
    refused = [item for item in run.decisions(False) if item["outcome"] in {"rejected", "dropped"}]
    if not refused:
        return "<p>No job was refused.</p>"
    reasons: dict[str, int] = {}
    for record in refused:
        reasons[record["reason"]] = reasons.get(record["reason"], 0) + 1
    ordered = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    overview = bars([(reason, count, f"{count:,}", 4) for reason, count in ordered], "jobs")
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
        rows.append(
            [
                record["job"],
                record["slot"],
                refusal.get("value"),
                refusal.get("cost"),
                refusal["message"],
                refusal.get("bottleneck"),
            ]
        )
    table = data_table(columns, rows, total=len(refused), remark="those with the largest value.")
    remark = (
        "Value: utility of the job's best plan; price: cost of that plan. Select a job for its "
        "history. <code>shadowprice explain RUN JOB</code> finds changes of the job that get it "
        "admitted."
    )
    return f"{figure('By reason', overview)}{table}<p class=remark>{remark}</p>"


@section("Completion times", 65)
def completion_times(run: RunData) -> str | None:
    """Return statistics of completion times by class."""
    arrived = run.jobs.filter(pl.col("outcome") != NOT_ARRIVED)
    jct = run.summary["jct"]
    if jct["mean"] is None:
        return None
    rows: list[list[Cell]] = []
    for name, frame in _by_class(arrived):
        values = frame["jct"].drop_nulls().to_numpy()
        spread = np.percentile(values, (50, 90, 99)).tolist() if len(values) else [None] * 3
        mean = float(values.mean()) if len(values) else None
        share = met_target(frame)["share"]
        met = "-" if share is None else f"{share:.1%}"
        whole = restricted_mean(frame, run.summary["end"])
        earned = float(frame["utility"].sum())
        rows.append([name, len(frame), len(values), mean, *spread, whole, met, earned])
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
        f"({format_number(jct['mean'])} on average). The restricted mean counts every job that "
        "arrived, those that did not finish up to the end of the run: no choice of jobs improves "
        f"it ({format_number(jct['restricted_mean'])} on average). In time: of all that arrived "
        "with a target."
    )
    return f"{data_table(columns, rows)}<p class=remark>{remark}</p>"
