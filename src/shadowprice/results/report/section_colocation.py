"""Section on the slots in which each job was co-located (PD-ORS, Fact 1)."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from shadowprice.results.report.charts import chart, figure, share_bars
from shadowprice.results.report.number_format import format_number
from shadowprice.results.report.sections import slot_chart
from shadowprice.results.report.tables import MAX_ROWS, Cell, TableColumn, data_table
from shadowprice.results.run_directory import RunData

MAX_DRAWN_JOBS: Final = 40  # maximum number of drawn jobs; the table has more
COLOUR_COLOCATED, COLOUR_SPREAD = 2, 0  # colours of co-located and spread slots


def slots_of_jobs(run: RunData) -> pl.DataFrame:
    """Return one row for each job and slot: number of servers, and whether it was co-located.

    ``mixed`` is true if one of these servers ran both workers and parameter servers of the job.
    """
    return (
        run.allocations.group_by("job", "slot", maintain_order=True)
        .agg(
            pl.len().alias("servers"),
            ((pl.col("workers") > 0) & (pl.col("ps") > 0)).any().alias("mixed"),
        )
        .with_columns((pl.col("servers") == 1).alias("colocated"))
    )


def shares(slots: pl.DataFrame) -> pl.DataFrame:
    """Return for each job the share of its slots in which it was co-located."""
    return slots.group_by("job", maintain_order=True).agg(
        pl.len().alias("slots"),
        pl.col("colocated").sum(),
        pl.col("colocated").mean().alias("share"),
        pl.col("servers").max().alias("max_servers"),
    )


def colocation(run: RunData) -> str:
    """Return co-located slots in total, over time and by job; empty if no job had a choice."""
    if not _was_distributed(run.allocations):
        return ""
    slots = slots_of_jobs(run)
    colocated = int(slots["colocated"].sum())
    any_mixed = bool(slots["mixed"].any())
    # Jobs that always ran on one server, without parameter servers, had no choice either.
    if not colocated or (colocated == len(slots) and not any_mixed):
        return ""
    spread = len(slots) - colocated
    overview = share_bars(
        ["running slots"],
        [
            ("on one server", COLOUR_COLOCATED, [colocated], [f"{colocated:,} job-slots"]),
            ("on several", COLOUR_SPREAD, [spread], [f"{spread:,} job-slots"]),
        ],
    )
    remark = (
        "A job whose workers and parameter servers run on one server in a slot communicates "
        "at its internal rate, otherwise at the external one."
    )
    return (
        figure(f"{colocated / len(slots):.1%} of all running slots on one server", overview, remark)
        + figure("Running jobs", _over_time(run, slots))
        + _strips(run, slots)
        + _table(slots)
    )


def _was_distributed(allocations: pl.DataFrame) -> bool:
    """Return whether a job ever used several servers, or one for both workers and PS."""
    if ((allocations["workers"] > 0) & (allocations["ps"] > 0)).any():
        return True
    servers = allocations.group_by("job").agg(pl.col("server").n_unique())["server"]
    return bool((servers > 1).any())


def _over_time(run: RunData, slots: pl.DataFrame) -> str:
    """Return the numbers of co-located and spread jobs in each slot."""
    counted = slots.group_by("slot").agg(
        pl.col("colocated").sum().cast(pl.Float64).alias("colocated"),
        (~pl.col("colocated")).sum().cast(pl.Float64).alias("spread"),
    )
    table = run.slots.select("slot").join(counted, on="slot", how="left", maintain_order="left")
    counts = {name: table[name].fill_null(0.0).to_numpy() for name in ("colocated", "spread")}
    lines = [
        ("jobs on one server", counts["colocated"], COLOUR_COLOCATED),
        ("jobs on several servers", counts["spread"], COLOUR_SPREAD),
    ]
    return slot_chart(run, lines, y_label="jobs", height=190)


def _strips(run: RunData, slots: pl.DataFrame) -> str:
    """Return a strip of coloured slots for each of the jobs that ran longest."""
    longest = shares(slots).sort("slots", descending=True, maintain_order=True).head(MAX_DRAWN_JOBS)
    drawn = set(longest["job"])
    names = [name for name in run.jobs["job"] if name in drawn]
    first, last = int(run.slots.item(0, "slot")), int(run.slots.item(-1, "slot"))
    by_job = slots.filter(pl.col("job").is_in(names)).partition_by("job", as_dict=True)
    bars, rows = [], []
    for index, name in enumerate(names):
        own = by_job[name,].sort("slot")
        share = float(own["colocated"].mean())  # type: ignore[arg-type]  # it ran
        rows.append(f"{name} {share:.0%}")
        for start, end, colocated in _stretches(own):
            kind = "colocated" if colocated else "spread"
            span = {"from": start, "to": end + 1}
            bars.append({"row": index, **span, "style": kind, "text": f"slots {start} to {end}"})
    legend = (
        ("colocated", "one server", COLOUR_COLOCATED),
        ("spread", "several servers", COLOUR_SPREAD),
    )
    drawing = chart(
        {
            "kind": "gantt",
            "label": "Slots on one server and on several, job by job",
            "rows": rows,
            "first": first,
            "last": last + 1,
            "legend": [
                {"style": style, "name": name, "colour": colour, "look": "full"}
                for style, name, colour in legend
            ],
            "bars": bars,
        }
    )
    total = slots["job"].n_unique()
    title = (
        "Job by job" if total <= MAX_DRAWN_JOBS else f"The {MAX_DRAWN_JOBS} jobs that ran longest"
    )
    return figure(title, drawing, "After each name: the share of its slots on one server.")


def _stretches(own: pl.DataFrame) -> list[tuple[int, int, bool]]:
    """Return (first slot, last slot, co-located) of consecutive equal slots of a job."""
    slot, colocated = own["slot"].to_numpy().astype(np.int64), own["colocated"].to_numpy()
    cuts = np.flatnonzero((np.diff(slot) != 1) | (colocated[1:] != colocated[:-1])) + 1
    starts, ends = np.r_[0, cuts], np.r_[cuts, len(slot)] - 1
    return [
        (int(slot[begin]), int(slot[end]), bool(colocated[begin]))
        for begin, end in zip(starts, ends, strict=True)
    ]


def _table(slots: pl.DataFrame) -> str:
    by_job = shares(slots)
    rows: list[list[Cell]] = [
        [name, ran, colocated, f"{share:.0%}", max_servers]
        for name, ran, colocated, share, max_servers in by_job.head(MAX_ROWS).iter_rows()
    ]
    columns = [
        TableColumn("job", link=True),
        TableColumn("slots it ran in", numeric=True),
        TableColumn("on one server", numeric=True),
        TableColumn("share"),
        TableColumn("maximum number of servers", numeric=True),
    ]
    mean = format_number(float(by_job["share"].mean()))  # type: ignore[arg-type]  # some job ran
    remark = f"The mean of the jobs' shares is {mean}."
    table = data_table(columns, rows, total=len(by_job), remark="those that ran first.")
    return f"{table}<p class=remark>{remark}</p>"
