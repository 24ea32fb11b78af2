"""Sections over time: utility, utilisation, queue, prices."""

from __future__ import annotations

import numpy as np
import polars as pl

from shadowprice.results.metrics import resources
from shadowprice.results.report.charts import Floats, Series, downsample, line_chart
from shadowprice.results.report.number_format import format_duration
from shadowprice.results.report.sections import figure, section
from shadowprice.results.run_directory import RunData


def slot_label(run: RunData) -> str:
    """Return the label of the slot axis, with the length of a slot."""
    return f"slot (of {format_duration(run.info['cluster']['slot_seconds'])})"


def earned_over_time(run: RunData) -> tuple[Floats, Floats]:
    """Return the slots, and the utility earned up to the end of each."""
    return (
        run.slots["slot"].to_numpy().astype(np.float64),
        np.cumsum(run.slots["utility"].to_numpy()),
    )


def used_share(run: RunData, resource: str) -> Floats:
    """Return the used share of a resource in each row of the slot table; 0 if all are lost."""
    used, total = (
        run.slots[f"{kind}_{resource}"].cast(pl.Float64).to_numpy() for kind in ("used", "total")
    )
    share = np.divide(used, total, out=np.zeros_like(used), where=total > 0)
    return np.asarray(share, dtype=np.float64)


@section("Utility over time", 20)
def utility(run: RunData) -> str | None:
    """Return the earned utility and the value of the jobs that arrived."""
    if not len(run.slots):
        return None
    slots, earned = earned_over_time(run)
    arrivals = run.jobs.group_by("arrival").agg(pl.col("value").sum()).sort("arrival")
    index = np.searchsorted(arrivals["arrival"].to_numpy(), slots, side="right")
    offered = np.r_[0.0, np.cumsum(arrivals["value"].to_numpy())][index]
    positions, thinned = downsample(earned, last=True)
    _, thinned_offer = downsample(offered, last=True)
    xs = slots[positions]
    series = [
        Series("value of the jobs that arrived", thinned_offer, 7),
        Series("utility earned", thinned, 0),
    ]
    chart = line_chart(xs, series, x_label=slot_label(run), y_label="utility", steps=True)
    remark = (
        "A job's value is the utility that it would earn with its maximum number of workers from "
        "its arrival on. Utility is earned in the slot in which the job completes."
    )
    return figure("Earned and on offer", chart, remark)


@section("Utilisation", 30)
def utilisation(run: RunData) -> str | None:
    """Return the used share of each resource."""
    if not len(run.slots):
        return None
    slots = run.slots["slot"].to_numpy().astype(np.float64)
    shown = [
        name for name in resources(run.slots) if run.summary["utilisation"].get(name) is not None
    ]
    if not shown:
        return None
    series = []
    positions = np.zeros(0, np.intp)
    for index, resource in enumerate(shown):
        positions, values = downsample(used_share(run, resource))
        mean = run.summary["utilisation"][resource]
        series.append(Series(f"{resource}, {mean:.0%} on average", values, index % 7))
    chart = line_chart(
        slots[positions],
        series,
        x_label=slot_label(run),
        y_label="in use",
        fill=len(series) == 1,
        y_high=1.0,
        percent=True,
        steps=True,
        legend=True,
    )
    return figure("Share of each resource in use", chart)


@section("Queue", 35)
def queue(run: RunData) -> str | None:
    """Return the number of running and waiting jobs."""
    if not len(run.slots):
        return None
    slots = run.slots["slot"].to_numpy().astype(np.float64)
    positions, running = downsample(run.slots["running"].to_numpy().astype(np.float64))
    _, waiting = downsample(run.slots["queue"].to_numpy().astype(np.float64))
    chart = line_chart(
        slots[positions],
        [Series("running", running, 2), Series("waiting", waiting, 1)],
        x_label=slot_label(run),
        y_label="jobs",
        height=220,
        steps=True,
    )
    remark = (
        "Waiting: arrived, but not refused and not running; includes jobs planned for later slots."
    )
    return figure("Jobs in the cluster", chart, remark)


@section("Prices", 50)
def prices(run: RunData) -> str | None:
    """Return the mean price of each resource."""
    series = []
    positions = np.zeros(0, np.intp)
    for index, resource in enumerate(resources(run.slots)):
        column = run.slots[f"price_{resource}"]
        values = column.to_numpy()
        if column.null_count() < len(column) and np.nanmax(values) > 0:
            positions, thinned = downsample(values)
            series.append(Series(resource, thinned, index % 7))
    if not series:
        return None
    slots = run.slots["slot"].to_numpy().astype(np.float64)
    chart = line_chart(
        slots[positions],
        series,
        x_label=slot_label(run),
        y_label="utility a slot",
        height=240,
        legend=True,
        steps=True,
        prices=True,
    )
    remark = (
        "Cost of a server's whole capacity for one slot, averaged over servers with the resource."
    )
    return figure("Mean price of each resource", chart, remark)
