"""Finish-time fairness: completion times against those on an equal share of the cluster.

The finish-time fairness of a job (Themis, NSDI 2020, section 3) is rho = T_SH / T_ID: its
completion time, over the time that it would take alone on a share of 1/n of the cluster. n is the
mean number of jobs that were present during its life. Above 1 the job would have preferred its
share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_BLOCK: Final = 200_000
"""Worker counts processed in one step: temporary arrays take about 100 bytes for each."""

_ROUNDING: Final = 1e-9  # slots that a time may exceed a whole number without taking another slot


def finish_time_fairness(cluster: Cluster, jobs: Sequence[Job], table: pl.DataFrame) -> pl.Series:
    """Return rho of each finished job; null for the others.

    The cluster holds all servers that the run began with. ``table`` has the jobs' ``outcome``,
    ``arrival``, ``submitted``, ``ended`` and ``jct`` in the same order, as in `tables.job_table`.
    """
    rho = np.full(len(jobs), np.nan)
    finished = np.flatnonzero((table["outcome"] == "finished").to_numpy())
    if len(finished):
        present = mean_present(table)[finished]
        alone = slots_alone(cluster, [jobs[row] for row in finished.tolist()], present)
        jct = table["jct"].to_numpy()[finished]
        rho[finished] = np.where(np.isfinite(alone), jct / alone, np.nan)
    return pl.Series("finish_time_fairness", rho).fill_nan(None)


def mean_present(table: pl.DataFrame) -> Floats:
    """Return the mean number of jobs that were present during each job's life, itself included.

    A job is present from its submission to the end of its completion slot, or to the slot in which
    it was refused, dropped or cancelled; this time is its life. NaN for a job that is still present
    at the end of the run, or has no life because it was refused when it arrived.
    """
    arrived = (table["outcome"] != "not arrived").to_numpy()
    submitted = table["submitted"].to_numpy()
    ended = table["ended"].cast(pl.Float64).fill_null(np.inf).to_numpy()
    # A job that was refused when it arrived never competed.
    ended = np.where(ended <= table["arrival"].to_numpy(), submitted, ended)
    moments = np.concatenate([submitted[arrived], ended[arrived]])
    changes = np.repeat([1.0, -1.0], int(arrived.sum()))
    is_known = np.isfinite(moments)
    moments, changes = moments[is_known], changes[is_known]
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    present = np.cumsum(changes[order])
    # Jobs present, integrated from the first submission to each moment.
    areas = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(moments))])[: len(moments)]
    lives = ended - submitted
    means = np.full(len(table), np.nan)
    counted = arrived & np.isfinite(ended) & (lives > 0)
    first = np.searchsorted(moments, submitted[counted])
    last = np.searchsorted(moments, ended[counted])
    means[counted] = (areas[last] - areas[first]) / lives[counted]
    return means


def slots_alone(cluster: Cluster, jobs: Sequence[Job], present: Floats) -> Floats:
    """Return the completion time of each job alone on a share of 1/``present`` of the cluster.

    A job with w workers and p parameter servers needs the largest of these fractions:

    - w, over the number of its workers that fit on the empty cluster
    - p, over the number of its parameter servers that fit on the empty cluster
    - for each resource, the amount that it uses, over the capacity of all servers

    If this fraction exceeds the job's share, its run time grows by the factor fraction / share. The
    result is that of the fastest allowed number of workers. The rate is the internal one if
    everything fits on one server. A bag of tasks runs one copy of each task at once, and takes the
    longest mean duration. The time is from the submission to the end of a slot, like the completion
    time of a run. It is infinite if the cluster can't hold the job. ``present`` and the result have
    the shape (jobs,).
    """
    fractions = _Fractions(cluster)
    alone = np.empty(len(jobs))
    for block in _blocks(jobs):
        choices = _Choices(jobs[block])
        needed = fractions.needed(choices)
        slots = choices.slots(fractions.fit_one_server(choices), first=cluster.restart_first)
        slots *= np.maximum(needed * present[block][choices.owners], 1.0)
        slots[needed > 1.0 + _ROUNDING] = np.inf
        fastest = np.minimum.reduceat(slots, choices.starts)
        before = np.array([job.before_arrival for job in choices.jobs])
        alone[block] = before + np.ceil(fastest - _ROUNDING)
    return alone


def _blocks(jobs: Sequence[Job]) -> Iterator[slice]:
    """Split jobs into slices with a bounded number of worker counts."""
    start = size = 0
    for row, job in enumerate(jobs):
        if size and size + len(job.worker_counts) > _BLOCK:
            yield slice(start, row)
            start, size = row, 0
        size += len(job.worker_counts)
    if start < len(jobs):
        yield slice(start, len(jobs))


class _Choices:
    """Allowed worker counts of several jobs, concatenated into one array.

    ``owners`` holds the position of the job of each worker count, and ``starts`` the position of
    each job's first worker count.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        lengths = np.array([len(job.worker_counts) for job in jobs])
        self.owners = np.repeat(np.arange(len(jobs)), lengths)
        self.starts = np.cumsum(lengths) - lengths
        self.workers = np.concatenate([job.worker_counts for job in jobs])
        self.ps = np.concatenate([job.ps_counts for job in jobs])
        self._worker = np.stack([job.worker for job in jobs])
        none = np.zeros_like(jobs[0].worker)
        self._ps = np.stack([none if job.ps is None else job.ps for job in jobs])

    def usage(self, resource: int) -> Integers:
        """Return the amount of a resource that each worker count uses."""
        worker, ps = self._worker[:, resource], self._ps[:, resource]
        return np.asarray(self.workers * worker[self.owners] + self.ps * ps[self.owners])

    def slots(self, on_one_server: NDArray[np.bool_], *, first: bool) -> Floats:
        """Return the slots that each worker count takes without pauses, not rounded.

        ``first`` says whether the first start takes the restart time.
        """
        gains = np.concatenate([job.gains for job in self.jobs])
        internal = np.concatenate([job.internal_gains for job in self.jobs])
        rate = np.where(on_one_server, internal, gains).astype(np.float64)
        required = np.array([job.required for job in self.jobs], dtype=np.float64)
        slots = np.full(len(rate), np.inf)
        np.divide(required[self.owners], rate, out=slots, where=rate > 0)
        for start, job in zip(self.starts, self.jobs, strict=True):
            if job.bag is not None:  # its only choice
                longest = max(group.distribution.mean for group in job.bag.groups)
                slots[start] = max(1.0, longest / job.bag.slot_seconds)
        if first:
            slots += np.array([float(job.restart) for job in self.jobs])[self.owners]
        return slots


class _Fractions:
    """Fractions of a cluster that jobs need; equal demands are computed once."""

    def __init__(self, cluster: Cluster) -> None:
        _, first, sizes = np.unique(cluster.kinds, return_index=True, return_counts=True)
        self._capacity = cluster.capacity[first]
        self._hosts_workers = cluster.hosts_workers[first]
        self._hosts_ps = cluster.hosts_ps[first]
        self._sizes = sizes.astype(np.float64)
        is_limited = (self._capacity < UNLIMITED).all(axis=0)
        self._totals = np.where(is_limited, self._sizes @ self._capacity, np.inf)
        self._unit_counts: dict[tuple[bytes, bytes], tuple[float, float]] = {}

    def needed(self, choices: _Choices) -> Floats:
        """Return the fraction of the cluster that each worker count needs."""
        units = np.array([self._units(job) for job in choices.jobs])[choices.owners]
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = choices.workers / units[:, 0]
            # 0 / 0 is NaN, which fmax ignores: no PS are needed.
            np.fmax(needed, choices.ps / units[:, 1], out=needed)
            for resource, total in enumerate(self._totals):
                np.fmax(needed, choices.usage(resource) / total, out=needed)
        return np.asarray(needed, dtype=np.float64)

    def fit_one_server(self, choices: _Choices) -> NDArray[np.bool_]:
        """Return whether one server can hold each worker count; False for jobs with one rate."""
        has_two_rates = np.array([job.two_rates for job in choices.jobs])[choices.owners]
        fit = np.zeros(len(choices.owners), dtype=np.bool_)
        if not has_two_rates.any():
            return fit
        usage = [choices.usage(resource) for resource in range(len(self._totals))]
        for kind, capacity in enumerate(self._capacity):
            here = has_two_rates & self._hosts_workers[kind]
            here &= (choices.ps == 0) | self._hosts_ps[kind]
            for used, amount in zip(usage, capacity, strict=True):
                here &= used <= amount
            fit |= here
        return fit

    def _units(self, job: Job) -> tuple[float, float]:
        """Return how many workers of the job fit on the empty cluster, and how many of its PS."""
        key = job.worker.tobytes(), b"" if job.ps is None else job.ps.tobytes()
        if key not in self._unit_counts:
            self._unit_counts[key] = (
                self._count(job.worker, self._hosts_workers),
                0.0 if job.ps is None else self._count(job.ps, self._hosts_ps),
            )
        return self._unit_counts[key]

    def _count(self, demand: Integers, hosts: NDArray[np.bool_]) -> float:
        is_used = demand > 0
        if not is_used.any():
            return np.inf
        units = (self._capacity[:, is_used] // demand[is_used]).min(axis=1)
        return float(units[hosts] @ self._sizes[hosts])
