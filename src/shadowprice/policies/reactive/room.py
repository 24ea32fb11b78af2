"""What is free on every server, kept by a policy from its own decisions.

A policy that asked the ledger on every event would pay for copies of arrays over all servers; one
that knows what it placed and what was released needs none. The engine checks every placement
against the ledger all the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Placement
from shadowprice.kernels.reactive.round_robin import place

NO_PLACEMENT: Final = Refusal(
    Reason.NEVER_FITS,
    "round-robin placement finds no room for it even in the empty cluster",
)


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

    def quote(self, job: Job, wanted: int, slot: int) -> Quote:
        """Return the quote of a policy that queues whatever an empty cluster can carry."""
        carried = self.workers(job, wanted)
        answer = Queue(job.name) if carried else Reject(job.name, NO_PLACEMENT)
        return Quote.of(answer, slot)

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
