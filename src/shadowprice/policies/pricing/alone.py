"""Utility of one job on an otherwise empty cluster, which bounds the optimum from below.

An offline schedule can always run one job from its arrival on, at its maximum speed. So the largest
utility of one job alone is a lower bound of the offline optimum. ``lower=guaranteed`` derives the
price constant L from it (`design/0019-settings-of-the-papers.md`).
"""

from __future__ import annotations

import numpy as np

from shadowprice.core.arrays import Flags, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.policies.placements import fit_counts


class StandaloneValue:
    """Computes the maximum utility of a job on an otherwise empty cluster.

    ``workers`` flags the servers that host workers, ``servers`` those that host parameter servers.
    They are disjoint for OASiS; for PD-ORS a server may host both. If ``colocated``, a job may run
    on one server, at its internal rate.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: Flags,
        servers: Flags,
        *,
        colocated: bool = True,
    ) -> None:
        self._colocated = colocated
        self._both = cluster.capacity[workers & servers]
        self._workers = cluster.capacity[workers & ~servers]
        self._servers = cluster.capacity[servers & ~workers]
        self._fit_counts: dict[tuple[bytes, bytes], tuple[int, int, int]] = {}

    def ln_utility(self, job: Job, window: int) -> float:
        """Return ln of a job's utility if it runs alone from its arrival on.

        ``-inf`` if it can't complete within ``window`` slots. Also ``-inf`` for a bag of tasks,
        which only weakens the bound.
        """
        slots = self.slots(job)
        if job.bag is not None or slots is None or slots > window:
            return -np.inf
        return float(job.utility.log_values(np.array([slots - 1]))[0])

    def slots(self, job: Job) -> int | None:
        """Return how many slots a job takes alone, None if it doesn't fit on the cluster."""
        gain = self.gain(job)
        return -(-job.required // gain) if gain > 0 else None

    def gain(self, job: Job) -> int:
        """Return a lower bound of a job's maximum progress in a slot; 0 if it doesn't fit.

        On servers that host both roles, each worker is placed with a parameter server of its own.
        (6) may require fewer, so the true maximum can be larger.
        """
        return int(self._gains(job).max(initial=0))

    def plans(self, job: Job, window: int) -> tuple[Integers, Integers]:
        """Return the indices of worker counts that complete a job in a window, and the slots."""
        gains = self._gains(job)
        useful = np.flatnonzero(gains) if job.bag is None else np.empty(0, dtype=np.int64)
        slots = -(-job.required // gains[useful])
        return useful[slots <= window], slots[slots <= window]

    def _gains(self, job: Job) -> Integers:
        """Return each worker count's progress in a slot, 0 if the processes don't fit."""
        workers, servers, largest = self._room(job)
        fits = job.worker_counts <= workers
        if job.ps is not None:
            fits &= job.ps_counts <= servers
        gains = np.where(fits, job.gains, 0)
        if self._colocated:
            together = np.where(job.worker_counts <= largest, job.internal_gains, 0)
            gains = np.maximum(gains, together)
        return gains

    def _room(self, job: Job) -> tuple[int, int, int]:
        """Return how many workers, and PS, fit in total, and how many pairs fit on one server."""
        key = job.worker.tobytes(), b"" if job.ps is None else job.ps.tobytes()
        if key not in self._fit_counts:
            together = job.worker if job.ps is None else job.worker + job.ps
            both = fit_counts(self._both, together)
            pairs, largest = int(both.sum()), int(both.max(initial=0))
            workers = pairs + int(fit_counts(self._workers, job.worker).sum())
            servers = pairs
            if job.ps is not None:
                servers += int(fit_counts(self._servers, job.ps).sum())
            self._fit_counts[key] = workers, servers, largest
        return self._fit_counts[key]
