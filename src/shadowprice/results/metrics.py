"""Summary metrics of a run, computed from its tables alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

Summary = dict[str, object]

NOT_ARRIVED: Final = "not arrived"
"""Outcome of a job whose arrival is after the end of the run; no metric includes it."""


def summarise(jobs: pl.DataFrame, slots: pl.DataFrame) -> Summary:
    """Return the metrics of a run, from its `tables.job_table` and `tables.slot_table`.

    Every share refers to all jobs that arrived. Completion times only cover finished jobs, so a
    policy improves them by finishing only short jobs. No choice of jobs improves `restricted_mean`.

    ``jobs`` counts the workload, and ``arrived`` those that arrived before the run ended. Of these:
    ``admitted`` (committed by a planner, or queued and not refused), ``finished``, ``refused``,
    ``dropped``, ``cancelled``, ``unfinished`` (running or waiting at the end). ``value`` is the
    utility if every job that arrived completed as early as possible. ``jct`` is in slots from the
    submission to the end of the completion slot, for finished jobs. ``makespan`` is in slots from
    the first arrival to the end of the last completion. ``utilisation`` is from the first arrival
    to ``end``. ``restarts`` counts moves, resizes and resumptions; ``lost_gpu_hours`` is the time
    that they and repeated work took, None if unknown. ``abandoned_work`` is the share of
    unfinished jobs in all worker-slots, None if nothing ran.
    """
    counts = {str(name): int(number) for name, number in jobs["outcome"].value_counts().iter_rows()}
    arrived = jobs.filter(pl.col("outcome") != NOT_ARRIVED)
    finished = arrived.filter(pl.col("outcome") == "finished")
    end = run_end_slot(arrived, slots)
    return {
        "jobs": len(jobs),
        "arrived": len(arrived),
        "admitted": len(arrived) - counts.get("refused", 0),
        "finished": len(finished),
        "refused": counts.get("refused", 0),
        "dropped": counts.get("dropped", 0),
        "cancelled": counts.get("cancelled", 0),
        "unfinished": counts.get("running", 0) + counts.get("waiting", 0),
        "not_arrived": counts.get(NOT_ARRIVED, 0),
        "total_utility": float(arrived["utility"].sum()),
        "value": float(arrived["value"].sum()),
        "jct": _mean_and_percentiles(finished["jct"], median=50, p90=90, p99=99)
        | {"restricted_mean": restricted_mean(jobs, end)},
        "end": end,
        "makespan": _makespan(arrived),
        "met_target": met_target(jobs),
        "finish_time_fairness": _mean_and_percentiles(
            finished["finish_time_fairness"].drop_nulls(), p99=99, worst=100
        ),
        "worker_slots": int(jobs["worker_slots"].sum()),
        "restarts": None if (restarts := _sum(jobs["restarts"])) is None else int(restarts),
        "lost_gpu_hours": _sum(jobs["lost_gpu_hours"]),
        "abandoned_work": _abandoned_work(jobs),
        "utilisation": _utilisation(arrived, slots, end),
        "late": _late_metrics(arrived),
        "refusals": _refusals(jobs),
    }


def run_end_slot(jobs: pl.DataFrame, slots: pl.DataFrame) -> int:
    """Return the end of a run: the first slot after the last in which a job ran or arrived.

    Later slots contain no information about the jobs: a run may last until a late incident, or
    because a queued job waits forever. Return 0 if no job arrived.
    """
    ran = slots["slot"].filter(slots["running"] > 0).max()
    arrived = jobs.filter(pl.col("outcome") != NOT_ARRIVED)["arrival"].max()
    last = [int(slot) for slot in (ran, arrived) if slot is not None]  # type: ignore[arg-type]  # integers
    return max(last, default=-1) + 1


def restricted_mean(jobs: pl.DataFrame, end: int) -> float | None:
    """Return the mean completion time of all jobs up to the end of a run, in slots.

    A job that arrived and didn't finish counts with the time from its submission to the end. This
    is the restricted mean survival time: the area under the share of unfinished jobs. To compare
    runs, use the latest of their ends for all. ``end`` is the first slot after the run. The result
    is None if no job arrived.
    """
    arrived = jobs.filter(pl.col("outcome") != NOT_ARRIVED)
    remaining = end - pl.col("submitted")
    spent = pl.when(pl.col("outcome") == "finished").then(pl.min_horizontal("jct", remaining))
    mean = arrived.select(spent.otherwise(remaining).mean()).item() if len(arrived) else None
    return None if mean is None else float(mean)


def mean_completion(jobs: pl.DataFrame, names: Sequence[str]) -> float | None:
    """Return the mean completion time of some jobs, in slots; None unless all of them finished."""
    chosen = jobs.filter(pl.col("job").is_in(list(names)) & (pl.col("outcome") == "finished"))
    return float(chosen["jct"].to_numpy().mean()) if names and len(chosen) == len(names) else None


def common_completion(runs: Sequence[pl.DataFrame]) -> tuple[int, list[float | None]]:
    """Return the mean completion times of the jobs that all of several runs finished.

    The first result is the number of these jobs, the second each run's mean slots from the
    submission to the end of the completion slot. Jobs that not all runs have don't count.
    """
    finished = [jobs.filter(pl.col("outcome") == "finished").select("job", "jct") for jobs in runs]
    for others in finished[1:]:
        finished[0] = finished[0].join(others.select("job"), on="job", maintain_order="left")
    if not len(finished[0]):
        return 0, [None] * len(runs)
    common = finished[0]["job"].implode()
    means: list[float | None] = [
        float(jobs.filter(pl.col("job").is_in(common))["jct"].to_numpy().mean())
        for jobs in finished
    ]
    return len(finished[0]), means


def met_target(jobs: pl.DataFrame) -> Summary:
    """Return how many jobs finished in time (``met``), of all that arrived with a target."""
    targeted = jobs.filter((pl.col("outcome") != NOT_ARRIVED) & pl.col("target").is_not_null())
    met = int((targeted["late"] <= 0).sum())
    return {
        "met": met,
        "of": len(targeted),
        "share": met / len(targeted) if len(targeted) else None,
    }


def latency(seconds: Sequence[float]) -> Summary:
    """Return percentiles of the decision times, in seconds."""
    values = np.asarray(seconds, dtype=np.float64)
    if not len(values):
        return {"decisions": 0}
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {
        "decisions": len(values),
        "mean": float(values.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": float(values.max()),
        "first": float(values[0]),
        "total": float(values.sum()),
    }


def resources(slots: pl.DataFrame) -> list[str]:
    """Return the resources in a slot table."""
    return [name.removeprefix("used_") for name in slots.columns if name.startswith("used_")]


def _mean_and_percentiles(values: pl.Series, **percentiles: float) -> Summary:
    """Return the mean and percentiles by name; None without values."""
    if not len(values):
        return dict.fromkeys(("mean", *percentiles))
    numbers = values.to_numpy()
    chosen = np.percentile(numbers, list(percentiles.values())).tolist()
    return {"mean": float(numbers.mean())} | dict(zip(percentiles, chosen, strict=True))


def _sum(values: pl.Series) -> float | None:
    """Return the sum of a column; None if all its rows are null, as for a cluster log."""
    is_unknown = len(values) and values.null_count() == len(values)
    return None if is_unknown else float(values.sum())


def _abandoned_work(jobs: pl.DataFrame) -> float | None:
    total = int(jobs["worker_slots"].sum())
    unfinished = jobs["worker_slots"].filter(jobs["outcome"] != "finished")
    return int(unfinished.sum()) / total if total else None


def _makespan(jobs: pl.DataFrame) -> int | None:
    last = jobs["completion"].max()
    if last is None:
        return None
    return int(last) - int(jobs["arrival"].min()) + 1  # type: ignore[arg-type]  # both are integers


def _utilisation(jobs: pl.DataFrame, slots: pl.DataFrame, end: int) -> dict[str, float | None]:
    first = jobs["arrival"].min()
    # A row represents all slots up to the next row; an idle stretch has a single row.
    following = pl.col("slot").shift(-1).fill_null(end).clip(upper_bound=end)
    durations = slots.select(following - pl.col("slot")).to_series()
    within = pl.col("slot").is_between(0 if first is None else first, end - 1)
    inside = slots.select(within).to_series()
    durations = durations.filter(inside)
    shares: dict[str, float | None] = {}
    for resource in resources(slots):
        # One column at a time: copying the whole table would double the memory of a long run.
        total = slots[f"total_{resource}"].filter(inside).cast(pl.Float64)
        is_limited = total.null_count() < len(total)
        available = float((total * durations).sum()) if is_limited else 0.0
        used = float((slots[f"used_{resource}"].filter(inside).cast(pl.Float64) * durations).sum())
        shares[resource] = used / available if available else None
    return shares


def _late_metrics(arrived: pl.DataFrame) -> dict[str, Mapping[str, float | int]]:
    late = pl.col("late")
    table = (
        arrived.filter(pl.col("target").is_not_null())
        .group_by("class")
        .agg(
            pl.len().alias("jobs"),
            late.count().alias("finished"),
            late.mean().alias("mean"),
            late.median().alias("median"),
            late.quantile(0.9, "linear").alias("p90"),
            (late <= 0).sum().alias("met"),
        )
        .sort("class")
    )
    return {str(row.pop("class")): row for row in table.to_dicts()}


def _refusals(jobs: pl.DataFrame) -> dict[str, int]:
    refused = jobs.filter(pl.col("outcome").is_in(["refused", "dropped"]))
    counts = refused["reason"].value_counts().sort(["count", "reason"], descending=[True, False])
    return {str(reason): int(count) for reason, count in counts.iter_rows()}
