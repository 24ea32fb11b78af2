"""What is free on every server, kept by a policy from its own decisions.

A policy that asked the ledger on every event would pay for copies of arrays over all servers; one
that knows what it placed and what was released needs none. The engine checks every placement
against the ledger all the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement
from shadowprice.kernels.round_robin import place


class Room:
    """Free amounts on every server, and where jobs stand.

    Parameters
    ----------
    cluster : Cluster
        The servers, all up and empty.

    Attributes
    ----------
    free : ndarray of int64, shape (servers, resources)
        Room on each server, lost ones included.
    hosts_workers, hosts_ps : ndarray of bool, shape (servers,)
        What each server may carry now; nothing where it is lost.
    cursors : ndarray of int64, shape (2,)
        Where the next worker and the next parameter server go first.
    standing : dict of str to (Job, Placement)
        Jobs and where they stand.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.free = cluster.capacity.copy()
        self.hosts_workers = cluster.hosts_workers.copy()
        self.hosts_ps = cluster.hosts_ps.copy()
        self.cursors = np.zeros(2, dtype=np.int64)
        self.standing: dict[str, tuple[Job, Placement]] = {}
        self._out = np.zeros((3, cluster.servers), dtype=np.int64)
        self._none = np.zeros(len(cluster.resources), dtype=np.int64)
        self._none.setflags(write=False)
        self._down: set[int] = set()

    @property
    def pristine(self) -> bool:
        """Whether every server is up and nothing stands anywhere."""
        return not self.standing and not self._down

    def place(self, job: Job, workers: int) -> Placement | None:
        """Place a job round robin with so many workers and the parameter servers they need.

        Returns
        -------
        Placement or None
            Where it stands now; None where there is no room, and nothing changes.
        """
        filled = place(
            self.free,
            job.worker,
            self.ps_demand(job),
            workers,
            job.ps_needed(workers),
            self.hosts_workers,
            self.hosts_ps,
            self.cursors,
            self._out,
        )
        if not filled:
            return None
        servers, counts, ps = self._out[:, :filled].tolist()
        placement = Placement(tuple(servers), tuple(counts), tuple(ps))
        self.standing[job.name] = (job, placement)
        return placement

    def stand(self, job: Job, placement: Placement) -> None:
        """Take the room of a placement that was found otherwise."""
        self.standing[job.name] = (job, placement)
        self._add(job, placement, -1)

    def release(self, name: str) -> bool:
        """Give back what a job holds; return whether it held anything."""
        held = self.standing.pop(name, None)
        if held is None:
            return False
        self._add(*held, 1)
        return True

    def lose(self, server: int) -> None:
        """Take a server out; what stands there is released job by job."""
        self._down.add(server)
        self.hosts_workers[server] = self.hosts_ps[server] = False

    def restore(self, server: int) -> None:
        """Bring a lost server back."""
        self._down.discard(server)
        self.hosts_workers[server] = self._cluster.hosts_workers[server]
        self.hosts_ps[server] = self._cluster.hosts_ps[server]

    def ps_demand(self, job: Job) -> NDArray[np.int64]:
        """Return the demand of a job's parameter server, zeros where it has none."""
        return self._none if job.ps is None else job.ps

    def _add(self, job: Job, placement: Placement, sign: int) -> None:
        for server, workers, ps in zip(
            placement.servers, placement.workers, placement.ps, strict=True
        ):
            row = self.free[server]
            if workers:
                row += sign * workers * job.worker
            if ps and job.ps is not None:
                row += sign * ps * job.ps
