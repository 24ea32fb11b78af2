"""The fixed number of workers with which FIFO and RRH run a job."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import numpy as np

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.policies.baselines.parameters import WIDEST, FixedWorkers
from shadowprice.policies.baselines.room import Room

NO_PLACEMENT: Final = Refusal(
    Reason.NEVER_FITS,
    "round-robin placement finds no room for it even in the empty cluster",
    change="add a server, or ask for less per worker or parameter server",
)


def fixed_workers(setting: FixedWorkers, seed: int) -> Callable[[Job], int]:
    """Return the function that gives each job its number of workers.

    The draw depends on the seed and the job's name alone, so neither the order nor the presence of
    other jobs changes it.
    """
    if setting == "most":
        return lambda job: job.most_workers
    if setting == "fewest":
        return lambda job: int(job.worker_counts[0])
    if setting == "drawn":
        key = (seed % 2**64).to_bytes(8, "little")
        return lambda job: _drawn(job, key)
    return lambda job: _nearest(job, setting)


def _nearest(job: Job, wanted: int) -> int:
    # A contiguous range, which most jobs allow, needs no search.
    fewest, most = int(job.worker_counts[0]), job.most_workers
    if most - fewest + 1 == len(job.worker_counts) or wanted <= fewest or wanted >= most:
        return min(max(wanted, fewest), most)
    return int(job.worker_counts[int(np.abs(job.worker_counts - wanted).argmin())])


def _drawn(job: Job, key: bytes) -> int:
    counts = job.worker_counts
    allowed = len(counts)
    if int(counts[-1]) > WIDEST:
        allowed = max(1, int(np.searchsorted(counts, WIDEST, side="right")))
    digest = blake2b(job.name.encode(), digest_size=8, key=key).digest()
    return int(counts[int.from_bytes(digest, "little") % allowed])


class EmptyCluster:
    """What round-robin placement can carry at all, asked once a shape of job.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._room = Room(cluster)
        self._known: dict[tuple[bytes, bytes, int, int], bool] = {}

    def workers(self, job: Job, wanted: int) -> int:
        """Return the largest allowed number up to ``wanted`` that an empty cluster can carry.

        Returns
        -------
        int
            0 where it can carry none.
        """
        if self._carries(job, wanted):
            return wanted
        fitting = (
            int(count)
            for count in job.worker_counts[::-1]
            if count < wanted and self._carries(job, int(count))
        )
        return next(fitting, 0)

    def _carries(self, job: Job, workers: int) -> bool:
        servers = job.ps_needed(workers)
        demand = self._room.ps_demand(job)
        key = (job.worker.tobytes(), demand.tobytes(), workers, servers)
        known = self._known.get(key)
        if known is None:
            self._room.cursors[:] = 0
            known = self._room.place(job, workers) is not None
            self._room.release(job.name)
            self._known[key] = known
        return known
