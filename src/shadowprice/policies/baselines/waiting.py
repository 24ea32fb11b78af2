"""WaitingJob jobs as rows of one array, for a queue of thousands that is ordered in every slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shadowprice.core.job import Job


@dataclass(slots=True)
class WaitingJob:
    """A job that waits for its start.

    Parameters
    ----------
    job : Job
        The job.
    workers : int
        Its fixed number of workers.
    order : int
        Which one to arrive it was.
    share : float
        Its dominant share of the cluster.
    length : int
        Slots that it is expected to run.
    """

    job: Job
    workers: int
    order: int
    share: float
    length: int


class WaitingJobs:
    """WaitingJob jobs in order of arrival.

    Parameters
    ----------
    resources : int
        How many resources there are.

    Attributes
    ----------
    rows : structured ndarray, shape (jobs,)
        What decides who starts: ``order``, ``arrival``, ``share``, ``stated`` (its priority),
        ``length``; ``workers`` and ``servers`` needed, and the demands of one, ``worker`` and
        ``ps``, each of shape (resources,).
    """

    def __init__(self, resources: int) -> None:
        whole = ("order", "arrival", "length", "workers", "servers")
        self._fields: list[Any] = [
            *((name, np.int64) for name in whole),
            *((name, np.float64) for name in ("share", "stated")),
            *((name, np.int64, (resources,)) for name in ("worker", "ps")),
        ]
        self.rows = np.zeros(0, dtype=self._fields)
        self._entries: dict[int, WaitingJob] = {}
        self._orders: dict[str, int] = {}

    def entry(self, order: int) -> WaitingJob:
        """Return the job that arrived as this one."""
        return self._entries[order]

    def join(self, entries: Sequence[WaitingJob]) -> None:
        """Let jobs wait, each where it was in the order of arrival."""
        if not entries:
            return
        more = np.zeros(len(entries), dtype=self._fields)
        for row, entry in zip(more, sorted(entries, key=lambda one: one.order), strict=True):
            job = entry.job
            row["order"], row["arrival"], row["length"] = entry.order, job.arrival, entry.length
            row["workers"], row["servers"] = entry.workers, job.ps_needed(entry.workers)
            row["share"], row["stated"] = entry.share, job.priority
            row["worker"], row["ps"] = job.worker, 0 if job.ps is None else job.ps
            self._entries[entry.order] = entry
            self._orders[job.name] = entry.order
        at = np.searchsorted(self.rows["order"], more["order"])
        self.rows = np.insert(self.rows, at, more)

    def leave(self, names: Iterable[str]) -> None:
        """Let jobs go; who does not wait is passed over."""
        orders = [self._orders.pop(name) for name in names if name in self._orders]
        if not orders:
            return
        for order in orders:
            del self._entries[order]
        self.rows = np.delete(self.rows, np.searchsorted(self.rows["order"], orders))
