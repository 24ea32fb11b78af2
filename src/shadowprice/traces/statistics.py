"""Summary statistics of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
import polars as pl

from shadowprice.traces.arrivals import HOUR, fano_factor, hourly_counts, interarrival_cv
from shadowprice.traces.records import ImportNote, Trace

PERCENTILES: Final = (10, 50, 90, 99)


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Summary of a trace."""

    format: str  # name of the format
    source: str  # file or directory of the trace
    jobs: int  # number of kept jobs
    start: datetime | None  # first submission, if known
    span: float  # seconds from the first submission to the last
    gpu_shares: Mapping[str, float]
    """Share of jobs by GPUs: ``0``, ``below 1``, 1, 2, 4, 8, more than 8, and other numbers."""
    max_gpus: float  # maximum number of GPUs of a job
    run_time: Mapping[int, float]
    """Percentiles of run time in seconds, over the jobs with a known duration."""
    timed: int  # number of jobs with a known duration
    gpu_hours: float | None  # GPU-time of jobs with a known duration; None without such jobs
    multi_gpu_share: float | None
    """Share of the GPU-time in jobs with more than one GPU; None without GPU-time."""
    multi_gpu_jobs: float  # share of all jobs that use more than one GPU
    arrival_cv: float | None
    """Standard deviation over mean of the times between submissions (Poisson: 1); None if all are
    simultaneous."""
    hourly_fano: float | None
    """Variance over mean of the submissions in whole clock hours (Poisson: 1); None if the trace
    has fewer than two such hours, or nothing was submitted in them."""
    hourly_peak: int | None
    """Maximum number of submissions in a whole clock hour; None as for ``hourly_fano``."""
    hourly_mean: float | None  # jobs per hour of the span; None if all submissions are simultaneous
    tenants: int  # number of tenants
    with_model: int  # number of jobs with a known model
    with_deadline: int  # number of jobs with a known deadline
    notes: tuple[ImportNote, ...]  # dropped or repaired rows


def describe(trace: Trace) -> TraceStatistics:
    """Summarise a trace.

    Hours are aligned to the trace's clock if `Trace.start` is known, else to its first job.
    """
    jobs = trace.jobs
    submit = jobs["submit"].to_numpy()
    offset = 0.0
    if trace.start is not None:
        midnight = trace.start.replace(hour=0, minute=0, second=0, microsecond=0)
        offset = (trace.start - midnight).total_seconds() % HOUR
    span = float(submit[-1] - submit[0])
    counts = hourly_counts(submit, offset)
    has_counts = len(counts) > 1 and counts.any()
    timed = jobs.filter(pl.col("duration").is_not_null())
    gpu_time = (timed["duration"] * timed["gpus"]).to_numpy()
    several = (timed["gpus"] > 1).to_numpy()
    total = float(gpu_time.sum())
    durations = timed["duration"].to_numpy()
    percentiles = np.percentile(durations, PERCENTILES).tolist() if len(durations) else []
    return TraceStatistics(
        format=trace.format,
        source=trace.source,
        jobs=jobs.height,
        start=trace.start,
        span=span,
        gpu_shares=_gpu_shares(jobs["gpus"].to_numpy()),
        max_gpus=float(jobs.select(pl.col("gpus").max()).item()),
        run_time=dict(zip(PERCENTILES, percentiles, strict=False)),  # none without durations
        timed=timed.height,
        gpu_hours=total / HOUR if timed.height else None,
        multi_gpu_share=float(gpu_time[several].sum()) / total if total else None,
        multi_gpu_jobs=float((jobs["gpus"] > 1).to_numpy().mean()),
        arrival_cv=interarrival_cv(submit) if span else None,
        hourly_fano=fano_factor(counts) if has_counts else None,
        hourly_peak=int(counts.max()) if has_counts else None,
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
    shares["other"] = ~np.logical_or.reduce(list(shares.values()))
    return {name: float(mask.mean()) for name, mask in shares.items() if mask.any()}
