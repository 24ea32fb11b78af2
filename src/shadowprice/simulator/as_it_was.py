"""The schedule that a trace's log records, as a run with the usual tables and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np
import polars as pl

from shadowprice.core.amounts import MILLI
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.utility import utility_value
from shadowprice.results.fairness import finish_time_fairness
from shadowprice.results.metrics import summarise
from shadowprice.results.run_directory import Fields, RunData
from shadowprice.traces.records import Trace

LABEL: Final = "as it was"  # name of the log among the policies of a comparison
MAX_SLOTS: Final = 10**6  # maximum slots of a log for which the table of slots is built
GPU: Final = "gpu"  # the only resource whose use is taken from the log
_TOLERANCE_SLOTS: Final = 1e-9  # rounding errors of times in slots


def _worker_counts(cluster: Cluster, jobs: Sequence[Job], gpus: Floats) -> Integers:
    """Return how many workers of each job have its traced GPUs, at least one."""
    column = cluster.column.get(GPU)
    if column is None:
        return np.ones(len(jobs), np.int64)
    per_worker = np.array([job.worker[column] for job in jobs], np.float64) / MILLI
    counts = np.ceil(gpus / np.maximum(per_worker, 1.0 / MILLI))
    return np.where(per_worker > 0.0, np.maximum(counts, 1.0), 1.0).astype(np.int64)


def _no_decisions(_plans: bool) -> Iterator[Fields]:
    return iter(())


def as_it_was(trace: Trace, cluster: Cluster, jobs: Sequence[Job], run: RunData) -> RunData | None:
    """Return the log as a run.

    The result is None if the log doesn't say how long every job waited, if it spans more than
    `MAX_SLOTS` slots, or if ``run`` ended early (``--until``, an interruption).

    A job completes in the slot in which it ended in the log, whatever its final state, and earns
    its utility for that slot. It uses its GPUs from its last start to its end. Completion times,
    waits, fairness and utilisation are defined as for every other run. Earlier attempts of a job
    count as lost GPU-hours if the log has them; the number of restarts is unknown. It has as many
    workers as its GPUs make, and no parameter servers. ``run`` is any
    simulated run of the same jobs on ``cluster``, and gives the layout of the tables.
    """
    if run.info["partial"] or run.info["until"] is not None:
        return None
    slot_seconds = float(run.info["cluster"]["slot_seconds"])
    log = trace.jobs.filter(pl.col("job").is_in(run.jobs["job"].to_list()))
    known_losses = pl.col("lost").fill_null(0.0)
    timed = log.select("job", "submit", "duration", "queue", "gpus", known_losses)
    timed = run.jobs.select("job").join(timed, on="job", how="left", maintain_order="left")
    if timed.null_count().select(pl.sum_horizontal(pl.all())).item() or not len(timed):
        return None  # a job's time is unknown
    end = (timed["submit"] + timed["queue"] + timed["lost"] + timed["duration"]).to_numpy()
    start = end - timed["duration"].to_numpy()
    submitted = timed["submit"].to_numpy() / slot_seconds
    # A job that ends with its slot completes in it.
    last = np.ceil(end / slot_seconds - _TOLERANCE_SLOTS).astype(np.int64) - 1
    arrivals = np.array([job.arrival for job in jobs], dtype=np.int64)
    completion = np.maximum(last, arrivals)
    if completion.max(initial=0) - arrivals.min(initial=0) > MAX_SLOTS:
        return None
    utility = [
        utility_value(job.utility, int(slot) - job.arrival)
        for job, slot in zip(jobs, completion, strict=True)
    ]
    spans = np.maximum(1, np.ceil(timed["duration"].to_numpy() / slot_seconds)).astype(np.int64)
    gpus = timed["gpus"].to_numpy()
    table = run.jobs.with_columns(
        outcome=pl.lit("finished"),
        reason=pl.lit(None, dtype=pl.String()),
        message=pl.lit(None, dtype=pl.String()),
        start=pl.Series(np.floor(start / slot_seconds).astype(np.int64)),
        completion=pl.Series(completion),
        ended=pl.Series(completion + 1),
        jct=pl.Series(completion + 1 - submitted),
        utility=pl.Series(utility, dtype=pl.Float64()),
        late=pl.Series(completion - arrivals, dtype=pl.Float64()) - pl.col("target"),
        progress=pl.col("required"),
        worker_slots=pl.Series(spans * _worker_counts(cluster, jobs, gpus)),
        ps_slots=pl.lit(0, dtype=pl.Int64()),
        admitted=pl.lit(None, dtype=pl.Int64()),
        plans=pl.lit(0, dtype=pl.Int32()),
        restarts=pl.lit(None, dtype=pl.Int32()),
        lost_gpu_hours=pl.Series(_lost_gpu_hours(log, timed), dtype=pl.Float64()),
    )
    fairness = finish_time_fairness(cluster, jobs, table)
    table = table.with_columns(fairness).select(run.jobs.columns)
    slots = _slots(run, table, start / slot_seconds, end / slot_seconds, gpus)
    summary = summarise(table, slots)
    # The log may not have other resources. Their utilisation is unknown, and not 0 %.
    utilisation = cast(dict[str, float | None], summary["utilisation"])
    summary["utilisation"] = {
        name: utilisation[name] if name == GPU else None for name in utilisation
    }
    info = {
        **run.info,
        "policy": LABEL,
        "parameters": {},
        "partial": False,
        "timing": {},
        "summary": summary,
    }
    info.pop("guarantee", None)
    return replace(
        run,
        info=info,
        jobs=table,
        slots=slots,
        allocations=run.allocations.clear(),
        heat=run.heat.clear(),
        decisions=_no_decisions,
        payments=None,
        advice={},
    )


def _lost_gpu_hours(log: pl.DataFrame, timed: pl.DataFrame) -> Floats | list[None]:
    """Return the GPU-hours of each job's earlier attempts; all None if the log has no attempts."""
    if log["lost"].null_count() == len(log):
        return [None] * len(timed)
    gpus = timed["gpus"].to_numpy()
    # As in `gpus_per_worker`, a job without GPUs counts as one.
    return timed["lost"].to_numpy() / 3600 * np.where(gpus > 0, gpus, 1.0)


def _slots(
    run: RunData, jobs: pl.DataFrame, start: Floats, end: Floats, gpus: Floats
) -> pl.DataFrame:
    """Return the table of slots: mean GPUs in use, mean running jobs, and waiting jobs.

    ``start`` and ``end`` of the jobs are in slots. The mean number of running jobs is rounded up,
    so that a slot with any running job has at least one. Waiting jobs are counted at the slot's
    end.
    """
    first = int(jobs["arrival"].min())  # type: ignore[arg-type]  # integers
    last = int(jobs["completion"].max())  # type: ignore[arg-type]  # integers
    edges = np.arange(first, last + 2, dtype=np.float64)
    # Summed ages since the starts, minus ages since the ends, are the times run before an edge.
    used = np.diff(_weighted_ages(edges, start, gpus) - _weighted_ages(edges, end, gpus))
    ones = np.ones(len(start))
    running = np.diff(_weighted_ages(edges, start, ones) - _weighted_ages(edges, end, ones))
    ends = edges[1:]
    arrived = np.searchsorted(np.sort(jobs["submitted"].to_numpy()), ends, side="right")
    started = np.searchsorted(np.sort(start), ends, side="right")
    utility = np.zeros(len(ends))
    np.add.at(utility, jobs["completion"].to_numpy() - first, jobs["utility"].to_numpy())
    values = {
        "slot": np.arange(first, last + 1),
        "running": np.ceil(running - _TOLERANCE_SLOTS).astype(np.int64),
        "queue": np.maximum(0, arrived - started),
        "utility": utility,
        "used_gpu": used,
    }
    columns = []
    for name, kind in run.slots.schema.items():
        if name in values:
            columns.append(pl.Series(name, values[name]).cast(kind))
        elif name.startswith("total_"):
            columns.append(pl.Series(name, [run.slots[name].max()] * len(ends), dtype=kind))
        else:  # the log has no use of other resources, and no prices
            columns.append(pl.Series(name, [None] * len(ends), dtype=kind))
    return pl.DataFrame(columns)


def _weighted_ages(edges: Floats, moments: Floats, weights: Floats) -> Floats:
    """Return for each edge the weighted sum of the times from all earlier moments to the edge."""
    order = np.argsort(moments)
    sums = np.concatenate(([0.0], np.cumsum(weights[order])))
    products = np.concatenate(([0.0], np.cumsum((weights * moments)[order])))
    count = np.searchsorted(moments[order], edges, side="right")
    return np.asarray(edges * sums[count] - products[count], dtype=np.float64)
