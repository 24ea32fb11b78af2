"""Whether given numbers of workers and parameter servers stand on given servers in one slot.

Exact: integers throughout, a quick heuristic first, and a small feasibility program where that
fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.job import Job
from shadowprice.policies.milp import Program

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Items:
    """Equal items to be packed.

    Parameters
    ----------
    owner : int
        Position of the job.
    is_worker : bool
        Whether they are workers, or parameter servers.
    count : int
        How many.
    demand : ndarray of int64, shape (resources,)
        What one takes.
    """

    owner: int
    is_worker: bool
    count: int
    demand: Integers


@dataclass(frozen=True, slots=True)
class Machines:
    """The servers of one slot.

    Parameters
    ----------
    free : ndarray of int64, shape (servers, resources)
        Room on each.
    hosts_workers, hosts_ps : ndarray of bool, shape (servers,)
        What each may carry.
    """

    free: Integers
    hosts_workers: NDArray[np.bool_]
    hosts_ps: NDArray[np.bool_]

    def hosts(self, items: Items) -> NDArray[np.bool_]:
        """Return which servers may carry the items."""
        return self.hosts_workers if items.is_worker else self.hosts_ps

    def places(self, items: Items) -> Integers:
        """Return how many of the items each server could carry on its own."""
        return places(self.free, items.demand, self.hosts(items))


def places(free: Integers, demand: Integers, hosts: NDArray[np.bool_]) -> Integers:
    """Return how many items of a demand each server carries, shape (servers,)."""
    asked = demand > 0
    if not asked.any():
        return np.where(hosts, np.iinfo(np.int32).max, 0)
    fitting = (free[:, asked] // demand[asked]).min(axis=1)
    return np.where(hosts, np.maximum(fitting, 0), 0)


def items_of(owner: int, job: Job, workers: int) -> list[Items]:
    """Return what a job with so many workers puts on servers."""
    listed = [Items(owner, True, workers, job.worker)]
    if job.ps is not None and job.ps_needed(workers):
        listed.append(Items(owner, False, job.ps_needed(workers), job.ps))
    return listed


def pack(machines: Machines, items: Sequence[Items]) -> list[Integers] | None:
    """Pack all items.

    Returns
    -------
    list of ndarray of int64, shape (servers,), or None
        Of each kind of items, how many stand on each server; None where they do not fit.
    """
    if not items:
        return []
    return _first_fit(machines, items) or _exact(machines, items)


def _first_fit(machines: Machines, items: Sequence[Items]) -> list[Integers] | None:
    """Try the largest items first, each on the servers where the least would be left."""
    whole = np.maximum(machines.free.sum(axis=0).astype(np.float64), 1.0)
    weight = [float((one.demand / whole).max()) for one in items]
    order = sorted(range(len(items)), key=lambda at: -weight[at])
    for descending in (False, True):
        free = machines.free.copy()
        given = [np.zeros(len(free), dtype=np.int64) for _ in items]
        for at in order:
            one, left = items[at], items[at].count
            room = places(free, one.demand, machines.hosts(one))
            for server in np.argsort(-room if descending else room, kind="stable").tolist():
                take = min(left, int(room[server]))
                if take:
                    given[at][server] = take
                    free[server] -= take * one.demand
                    left -= take
            if left:
                break
        else:
            return given
    return None


def _exact(machines: Machines, items: Sequence[Items]) -> list[Integers] | None:
    """Solve a feasibility program; its answer is checked in integers."""
    program = Program()
    columns = []
    for one in items:
        most = machines.places(one)
        if int(most.sum()) < one.count:
            return None
        row = [program.column(upper=min(int(limit), one.count)) for limit in most]
        program.row(row, [1.0] * len(row), lower=one.count, upper=one.count)
        columns.append(row)
    servers, resources = machines.free.shape
    for server in range(servers):
        for r in range(resources):
            demands = [int(one.demand[r]) for one in items]
            capacity = int(machines.free[server, r])
            if sum(d * one.count for d, one in zip(demands, items, strict=True)) > capacity:
                divisor = int(np.gcd.reduce([d for d in demands if d]))
                program.row(
                    [row[server] for row, d in zip(columns, demands, strict=True) if d],
                    [d // divisor for d in demands if d],
                    upper=capacity // divisor,
                )
    answer = program.solve()
    if not answer.feasible:
        return None
    given = [np.rint(answer.values[row]).astype(np.int64) for row in columns]
    used = sum(
        (counts[:, None] * one.demand for counts, one in zip(given, items, strict=True)),
        start=np.zeros_like(machines.free),
    )
    return given if bool((used <= machines.free).all()) else None
