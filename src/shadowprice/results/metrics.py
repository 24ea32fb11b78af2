"""Summary metrics of a run, computed from its tables alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

Summary = dict[str, object]


def summarise(jobs: pl.DataFrame, slots: pl.DataFrame) -> Summary:
    """Return the metrics of a run.

    Parameters
    ----------
    jobs : polars.DataFrame
        As `tables.job_table` gives it.
    slots : polars.DataFrame
        As `slot_tables.slot_table` gives it.

    Returns
    -------
    dict
        ``jobs`` in all; ``admitted`` (taken in: committed to by a planner, or queued and not
        refused), ``finished``, ``rejected``, ``dropped``, ``cancelled``, ``unfinished`` (still
        running or waiting at the end), ``not_arrived``; ``total_utility`` and the ``value`` it
        is earned from (every job done as early as it could be); ``jct`` in slots from the
        arrival slot to the end of the completion slot (mean, median, p90, p99); ``makespan`` in
        slots from the first arrival to the end of the last completion; ``met_target`` (finished
        jobs that have a target and met it, and their number); ``utilisation`` of each resource
        over the makespan; ``resizes`` of jobs in all (moved, resized, resumed) and the
        ``resize_seconds`` lost to them; ``late`` by class; ``refusals`` by reason.
    """
    counts = {str(name): int(number) for name, number in jobs["outcome"].value_counts().iter_rows()}
    finished = jobs.filter(pl.col("outcome") == "finished")
    arrived = len(jobs) - counts.get("not arrived", 0)
    durations = (finished["completion"] - finished["arrival"] + 1).cast(pl.Float64)
    targeted = finished.filter(pl.col("late").is_not_null())
    met = int((targeted["late"] <= 0).sum())
    return {
        "jobs": len(jobs),
        "arrived": arrived,
        "admitted": arrived - counts.get("rejected", 0),
        "finished": len(finished),
        "rejected": counts.get("rejected", 0),
        "dropped": counts.get("dropped", 0),
        "cancelled": counts.get("cancelled", 0),
        "unfinished": counts.get("running", 0) + counts.get("waiting", 0),
        "not_arrived": counts.get("not arrived", 0),
        "total_utility": float(jobs["utility"].sum()),
        "value": float(jobs["value"].sum()),
        "jct": _spread(durations.to_numpy()),
        "makespan": _makespan(jobs),
        "met_target": {"met": met, "of": len(targeted)},
        "worker_slots": int(jobs["worker_slots"].sum()),
        "resizes": int(jobs["resizes"].sum()),
        "resize_seconds": float(jobs["resize_seconds"].sum()),
        "utilisation": _utilisation(slots),
        "late": _late(targeted),
        "refusals": _refusals(jobs),
    }


def latency(seconds: Sequence[float]) -> Summary:
    """Return percentiles of the time that decisions took, in seconds."""
    values = np.asarray(seconds, dtype=np.float64)
    if not len(values):
        return {"decisions": 0}
    percentiles = np.percentile(values, (50, 90, 99))
    return {
        "decisions": len(values),
        "mean": float(values.mean()),
        "p50": float(percentiles[0]),
        "p90": float(percentiles[1]),
        "p99": float(percentiles[2]),
        "max": float(values.max()),
        "first": float(values[0]),
        "total": float(values.sum()),
    }


def resources(slots: pl.DataFrame) -> list[str]:
    """Return the resources that a slot table counts."""
    return [name.removeprefix("used_") for name in slots.columns if name.startswith("used_")]


def _spread(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Summary:
    if not len(values):
        return {"mean": None, "median": None, "p90": None, "p99": None}
    median, p90, p99 = np.percentile(values, (50, 90, 99))
    return {
        "mean": float(values.mean()),
        "median": float(median),
        "p90": float(p90),
        "p99": float(p99),
    }


def _makespan(jobs: pl.DataFrame) -> int | None:
    last = jobs["completion"].max()
    if last is None:
        return None
    return int(last) - int(jobs["arrival"].min()) + 1  # type: ignore[arg-type]  # both are integers


def _utilisation(slots: pl.DataFrame) -> dict[str, float | None]:
    shares: dict[str, float | None] = {}
    for resource in resources(slots):
        total = slots[f"total_{resource}"]
        available = float(total.cast(pl.Float64).sum()) if total.null_count() < len(total) else 0.0
        used = float(slots[f"used_{resource}"].cast(pl.Float64).sum())
        shares[resource] = used / available if available else None
    return shares


def _late(targeted: pl.DataFrame) -> dict[str, Mapping[str, float | int]]:
    late = pl.col("late")
    table = (
        targeted.group_by("class")
        .agg(
            pl.len().alias("jobs"),
            late.mean().alias("mean"),
            late.median().alias("median"),
            late.quantile(0.9, "linear").alias("p90"),
            (late <= 0).sum().alias("met"),
        )
        .sort("class")
    )
    return {str(row.pop("class")): row for row in table.to_dicts()}


def _refusals(jobs: pl.DataFrame) -> dict[str, int]:
    refused = jobs.filter(pl.col("outcome").is_in(["rejected", "dropped"]))
    counts = refused["reason"].value_counts().sort(["count", "reason"], descending=[True, False])
    return {str(reason): int(count) for reason, count in counts.iter_rows()}
