"""Inequalities for the numbers of workers of a slot, which follow from integral servers.

For any weights ``w >= 0``

    w . totals <= largest w . pattern that the servers carry,

and these inequalities alone define the convex hull of the feasible totals. Given totals, the most
violated inequality is found by row generation over patterns. An inequality holds in every slot with
the same servers. A pool has the items of one role, or of both if a server may carry both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.time_limit import Deadline
from shadowprice.kernels.reactive.server_patterns import best_pattern
from shadowprice.policies.milp import IncrementalProgram, LinearProgram
from shadowprice.policies.offline.problem import Problem
from shadowprice.policies.offline.rows import Terms
from shadowprice.policies.placements import fit_counts

PRECISION: Final = 1000
"""Weights of an inequality are multiples of 1/PRECISION, so that it is exactly valid."""

MAX_NODES: Final = 200_000

MIN_VIOLATION_SHARE: Final = 0.5
"""A valid inequality is added if it has this share of the violation of the relaxed one."""

MAX_COUNT: Final = 1 << 20
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

    def terms(self, by_item: Iterable[Terms]) -> Terms:
        """Return the left side, given each item as a sum of columns."""
        return [
            (column, count * int(weight))
            for weight, terms in zip(self.weights, by_item, strict=True)
            for column, count in terms
            if weight
        ]


@dataclass(frozen=True, slots=True)
class _EqualServers:
    """Equal servers: the demands of items, the capacity of one, its maximum of each item."""

    demand: Integers
    capacity: Integers
    most: Integers
    count: int

    def best(self, weights: Integers) -> tuple[Integers, int, int]:
        """Return a pattern, its weight, and an upper bound on the weight of every pattern."""
        pattern = np.zeros(len(weights), dtype=np.int64)
        value, bound = best_pattern(
            weights, self.demand, self.capacity, self.most, MAX_NODES, pattern
        )
        return pattern, value, bound


class CutPool:
    """Items that share servers, and the inequalities found for them."""

    def __init__(self, items: list[CutItem], sources: Sequence[_EqualServers]) -> None:
        self.items = items
        self.cuts: list[Cut] = []
        self._sources = sources
        self._patterns: list[list[Integers]] = [[] for _ in sources]
        # The most violated inequality: w . totals - sum of count * top, with w . pattern <= top.
        program = LinearProgram()
        self._weights = [program.column(upper=1.0, integer=False) for _ in items]
        self._tops = [
            program.column(cost=-float(source.count), integer=False) for source in sources
        ]
        self._program = IncrementalProgram(program, Deadline.never(), relaxed=True)

    def separate(self, totals: Floats, tolerance: float = 1e-4) -> Cut | None:
        """Return an inequality that totals violate; None if they are in the convex hull."""
        if not self._sources or float(totals.max(initial=0.0)) <= tolerance:
            return None
        best: Cut | None = None
        self._program.set_costs(self._weights, totals.tolist())
        while True:
            result = self._program.solve()
            if result.objective <= tolerance:
                return best
            weights, tops = result.values[self._weights], result.values[self._tops]
            integers = np.rint(weights * PRECISION).astype(np.int64)
            limit, found_pattern = 0, False
            for index, source in enumerate(self._sources):
                pattern, value, bound = source.best(integers)
                limit += source.count * bound
                if value / PRECISION > tops[index] + 1e-7 and not any(
                    np.array_equal(pattern, known) for known in self._patterns[index]
                ):
                    self._add_pattern(index, pattern)
                    found_pattern = True
            excess = float(integers @ totals) - limit
            if excess > tolerance * PRECISION:
                best = Cut(integers, limit)
            if not found_pattern or excess > PRECISION * max(
                tolerance, MIN_VIOLATION_SHARE * result.objective
            ):
                if best is not None:
                    self.cuts.append(best)
                return best

    def _add_pattern(self, index: int, pattern: Integers) -> None:
        self._patterns[index].append(pattern)
        used = np.flatnonzero(pattern).tolist()
        columns = [*(self._weights[item] for item in used), self._tops[index]]
        self._program.row(columns, [*(float(pattern[item]) for item in used), -1.0], upper=0.0)


def pools(problem: Problem, slot: int) -> list[CutPool]:
    """Return the pools of a slot: one per role, or one for both."""
    workers = [
        CutItem(index, True)
        for index, request in enumerate(problem.requests)
        if request.completions
    ]
    ps = [
        CutItem(index, False)
        for index, request in enumerate(problem.requests)
        if request.completions and request.job.ps is not None
    ]
    groups = [workers, ps] if problem.separate else [workers + ps]
    return [CutPool(items, _equal_servers(problem, slot, items)) for items in groups if items]


def _equal_servers(problem: Problem, slot: int, items: list[CutItem]) -> list[_EqualServers]:
    """Return the servers that may carry any of the items, by capacity and role."""
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
            fit_counts(free, demand, problem.hosts_workers if item.is_worker else problem.hosts_ps)
            for item, demand in zip(items, demands, strict=True)
        ]
    ).T
    limits = np.minimum(limits, MAX_COUNT)
    demand = np.ascontiguousarray(np.array(demands)[:, limited])
    rows = np.concatenate((free[:, limited], limits), axis=1)
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    width = int(limited.sum())
    return [
        _EqualServers(
            demand,
            np.ascontiguousarray(np.maximum(row[:width], 0)),
            np.ascontiguousarray(row[width:]),
            int(count),
        )
        for row, count in zip(kinds, counts, strict=True)
        if row[width:].any()
    ]
