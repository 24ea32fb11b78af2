"""Co-location: with which worker counts all of a job fits on one server."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job

Integers = NDArray[np.int64]

_NONE = np.zeros(0, np.int64)


class Ways:
    """Computes the worker counts with which a job fits on one server of a cluster.

    Lost servers count too, because planning checks the free capacity.
    """

    def __init__(self, cluster: Cluster) -> None:
        both = cluster.hosts_workers & cluster.hosts_ps
        self._either = np.unique(cluster.capacity[cluster.hosts_workers], axis=0)
        self._both = np.unique(cluster.capacity[both], axis=0)

    def whole(self, job: Job) -> Integers:
        """Return the choices with which a job fits on one server, if it is faster there.

        Returns
        -------
        ndarray of int64
            Positions in ``job.worker_counts``, ascending; empty if co-location changes nothing.
        """
        if not job.two_rates:
            return _NONE
        demand = job.worker_counts[:, None] * job.worker
        servers = self._either
        if job.ps is not None:
            demand = demand + job.ps_counts[:, None] * job.ps
            servers = self._both
        too_large = (demand[:, None, :] > servers).any(axis=2)
        return np.flatnonzero(~np.all(too_large, axis=1))


def useful(gains: Integers) -> Integers:
    """Return the positions of gains that exceed all before them, the first included."""
    best = np.maximum.accumulate(gains)
    return np.flatnonzero(np.diff(best, prepend=-1) > 0)
