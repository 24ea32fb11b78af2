"""Inequalities for the numbers of workers of a slot, which follow from integral servers.

The items packed in a slot are a sum, over servers, of what each server carries. So for any weights
``w >= 0``

    w . totals <= sum over servers of (largest w . pattern that the server carries),

and these inequalities alone define the convex hull of the feasible totals. Given totals, the most
violated inequality is found by row generation over the patterns of each kind of server
(`kernels.reactive.server_patterns`). An inequality holds in every slot with the same servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.kernels.reactive.server_patterns import best_pattern
from shadowprice.policies.milp import LinearProgram
from shadowprice.policies.offline.packing import places
from shadowprice.policies.offline.problem import Problem

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

PRECISION: Final = 1000
"""Weights of an inequality are multiples of 1/PRECISION, so that it is exactly valid."""

MOST_NODES: Final = 200_000
LARGEST_COUNT: Final = 1 << 20
"""Count for a server that carries any number of an item; no job has this many workers."""


@dataclass(frozen=True, slots=True)
class CutItem:
    """Workers, or parameter servers, of one job."""

    owner: int
    is_worker: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """``weights . totals <= limit`` over the items of a pool."""

    weights: Integers
    limit: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """Equal servers: the capacity of one, its maximum of each item, and their number."""

    capacity: Integers
    most: Integers
    count: int


class CutPool:
    """Items that share servers, and the inequalities found for them.

    Parameters
    ----------
    problem : Problem
        Jobs and servers.
    slot : int
        A slot; the inequalities hold in all slots with the same servers.
    items : list of Item
        The items to place.
    """

    def __init__(self, problem: Problem, slot: int, items: list[CutItem]) -> None:
        self.items = items
        self.cuts: list[Cut] = []
        self.fresh: list[Cut] = []
        free = problem.free[slot]
        limited = (free < UNLIMITED).all(axis=0)
        demands = []
        for item in items:
            job = problem.requests[item.owner].job
            demand = job.worker if item.is_worker else job.ps
            assert demand is not None
            demands.append(demand)
        limits = np.array(
            [
                places(free, demand, problem.hosts_workers if owner.is_worker else problem.hosts_ps)
                for owner, demand in zip(items, demands, strict=True)
            ]
        ).T
        limits = np.minimum(limits, LARGEST_COUNT)
        self._demand = np.ascontiguousarray(np.array(demands)[:, limited])
        rows = np.concatenate((free[:, limited], limits), axis=1)
        kinds, counts = np.unique(rows, axis=0, return_counts=True)
        width = int(limited.sum())
        self._kinds = [
            _Kind(
                np.ascontiguousarray(np.maximum(row[:width], 0)),
                np.ascontiguousarray(row[width:]),
                int(count),
            )
            for row, count in zip(kinds, counts, strict=True)
            if row[width:].any()
        ]
        self._patterns: list[list[Integers]] = [[] for _ in self._kinds]

    def separate(self, totals: Floats, tolerance: float = 1e-4) -> Cut | None:
        """Return an inequality that totals violate; None if they are in the convex hull."""
        items = len(self.items)
        if not self._kinds or float(totals.max(initial=0.0)) <= tolerance:
            return None
        scale = max(1.0, float(totals.max()))
        best: Cut | None = None
        while True:
            weights, tops, violation = self._weigh(totals / scale, scale)
            if violation * scale <= tolerance:
                return best
            integers = np.rint(weights * PRECISION).astype(np.int64)
            limit, found_pattern = 0, False
            for index, kind in enumerate(self._kinds):
                pattern = np.zeros(items, dtype=np.int64)
                value, bound = best_pattern(
                    integers, self._demand, kind.capacity, kind.most, MOST_NODES, pattern
                )
                limit += kind.count * bound
                if value / PRECISION > tops[index] * scale + 1e-7 and not any(
                    np.array_equal(pattern, known) for known in self._patterns[index]
                ):
                    self._patterns[index].append(pattern)
                    found_pattern = True
            excess = float(integers @ totals) - limit
            if excess > tolerance * PRECISION:
                best = Cut(integers, limit)
            if not found_pattern:
                if best is not None:
                    self.cuts.append(best)
                    self.fresh.append(best)
                return best

    def _weigh(self, totals: Floats, scale: float) -> tuple[Floats, Floats, float]:
        """Return weights that separate totals from the known patterns, and the violation."""
        program = LinearProgram()
        weights = [program.column(cost=float(total), upper=1.0, integer=False) for total in totals]
        tops = [program.column(cost=-float(kind.count), integer=False) for kind in self._kinds]
        for top, patterns in zip(tops, self._patterns, strict=True):
            for pattern in patterns:
                used = np.flatnonzero(pattern).tolist()
                program.row(
                    [*(weights[item] for item in used), top],
                    [*(float(pattern[item]) / scale for item in used), -1.0],
                    upper=0,
                )
        result = program.solve(relaxed=True)
        return result.values[weights], result.values[tops], result.objective


def pools(problem: Problem, slot: int) -> list[CutPool]:
    """Return the pools of a slot: one per role, or a single one if a server may carry both."""
    workers = [
        CutItem(index, True)
        for index, request in enumerate(problem.requests)
        if request.completions
    ]
    servers = [
        CutItem(index, False)
        for index, request in enumerate(problem.requests)
        if request.completions and request.job.ps is not None
    ]
    groups = [workers, servers] if problem.separate else [workers + servers]
    return [CutPool(problem, slot, group) for group in groups if group]
