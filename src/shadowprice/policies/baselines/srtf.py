"""Shortest remaining time first, which assumes that remaining run times are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.devices import gpus_of_worker
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, View
from shadowprice.policies.baselines.parameters import SrtfParameters
from shadowprice.policies.baselines.ranked import PreemptiveQueuePolicy


class SrtfPolicy(PreemptiveQueuePolicy[SrtfParameters]):
    """Run jobs in order of remaining slots, or GPU-time, at their fixed worker count."""

    def __init__(self, context: PolicyContext, parameters: SrtfParameters) -> None:
        super().__init__(context, parameters)
        self._by_service = parameters.by == "service"
        for name in ("gain", "internal", "together"):
            self._columns[name] = np.zeros(0, dtype=np.int64)
        self._columns["width"] = np.zeros(0, dtype=np.int64)

    def _fill_columns(self, job: Job, row: int) -> None:
        workers = int(self._columns["workers"][row])
        self._columns["gain"][row] = job.gain(workers)
        self._columns["internal"][row] = job.gain(workers, colocated=True)
        self._columns["together"][row] = self._must_colocate(job, workers)
        self._columns["width"][row] = workers * gpus_of_worker(job, self._cluster)

    def _order(self, view: View, rows: Integers) -> Integers:
        if not self._changed:
            # Running jobs only got shorter, and they already precede the waiting jobs.
            return self._ran_in
        states = view.open_jobs
        remaining = np.array([states[name].remaining for name in self._table.rows], dtype=np.int64)
        # A running job's rate follows from its placement; a waiting job counts as co-located only
        # if no other placement exists.
        together = self._columns["together"][rows] > 0
        for index, name in enumerate(self._table.rows):
            placement = states[name].placement
            if placement is not None:
                together[index] = placement.colocated
        internal, gain = self._columns["internal"][rows], self._columns["gain"][rows]
        slots = -(-remaining // np.where(together, internal, gain))
        key = slots * self._columns["width"][rows] if self._by_service else slots
        return rows[np.argsort(key, kind="stable")]

    def _revise_lengths(self, view: View, names: Sequence[str]) -> None:
        del view, names
        self._changed = True

    def _must_colocate(self, job: Job, workers: int) -> bool:
        """Return whether exactly one server can carry processes of the job, so it is co-located."""
        if workers == 1 and not job.ps_needed(workers):
            return True
        cluster = self._cluster
        usable = cluster.hosts_workers & (cluster.capacity >= job.worker).all(axis=1)
        if job.ps is not None:
            usable |= cluster.hosts_ps & (cluster.capacity >= job.ps).all(axis=1)
        return int(usable.sum()) == 1
