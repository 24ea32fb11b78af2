"""How a job can stand: spread over servers, or all of it on one, where it may be faster."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job

Integers = NDArray[np.int64]

_NONE = np.zeros(0, np.int64)


class Ways:
    """What fits on one server of a cluster.

    Parameters
    ----------
    cluster : Cluster
        The servers, whether they are up or not: who plans looks at what room there is.
    """

    def __init__(self, cluster: Cluster) -> None:
        both = cluster.hosts_workers & cluster.hosts_ps
        self._either = np.unique(cluster.capacity[cluster.hosts_workers], axis=0)
        self._both = np.unique(cluster.capacity[both], axis=0)

    def whole(self, job: Job) -> Integers:
        """Return the choices with which all of a job fits on one server, if it is faster there.

        Returns
        -------
        ndarray of int64
            Positions in ``job.worker_counts``, ascending; none where co-location changes nothing.
        """
        if not job.two_rates:
            return _NONE
        demand = job.worker_counts[:, None] * job.worker
        servers = self._either
        if job.ps is not None:
            demand = demand + job.ps_counts[:, None] * job.ps
            servers = self._both
        short = (demand[:, None, :] > servers).any(axis=2)
        return np.flatnonzero(~np.all(short, axis=1))


def useful(gains: Integers) -> Integers:
    """Return the positions of gains that are larger than all before them, the first among them."""
    best = np.maximum.accumulate(gains)
    return np.flatnonzero(np.diff(best, prepend=-1) > 0)
