"""What a trace looks like, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
import polars as pl

from shadowprice.traces.arrivals import HOUR, fano_factor, hourly_counts, interarrival_cv
from shadowprice.traces.records import Note, Trace

PERCENTILES: Final = (10, 50, 90, 99)


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Summary of a trace."""

    format: str
    """What was read."""
    source: str
    """What was read."""
    jobs: int
    """Jobs kept."""
    start: datetime | None
    """First submission, where known."""
    span: float
    """Seconds from the first submission to the last."""
    gpu_shares: Mapping[str, float]
    """Share of jobs by GPUs: ``0``, ``below 1``, 1, 2, 4, 8, more than 8, and the rest."""
    most_gpus: float
    """GPUs of the widest job."""
    run_time: Mapping[int, float]
    """Percentiles of run time in seconds, of the jobs whose duration is known."""
    timed: int
    """Jobs whose duration is known."""
    gpu_hours: float | None
    """GPU-time of those jobs; None where no duration is known."""
    multi_gpu_share: float | None
    """Share of it in jobs of more than one GPU; None where there is no GPU-time."""
    multi_gpu_jobs: float
    """Share of all jobs that take more than one GPU."""
    arrival_cv: float | None
    """Standard deviation over mean of the times between submissions (Poisson: 1); None where all
    are at one moment."""
    hourly_fano: float | None
    """Variance over mean (Poisson: 1) and most of the submissions in whole hours of the clock; None
    where the trace has fewer than two, or nothing was submitted in any."""
    hourly_peak: int | None
    """Variance over mean (Poisson: 1) and most of the submissions in whole hours of the clock; None
    where the trace has fewer than two, or nothing was submitted in any."""
    hourly_mean: float | None
    """Jobs over the span in hours; None where all were submitted at one moment."""
    tenants: int
    """How many tenants."""
    with_model: int
    """Jobs whose model, whose deadline is known."""
    with_deadline: int
    """Jobs whose model, whose deadline is known."""
    notes: tuple[Note, ...]
    """What was dropped or mended."""


def describe(trace: Trace) -> TraceStatistics:
    """Summarise a trace.

    Parameters
    ----------
    trace : Trace
        The trace; hours are those of its clock where `Trace.start` is known, else they count from
        its first job.

    Returns
    -------
    TraceStatistics
        The summary.
    """
    jobs = trace.jobs
    submit = jobs["submit"].to_numpy()
    offset = 0.0
    if trace.start is not None:
        midnight = trace.start.replace(hour=0, minute=0, second=0, microsecond=0)
        offset = (trace.start - midnight).total_seconds() % HOUR
    span = float(submit[-1] - submit[0])
    counts = hourly_counts(submit, offset)
    counted = len(counts) > 1 and counts.any()
    timed = jobs.filter(pl.col("duration").is_not_null())
    gpu_time = (timed["duration"] * timed["gpus"]).to_numpy()
    several = (timed["gpus"] > 1).to_numpy()
    total = float(gpu_time.sum())
    run = timed["duration"].to_numpy()
    percentiles = np.percentile(run, PERCENTILES).tolist() if len(run) else []
    return TraceStatistics(
        format=trace.format,
        source=trace.source,
        jobs=jobs.height,
        start=trace.start,
        span=span,
        gpu_shares=_gpu_shares(jobs["gpus"].to_numpy()),
        most_gpus=float(jobs.select(pl.col("gpus").max()).item()),
        run_time=dict(zip(PERCENTILES, percentiles, strict=False)),
        timed=timed.height,
        gpu_hours=total / HOUR if timed.height else None,
        multi_gpu_share=float(gpu_time[several].sum()) / total if total else None,
        multi_gpu_jobs=float((jobs["gpus"] > 1).to_numpy().mean()),
        arrival_cv=interarrival_cv(submit) if span else None,
        hourly_fano=fano_factor(counts) if counted else None,
        hourly_peak=int(counts.max()) if counted else None,
        hourly_mean=jobs.height / (span / HOUR) if span else None,
        tenants=jobs["tenant"].drop_nulls().n_unique(),
        with_model=jobs["model"].drop_nulls().len(),
        with_deadline=jobs["deadline"].drop_nulls().len(),
        notes=trace.notes,
    )


def _gpu_shares(gpus: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, float]:
    shares = {
        "0": gpus == 0,
        "below 1": (gpus > 0) & (gpus < 1),
        **{str(count): gpus == count for count in (1, 2, 4, 8)},
        "more than 8": gpus > 8,
    }
    rest = ~np.logical_or.reduce(list(shares.values()))
    shares["other"] = rest
    return {name: float(part.mean()) for name, part in shares.items() if part.any()}
