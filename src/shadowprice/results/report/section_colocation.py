"""Which slots each job stood on one machine in (PD-ORS, Fact 1)."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from shadowprice.results.files import Run
from shadowprice.results.report.charts import Bar, Series, gantt, line_chart, share_bars, thin
from shadowprice.results.report.scales import number
from shadowprice.results.report.section_time import slot_label
from shadowprice.results.report.sections import figure, section
from shadowprice.results.report.tables import MOST_ROWS, Cell, Column, data_table

MOST_DRAWN: Final = 40
"""Most jobs in the drawing; the table has more."""

TOGETHER, APART = 2, 0
"""Colours of slots on one machine and on several."""


def slots_of_jobs(run: Run) -> pl.DataFrame:
    """Return a row for each slot a job ran in: on how many machines, and whether on one."""
    return (
        run.allocations.group_by("job", "slot", maintain_order=True)
        .agg(
            pl.len().alias("machines"),
            ((pl.col("workers") > 0) & (pl.col("ps") > 0)).any().alias("beside"),
        )
        .with_columns((pl.col("machines") == 1).alias("together"))
    )


def shares(slots: pl.DataFrame) -> pl.DataFrame:
    """Return for each job the share of the slots it ran in that it stood on one machine."""
    return slots.group_by("job", maintain_order=True).agg(
        pl.len().alias("slots"),
        pl.col("together").sum(),
        pl.col("together").mean().alias("share"),
        pl.col("machines").max().alias("widest"),
    )


@section("Co-location", 45)
def colocation(run: Run) -> str | None:
    """Return which slots were co-located, over time, job by job, and as a share.

    Nothing is said where no job ever stood on one machine, or none ever on several: then there was
    no choice to look at.
    """
    if not _chosen(run.allocations):
        return None
    slots = slots_of_jobs(run)
    together = int(slots["together"].sum())
    beside = bool(slots["beside"].any())
    if not together or (together == len(slots) and not beside):
        return None
    apart = len(slots) - together
    overview = share_bars(
        ["running slots"],
        [
            ("on one machine", TOGETHER, [together], [f"{together:,} job-slots"]),
            ("on several", APART, [apart], [f"{apart:,} job-slots"]),
        ],
    )
    remark = (
        "A job whose workers and parameter servers all stand on one machine in a slot communicates "
        "at its internal rate in it, otherwise at the external one."
    )
    return (
        figure(f"{together / len(slots):.1%} of all running slots on one machine", overview, remark)
        + figure("Running jobs", _over_time(run, slots))
        + _strips(run, slots)
        + _table(slots)
    )


def _chosen(allocations: pl.DataFrame) -> bool:
    """Whether a job had anything beside its workers, or more than one machine, ever.

    Slots are not gone through one by one for it: a run may have millions.
    """
    if ((allocations["workers"] > 0) & (allocations["ps"] > 0)).any():
        return True
    machines = allocations.group_by("job").agg(pl.col("server").n_unique())["server"]
    return bool((machines > 1).any())


def _over_time(run: Run, slots: pl.DataFrame) -> str:
    """Return how many jobs ran on one machine and on several in each slot."""
    counted = slots.group_by("slot").agg(
        pl.col("together").sum().cast(pl.Float64).alias("one"),
        (~pl.col("together")).sum().cast(pl.Float64).alias("several"),
    )
    table = run.slots.select("slot").join(counted, on="slot", how="left", maintain_order="left")
    every = table["slot"].to_numpy().astype(np.float64)
    series, positions = [], np.zeros(0)
    for column, name, colour in (("one", "one machine", TOGETHER), ("several", "several", APART)):
        positions, values = thin(table[column].fill_null(0.0).to_numpy())
        series.append(Series(f"jobs on {name}", values, colour))
    return line_chart(
        every[positions.astype(np.int64)],
        series,
        x_label=slot_label(run),
        y_label="jobs",
        height=190,
        steps=True,
    )


def _strips(run: Run, slots: pl.DataFrame) -> str:
    """Return a strip for each of the jobs that ran longest, its slots coloured."""
    longest = shares(slots).sort("slots", descending=True, maintain_order=True).head(MOST_DRAWN)
    names = [name for name in run.jobs["job"] if name in set(longest["job"])]
    first, last = int(run.slots.item(0, "slot")), int(run.slots.item(-1, "slot"))
    by_job = slots.partition_by("job", as_dict=True)
    bars, rows = [], []
    for at, name in enumerate(names):
        own = by_job[name,].sort("slot")
        share = float(own["together"].mean())  # type: ignore[arg-type]  # it ran
        rows.append(f"{name} {share:.0%}")
        bars += [
            Bar(at, begin, end + 1, "one" if alone else "several", f"slots {begin} to {end}")
            for begin, end, alone in _stretches(own)
        ]
    drawing = gantt(
        rows,
        bars,
        [("one", "one machine", TOGETHER), ("several", "several machines", APART)],
        label="Slots on one machine and on several, job by job",
        first=first,
        last=last + 1,
    )
    total = slots["job"].n_unique()
    title = "Job by job" if total <= MOST_DRAWN else f"The {MOST_DRAWN} jobs that ran longest"
    return figure(title, drawing, "Beside each name: the share of its slots on one machine.")


def _stretches(own: pl.DataFrame) -> list[tuple[int, int, bool]]:
    """Return (first slot, last slot, on one machine) of a job's neighbouring slots of one kind."""
    slot, alone = own["slot"].to_numpy().astype(np.int64), own["together"].to_numpy()
    cuts = np.flatnonzero((np.diff(slot) != 1) | (alone[1:] != alone[:-1])) + 1
    begins, ends = np.r_[0, cuts], np.r_[cuts, len(slot)] - 1
    return [(int(slot[b]), int(slot[e]), bool(alone[b])) for b, e in zip(begins, ends, strict=True)]


def _table(slots: pl.DataFrame) -> str:
    found = shares(slots)
    rows: list[list[Cell]] = [
        [name, ran, together, f"{share:.0%}", widest]
        for name, ran, together, share, widest in found.head(MOST_ROWS).iter_rows()
    ]
    columns = [
        Column("job", link=True),
        Column("slots it ran in", numeric=True),
        Column("on one machine", numeric=True),
        Column("share"),
        Column("most machines at once", numeric=True),
    ]
    mean = number(float(found["share"].mean()))  # type: ignore[arg-type]  # some job ran
    remark = f"The mean of the jobs' shares is {mean}."
    table = data_table(columns, rows, total=len(found), remark="those that ran first.")
    return f"{table}<p class=remark>{remark}</p>"
