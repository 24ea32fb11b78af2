"""What one job could earn alone: a value that no offline optimum is below.

Whatever else arrives, an offline schedule may run one job as soon as it arrives, at its greatest
speed, on an empty cluster. The best that any job can earn so bounds the optimum from below, and
that is what `lower=guaranteed` builds on (`design/0019-settings-of-the-papers.md`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.job import Job

Integers = NDArray[np.int64]

_MOST: Final = 2**31
"""Places of a server that count as any number of them."""


class Alone:
    """The best that a job can earn on an otherwise empty cluster.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    workers, servers : ndarray of bool, shape (servers,)
        Which of them carry workers and which parameter servers. Disjoint for OASiS; for PD-ORS a
        server may do both.
    colocated : bool
        Whether a job may run at its internal rate, with all it needs on one server that does both.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: NDArray[np.bool_],
        servers: NDArray[np.bool_],
        *,
        colocated: bool = True,
    ) -> None:
        self._colocated = colocated
        self._both = cluster.capacity[workers & servers]
        self._workers = cluster.capacity[workers & ~servers]
        self._servers = cluster.capacity[servers & ~workers]
        self._places: dict[tuple[bytes, bytes], tuple[int, int, int]] = {}

    def ln_utility(self, job: Job, window: int) -> float:
        """Return the logarithm of what a job earns if it runs alone from its arrival on.

        Parameters
        ----------
        job : Job
            The job.
        window : int
            Slots from its arrival in which it may run.

        Returns
        -------
        float
            ``-inf`` where the cluster cannot complete it, or where it is a bag of tasks: with how
            many copies a bag meets its deadline is not asked here.
        """
        slots = self.slots(job)
        if job.bag is not None or slots is None or slots > window:
            return -np.inf
        return float(job.utility.log_values(np.array([slots - 1]))[0])

    def slots(self, job: Job) -> int | None:
        """Return the slots that a job takes alone, None where the cluster cannot run it."""
        gain = self.gain(job)
        return -(-job.required // gain) if gain > 0 else None

    def gain(self, job: Job) -> int:
        """Return the most that a job gains in a slot alone, 0 where the cluster cannot run it.

        Where servers carry both kinds, a worker is counted with a parameter server of its own,
        more than (6) asks for: the true number may be less.
        """
        workers, servers, largest = self._room(job)
        fits = job.worker_counts <= workers
        if job.ps is not None:
            fits &= job.ps_counts <= servers
        gain = int(job.gains[fits].max(initial=0))
        if self._colocated:
            together = job.worker_counts <= largest
            gain = max(gain, int(job.internal_gains[together].max(initial=0)))
        return gain

    def _room(self, job: Job) -> tuple[int, int, int]:
        """Return how many workers and parameter servers stand, and workers on one server."""
        key = job.worker.tobytes(), b"" if job.ps is None else job.ps.tobytes()
        if key not in self._places:
            together = job.worker if job.ps is None else job.worker + job.ps
            both = _places(self._both, together)
            pairs, largest = int(both.sum()), int(both.max(initial=0))
            workers = pairs + int(_places(self._workers, job.worker).sum())
            servers = pairs
            if job.ps is not None:
                servers += int(_places(self._servers, job.ps).sum())
            self._places[key] = workers, servers, largest
        return self._places[key]


def _places(capacity: Amounts, demand: Amounts) -> Integers:
    """Return how many items of a demand each empty server holds."""
    asked = demand > 0
    if not asked.any():
        return np.full(len(capacity), _MOST, dtype=np.int64)
    held = (capacity[:, asked] // demand[asked]).min(axis=1, initial=_MOST)
    return np.asarray(held, dtype=np.int64)
