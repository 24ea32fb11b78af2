"""Inequalities for the numbers of workers of a slot, which follow from integral servers.

For any weights ``w >= 0``

    w . totals <= largest w . pattern that the servers carry,

and these inequalities alone define the convex hull of the feasible totals. Given totals, the most
violated inequality is found by row generation over patterns. An inequality holds in every slot with
the same servers. There are two sources of patterns:

- One role, or both if a server may carry both. What a slot carries is a sum over servers, so there
  are patterns of each kind of server (`kernels.reactive.server_patterns`).
- The workers of all jobs, with the parameter servers that they need: patterns of all servers
  together, found by a program. They are stronger, because parameter servers are integral for each
  job: 5 workers that need 1.2 parameter servers need 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.time_limit import Deadline
from shadowprice.kernels.reactive.server_patterns import best_pattern
from shadowprice.policies.milp import IncrementalProgram, LinearProgram, SolverResult
from shadowprice.policies.offline.packing import places
from shadowprice.policies.offline.problem import Problem
from shadowprice.policies.offline.rows import Terms, Totals, add_totals, reduced

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

PRECISION: Final = 1000
"""Weights of an inequality are multiples of 1/PRECISION, so that it is exactly valid."""

MOST_NODES: Final = 200_000
MAX_PROGRAM_NODES: Final = 20
"""Nodes of the program of all servers; its bound is valid even if it ends before its optimum."""

MAX_PROGRAM_PAIRS: Final = 1000
"""Pairs of a job and a server above which the program of all servers takes too long."""

TOLERANCE: Final = 1e-3
"""Error allowed to the bound of a program whose solutions have integral weights."""

MIN_VIOLATION_SHARE: Final = 0.5
"""A valid inequality is added if it has this share of the violation of the relaxed one."""

UNBOUNDED: Final = 1 << 50
"""Bound of a program that ended before it had one."""

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

    def terms(self, by_item: Iterable[Terms]) -> Terms:
        """Return the left side, given each item as a sum of columns."""
        return [
            (column, count * int(weight))
            for weight, terms in zip(self.weights, by_item, strict=True)
            for column, count in terms
            if weight
        ]


class _Source(Protocol):
    """Servers whose patterns are searched.

    ``count`` is the number of equal servers, or 1 if a pattern is one of all servers.
    """

    @property
    def count(self) -> int: ...

    def best(self, weights: Integers) -> tuple[Integers, int, int]:
        """Return a pattern, its weight, and an upper bound on the weight of every pattern."""
        ...


@dataclass(frozen=True, slots=True)
class _EqualServers:
    """Equal servers: the demands of items, the capacity of one, its maximum of each item."""

    demand: Integers
    capacity: Integers
    most: Integers
    count: int

    def best(self, weights: Integers) -> tuple[Integers, int, int]:
        pattern = np.zeros(len(weights), dtype=np.int64)
        value, bound = best_pattern(
            weights, self.demand, self.capacity, self.most, MOST_NODES, pattern
        )
        return pattern, value, bound


class CutPool:
    """Items that share servers, and the inequalities found for them.

    ``covers_all_servers`` is set if its patterns are of all servers together.
    """

    def __init__(
        self,
        items: list[CutItem],
        sources: Sequence[_Source],
        *,
        covers_all_servers: bool = False,
    ) -> None:
        self.items = items
        self.covers_all_servers = covers_all_servers
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


class _AllServers:
    """All servers of a slot, which carry workers and the parameter servers that they need.

    A program of totals, to which inequalities of the roles are added until its totals lie in the
    hulls of the roles. A pattern that can't be packed all the same only weakens an inequality.
    """

    count = 1

    def __init__(
        self,
        problem: Problem,
        slot: int,
        items: list[CutItem],
        roles: list[CutPool],
        deadline: Deadline,
    ) -> None:
        self._problem = problem
        self._slot = slot
        self._items = items
        self._roles = roles
        self._deadline = deadline
        self._added = [0] * len(roles)
        program, self._totals = self._build()
        self._columns = [c for totals in self._totals for c, _ in totals.workers]
        self._relaxed = IncrementalProgram(program, deadline, relaxed=True)
        self._exact = IncrementalProgram(program, deadline, node_limit=MAX_PROGRAM_NODES)

    def best(self, weights: Integers) -> tuple[Integers, int, int]:
        costs = [
            float(weight * count)
            for weight, totals in zip(weights.tolist(), self._totals, strict=True)
            for _, count in totals.workers
        ]
        for program in (self._relaxed, self._exact):
            program.set_costs(self._columns, costs)
            while True:
                result = program.solve()
                if not result.feasible or not self._tighten(result.values):
                    break
        pattern = self._pattern(result)
        bound = UNBOUNDED if result.bound > UNBOUNDED else math.floor(result.bound + TOLERANCE)
        return pattern, int(weights @ pattern), bound

    def _build(self) -> tuple[LinearProgram, list[Totals]]:
        program = LinearProgram()
        found = []
        for item in self._items:
            request = self._problem.requests[item.owner]
            totals = add_totals(program, self._problem, self._slot, request)
            if totals is None:
                totals = Totals([], [], [], 0)
            columns = [column for column, _ in totals.workers]
            program.row(columns, [1.0] * len(columns), upper=totals.maximum)
            found.append(totals)
        return program, found

    def _tighten(self, values: Floats) -> bool:
        """Add inequalities of the roles that totals violate; return whether there are any."""
        by_owner = {
            item.owner: totals for item, totals in zip(self._items, self._totals, strict=True)
        }
        violated = False
        for index, role in enumerate(self._roles):
            sums = [
                by_owner[item.owner].workers if item.is_worker else by_owner[item.owner].ps
                for item in role.items
            ]
            items = np.array([sum(count * values[c] for c, count in terms) for terms in sums])
            role.separate(items)
            for cut in role.cuts[self._added[index] :]:
                violated |= float(cut.weights @ items) > cut.limit + 0.1
                terms = cut.terms(sums)
                for program in (self._relaxed, self._exact) if terms else ():
                    program.row(*reduced(terms, cut.limit))
            self._added[index] = len(role.cuts)
        return violated

    def _pattern(self, result: SolverResult) -> Integers:
        pattern = np.zeros(len(self._items), dtype=np.int64)
        if result.feasible:
            for index, totals in enumerate(self._totals):
                pattern[index] = sum(
                    count * round(float(result.values[column])) for column, count in totals.workers
                )
        return pattern


def pools(problem: Problem, slot: int, deadline: Deadline) -> list[CutPool]:
    """Return the pools of a slot: one per role or one for both, and one for all servers."""
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
    found = [CutPool(items, _equal_servers(problem, slot, items)) for items in groups if items]
    if ps and len(workers) * len(problem.free[slot]) <= MAX_PROGRAM_PAIRS:
        source = _AllServers(problem, slot, workers, found[:], deadline)
        found.append(CutPool(workers, [source], covers_all_servers=True))
    return found


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
            places(free, demand, problem.hosts_workers if item.is_worker else problem.hosts_ps)
            for item, demand in zip(items, demands, strict=True)
        ]
    ).T
    limits = np.minimum(limits, LARGEST_COUNT)
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
