"""Exact check whether numbers of workers and parameter servers fit on servers in one slot.

Integers throughout: a fast heuristic first, and a small feasibility program if it fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shadowprice.core.arrays import Flags, Integers
from shadowprice.core.job import Job
from shadowprice.policies.milp import LinearProgram
from shadowprice.policies.placements import fit_counts


@dataclass(frozen=True, slots=True)
class EqualItems:
    """Equal items to be packed: workers, or parameter servers, of one job."""

    owner: int  # position of the job
    is_worker: bool
    count: int
    demand: Integers  # of one item


@dataclass(frozen=True, slots=True)
class SlotServers:
    """The servers of one slot, with their free capacity."""

    free: Integers
    hosts_workers: Flags
    hosts_ps: Flags

    def hosts(self, items: EqualItems) -> Flags:
        """Return which servers may carry the items."""
        return self.hosts_workers if items.is_worker else self.hosts_ps

    def fit_counts(self, items: EqualItems) -> Integers:
        """Return how many of the items fit on each server alone."""
        return fit_counts(self.free, items.demand, self.hosts(items))


def build_items(owner: int, job: Job, workers: int) -> list[EqualItems]:
    """Return the items of a job with this number of workers."""
    items = [EqualItems(owner, True, workers, job.worker)]
    if job.ps is not None and job.ps_needed(workers):
        items.append(EqualItems(owner, False, job.ps_needed(workers), job.ps))
    return items


def pack(machines: SlotServers, items: Sequence[EqualItems]) -> list[Integers] | None:
    """Return the number of each kind of items on each server; None if they don't fit."""
    if not items:
        return []
    return _first_fit(machines, items) or _exact(machines, items)


def _first_fit(machines: SlotServers, items: Sequence[EqualItems]) -> list[Integers] | None:
    """Place the largest items first, each kind on the tightest or on the emptiest servers."""
    total = np.maximum(machines.free.sum(axis=0).astype(np.float64), 1.0)
    weight = [float((item.demand / total).max()) for item in items]
    order = sorted(range(len(items)), key=lambda index: -weight[index])
    for descending in (False, True):
        free = machines.free.copy()
        packed = [np.zeros(len(free), dtype=np.int64) for _ in items]
        for index in order:
            item, remaining = items[index], items[index].count
            room = fit_counts(free, item.demand, machines.hosts(item))
            for server in np.argsort(-room if descending else room, kind="stable").tolist():
                count = min(remaining, int(room[server]))
                if count:
                    packed[index][server] = count
                    free[server] -= count * item.demand
                    remaining -= count
            if remaining:
                break
        else:
            return packed
    return None


def _exact(machines: SlotServers, items: Sequence[EqualItems]) -> list[Integers] | None:
    """Solve a feasibility program and check its result in integers."""
    program = LinearProgram()
    columns = []
    for item in items:
        fits = machines.fit_counts(item)
        if int(fits.sum()) < item.count:
            return None
        row = [program.column(upper=min(int(limit), item.count)) for limit in fits]
        program.row(row, [1.0] * len(row), lower=item.count, upper=item.count)
        columns.append(row)
    servers, resources = machines.free.shape
    for server in range(servers):
        for r in range(resources):
            demands = [int(item.demand[r]) for item in items]
            capacity = int(machines.free[server, r])
            if (
                sum(amount * item.count for amount, item in zip(demands, items, strict=True))
                > capacity
            ):
                divisor = int(np.gcd.reduce([amount for amount in demands if amount]))
                program.row(
                    [row[server] for row, amount in zip(columns, demands, strict=True) if amount],
                    [amount // divisor for amount in demands if amount],
                    upper=capacity // divisor,
                )
    result = program.solve()
    if not result.feasible:
        return None
    packed = [np.rint(result.values[row]).astype(np.int64) for row in columns]
    used = sum(
        (counts[:, None] * item.demand for counts, item in zip(packed, items, strict=True)),
        start=np.zeros_like(machines.free),
    )
    return packed if bool((used <= machines.free).all()) else None
