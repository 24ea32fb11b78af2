"""Jobs of a certificate as parallel arrays, so that one kernel call prices all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.job import Job
from shadowprice.kernels.horizon.batch import JobRows, JobSchedules, price_jobs


@dataclass(frozen=True, slots=True)
class BatchPrices:
    """Payoffs of jobs at prices, and what their schedules use."""

    total: float  # sum of the payoffs of the priced jobs
    payoffs: Floats  # upper bound on the payoff of each job, 0 for jobs that weren't priced
    utilities: Floats  # utility of each job's schedule
    workers: Integers  # workers of all schedules, by kind and slot
    servers: Integers  # parameter servers of all schedules, by kind and slot


class JobTable:
    """Windows, choices and utilities of jobs, one row each.

    Jobs with equal demands are of one kind, which has one price per worker and slot. ``firsts``
    and ``spans`` are the windows, ``choices`` worker counts and progress per slot.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        firsts: Integers,
        spans: Integers,
        tails: Floats,
        choices: Sequence[tuple[Integers, Integers]],
    ) -> None:
        self._firsts, self._spans, self._tails = firsts, spans, tails
        self._required = np.array([job.required for job in jobs], np.int64)
        rows: dict[bytes, int] = {}
        self.representatives: list[int] = []
        """One job of each kind."""
        self._kinds = np.zeros(len(jobs), np.int64)
        for index, job in enumerate(jobs):
            key = job.worker.tobytes() + (b"" if job.ps is None else job.ps.tobytes())
            if key not in rows:
                rows[key] = len(rows)
                self.representatives.append(index)
            self._kinds[index] = rows[key]
        self._choice_starts = _offsets([len(counts) for counts, _ in choices])
        self._workers = _concatenate([counts for counts, _ in choices])
        self._gains = _concatenate([gains for _, gains in choices])
        self._servers = _concatenate(
            [
                0 * counts
                if job.ps is None
                else job.ps_counts[np.searchsorted(job.worker_counts, counts)]
                for job, (counts, _) in zip(jobs, choices, strict=True)
            ]
        )
        self._worth_starts = _offsets(spans.tolist())
        self._worth = np.concatenate(
            [
                np.zeros(0),
                *(
                    job.utility.values(np.arange(span))
                    for job, span in zip(jobs, spans.tolist(), strict=True)
                ),
            ]
        )
        self._largest = np.array(
            [worth.max(initial=0.0) for worth in map(self.utilities, range(len(jobs)))]
        )

    def utilities(self, job: int) -> Floats:
        """Return the utility of completing in each slot of a job's window."""
        return self._worth[self._worth_starts[job] : self._worth_starts[job + 1]]

    def largest_utilities(self, members: Integers) -> float:
        """Return the sum of the largest utilities of some jobs."""
        return float(self._largest[members].sum())

    def price(self, members: Integers, worker: Floats, server: Floats, gap: float) -> BatchPrices:
        """Price some of the jobs at prices of a worker and of a parameter server.

        Prices have shape (kinds, slots). Schedules are within the relative ``gap`` of the best;
        payoffs are upper bounds in any case.
        """
        rows = JobRows(
            self._firsts, self._spans, self._required, self._kinds, self._choice_starts,
            self._workers, self._servers, self._gains, self._worth_starts, self._worth, self._tails,
        )  # fmt: skip
        result = JobSchedules(
            np.zeros(len(self._kinds)),
            np.zeros(len(self._kinds)),
            np.zeros(worker.shape, np.int64),
            np.zeros(worker.shape, np.int64),
        )
        worker, server = np.ascontiguousarray(worker), np.ascontiguousarray(server)
        total = price_jobs(members, rows, worker, server, gap, result)
        return BatchPrices(total, *result)


def _offsets(lengths: Sequence[int]) -> Integers:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))))


def _concatenate(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
