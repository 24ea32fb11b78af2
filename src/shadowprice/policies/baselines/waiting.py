"""Queued jobs as rows of one array, so that thousands can be sorted in every slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shadowprice.core.job import Job


@dataclass(slots=True)
class QueuedJob:
    """A queued job."""

    job: Job
    workers: int
    order: int  # position among all arrivals
    share: float  # dominant, of the cluster
    length: int  # expected run time in slots


class JobQueue:
    """Queued jobs in order of arrival."""

    def __init__(self, resources: int) -> None:
        integers = ("order", "arrival", "length", "workers", "servers")
        self._fields: list[Any] = [
            *((name, np.int64) for name in integers),
            *((name, np.float64) for name in ("share", "stated")),
            *((name, np.int64, (resources,)) for name in ("worker", "ps")),
        ]
        # The fields decide the order and the placement: `arrival` is a slot, `stated` the job's
        # priority, `servers` a number of PS; `worker` and `ps` are the demands of one process by
        # resource.
        self.rows = np.zeros(0, dtype=self._fields)
        self._entries: dict[int, QueuedJob] = {}
        self._orders: dict[str, int] = {}

    def entry(self, order: int) -> QueuedJob:
        """Return the job with this arrival number."""
        return self._entries[order]

    def insert(self, entries: Sequence[QueuedJob]) -> None:
        """Insert jobs at their positions in the order of arrival."""
        if not entries:
            return
        added = np.zeros(len(entries), dtype=self._fields)
        for row, entry in zip(
            added, sorted(entries, key=lambda waiting: waiting.order), strict=True
        ):
            job = entry.job
            row["order"], row["arrival"], row["length"] = entry.order, job.arrival, entry.length
            row["workers"], row["servers"] = entry.workers, job.ps_needed(entry.workers)
            row["share"], row["stated"] = entry.share, job.priority
            row["worker"], row["ps"] = job.worker, 0 if job.ps is None else job.ps
            self._entries[entry.order] = entry
            self._orders[job.name] = entry.order
        positions = np.searchsorted(self.rows["order"], added["order"])
        self.rows = np.insert(self.rows, positions, added)

    def remove(self, names: Iterable[str]) -> None:
        """Remove jobs; names that aren't queued are ignored."""
        orders = [self._orders.pop(name) for name in names if name in self._orders]
        if not orders:
            return
        for order in orders:
            del self._entries[order]
        self.rows = np.delete(self.rows, np.searchsorted(self.rows["order"], orders))
