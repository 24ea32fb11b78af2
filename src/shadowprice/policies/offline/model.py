"""The integer program of problem (1): a job's totals in each slot, and inequalities for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.time_limit import Deadline
from shadowprice.kernels.reactive.server_patterns import best_pattern
from shadowprice.policies.milp import IncrementalProgram, LinearProgram, Terms, weighted
from shadowprice.policies.offline.problem import EqualItems, JobRequest, Problem
from shadowprice.policies.placements import fit_counts

PRECISION: Final = 1000
"""Weights, at most 1, are rounded to integer multiples of 1/PRECISION, so that limits are exact."""

MAX_NODES: Final = 200_000  # of the search for one best pattern

MIN_VIOLATION_SHARE: Final = 0.5
"""An inequality with rounded weights is used if it keeps this share of the violation."""

MAX_COUNT: Final = 1 << 20
"""Number for a server that carries any number of an item; no job has this many workers."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A valid inequality: ``weights . totals <= limit`` over the items of a pool."""

    weights: Integers
    limit: int

    def terms(self, by_item: Iterable[Terms]) -> Terms:
        """Return the left side; ``by_item`` has each item's total as a sum of columns."""
        return [
            (column, count * int(weight))
            for weight, terms in zip(self.weights, by_item, strict=True)
            for column, count in terms
            if weight
        ]


@dataclass(frozen=True, slots=True)
class _EqualServers:
    demand: Integers  # of each item, shape (items, limited resources)
    capacity: Integers  # of one server
    max_counts: Integers  # maximum number of each item on one server
    count: int  # number of servers

    def best(self, weights: Integers) -> tuple[Integers, int, int]:
        """Return a heavy pattern, its weight, and an upper bound of every pattern's weight."""
        pattern = np.zeros(len(weights), dtype=np.int64)
        value, bound = best_pattern(
            weights, self.demand, self.capacity, self.max_counts, MAX_NODES, pattern
        )
        return pattern, value, bound


class CutPool:
    """Items that share servers, and the inequalities found for them.

    A *pattern* is the number of each item on one server. For any weights ``w >= 0``,

        w . totals <= sum over servers of the largest w . pattern.

    These inequalities define the convex hull of the feasible totals. Given totals, the most
    violated inequality is found by row generation over patterns. An inequality holds in every slot
    with the same servers. A pool has the items of one role, or of both roles if a server may carry
    both.
    """

    def __init__(self, items: list[EqualItems], sources: Sequence[_EqualServers]) -> None:
        self.items = items
        self.cuts: list[Cut] = []
        self._sources = sources
        self._patterns: list[list[Integers]] = [[] for _ in sources]
        # Maximise w . totals - sum of count * top; top >= w . pattern for all known patterns.
        program = LinearProgram()
        self._weights = [program.column(upper=1.0, integer=False) for _ in items]
        self._tops = [
            program.column(cost=-float(source.count), integer=False) for source in sources
        ]
        self._program = IncrementalProgram(program, Deadline.never(), relaxed=True)

    def separate(self, totals: Floats, tolerance: float = 1e-4) -> Cut | None:
        """Return a new inequality that totals violate, None if they are in the convex hull."""
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
            limit, has_new_pattern = 0, False
            for index, source in enumerate(self._sources):
                pattern, value, bound = source.best(integers)
                limit += source.count * bound
                if value / PRECISION > tops[index] + 1e-7 and not any(
                    np.array_equal(pattern, known) for known in self._patterns[index]
                ):
                    self._add_pattern(index, pattern)
                    has_new_pattern = True
            excess = float(integers @ totals) - limit
            if excess > tolerance * PRECISION:
                best = Cut(integers, limit)
            if not has_new_pattern or excess > PRECISION * max(
                tolerance, MIN_VIOLATION_SHARE * result.objective
            ):
                if best is not None:
                    self.cuts.append(best)
                return best

    def _add_pattern(self, index: int, pattern: Integers) -> None:
        self._patterns[index].append(pattern)
        used = np.flatnonzero(pattern).tolist()
        terms = [(self._weights[item], float(pattern[item])) for item in used]
        self._program.row([*terms, (self._tops[index], -1.0)], upper=0.0)


def pools(problem: Problem, slot: int) -> list[CutPool]:
    """Return the pools of a slot: one for each role, or one if a server may carry both roles."""
    items = [
        item
        for index, request in enumerate(problem.requests)
        if request.completions
        for item in problem.items(index, 1, ps=1)
    ]
    workers, ps = ([item for item in items if item.is_worker is kind] for kind in (True, False))
    groups = [workers, ps] if problem.has_separate_roles else [workers + ps]
    return [CutPool(group, _equal_servers(problem.free[slot], group)) for group in groups if group]


def _equal_servers(free: Integers, items: list[EqualItems]) -> list[_EqualServers]:
    """Group the servers that may carry any item by capacity and role."""
    limited = (free < UNLIMITED).all(axis=0)
    limits = np.array([item.fit_counts(free) for item in items]).T
    limits = np.minimum(limits, MAX_COUNT)
    demand = np.ascontiguousarray(np.array([item.demand for item in items])[:, limited])
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


@dataclass(frozen=True, slots=True)
class Totals:
    """A job's workers, parameter servers and progress in one slot, as sums of columns."""

    workers: Terms
    ps: Terms
    gains: Terms  # progress
    maximum: int  # upper limit of the sum of the columns of `workers`


def add_totals(
    program: LinearProgram, problem: Problem, slot: int, request: JobRequest
) -> Totals | None:
    """Add columns for the totals of a job in a slot; return None if it can't run even alone."""
    job, free = request.job, problem.free[slot]
    workers = int(fit_counts(free, job.worker, problem.hosts_workers).sum())
    ps = 0 if job.ps is None else int(fit_counts(free, job.ps, problem.hosts_ps).sum())
    add = _add_number if request.linear else _add_choices
    return add(program, request, workers, ps)


def _add_number(
    program: LinearProgram, request: JobRequest, workers: int, ps: int
) -> Totals | None:
    """Add integers for workers and PS of a job whose progress is proportional to workers."""
    job = request.job
    maximum = min(job.max_workers, request.required, workers)
    if job.ps is not None:
        maximum = min(maximum, ps * job.ps_bandwidth // job.worker_bandwidth)
    if maximum <= 0:
        return None
    n = program.column(upper=maximum)
    if job.ps is None:
        return Totals([(n, 1)], [], [(n, 1)], maximum)
    # (6): z B >= n b; (7) follows, because b <= B. The rows are the hull of its integer points.
    z = program.column(upper=job.ps_needed(maximum))
    corners = _upper_hull(
        [
            (count, min(maximum, count * job.ps_bandwidth // job.worker_bandwidth))
            for count in range(job.ps_needed(maximum) + 1)
        ]
    )
    for (z0, n0), (z1, n1) in pairwise(corners):
        program.limit([(n, z1 - z0), (z, n0 - n1)], (z1 - z0) * n0 - (n1 - n0) * z0)
    if len(corners) <= job.ps_needed(maximum):  # an integer point of the hull breaks (6)
        program.row([(z, 1.0), (n, -job.worker_bandwidth / job.ps_bandwidth)], lower=0)
    return Totals([(n, 1)], [(z, 1)], [(n, 1)], maximum)


def _upper_hull(points: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the corners of the smallest concave function above points, which have ascending x."""
    corners: list[tuple[int, int]] = []
    for x, y in points:
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append((x, y))
    return corners


def _add_choices(
    program: LinearProgram, request: JobRequest, workers: int, ps: int
) -> Totals | None:
    """Add a binary variable for every allowed number of workers; at most one may be 1."""
    job = request.job
    totals = Totals([], [], [], 1)
    for count, needed, gain in zip(
        job.worker_counts.tolist(), job.ps_counts.tolist(), job.gains.tolist(), strict=True
    ):
        if count > workers or needed > ps:
            continue
        column = program.column(upper=1)
        totals.workers.append((column, count))
        totals.gains.append((column, gain))
        if needed:
            totals.ps.append((column, needed))
    return totals if totals.workers else None


def add_servers(
    program: LinearProgram, problem: Problem, slot: int, users: Iterable[tuple[int, Totals]]
) -> None:
    """Add columns and rows that place a slot's totals on its servers: (4) and (5)."""
    free = problem.free[slot]
    on_server: dict[tuple[int, int], Terms] = {}
    for index, totals in users:
        for item in problem.items(index, 1, ps=1):
            fits = item.fit_counts(free)
            hosting = [int(server) for server in np.flatnonzero(fits)]
            columns = [program.column(upper=int(fits[server])) for server in hosting]
            total = [
                (column, -count)
                for column, count in (totals.workers if item.is_worker else totals.ps)
            ]
            program.row([*weighted(columns), *total], lower=0, upper=0)
            for server, column in zip(hosting, columns, strict=True):
                for r in np.flatnonzero(item.demand).tolist():
                    on_server.setdefault((server, r), []).append((column, int(item.demand[r])))
    for (server, r), terms in on_server.items():
        if free[server, r] < UNLIMITED:
            program.limit(terms, int(free[server, r]))


MAX_COEFFICIENT_BITS: Final = 10
"""Maximum bits of the coefficients of progress rows, which are scaled down to it.

Progress counts in millionths of a mini-batch. With coefficients of 10^10 and 1, the solver has
reported bounded programs as unbounded.
"""


class SlotKnowledge:
    """What the search has learnt about slots: inequalities, and where they don't suffice."""

    def __init__(self, problem: Problem) -> None:
        self.by_server: set[int] = set()  # slots that are modelled server by server
        by_capacity: dict[bytes, list[CutPool]] = {}
        self.pools: list[list[CutPool]] = []  # by slot; slots with equal free capacity share them
        for slot in range(problem.slots):
            key = problem.free[slot].tobytes()
            if key not in by_capacity:
                by_capacity[key] = pools(problem, slot)
            self.pools.append(by_capacity[key])


class Model:
    """The program, with the slots of ``known.by_server`` modelled server by server.

    With ``must_complete``, every job that has completion slots must complete. Each such job then
    has a single completion slot.
    """

    def __init__(
        self, problem: Problem, known: SlotKnowledge, *, must_complete: bool = False
    ) -> None:
        self.program = LinearProgram()
        self.completed: dict[int, dict[int, int]] = {}  # by job, the column of each completion slot
        self.completion_rows: dict[int, int] = {}  # by job, the row of their sum, at most 1
        self._problem = problem
        self._totals: dict[tuple[int, int], Totals] = {}  # by job and slot
        by_slot: dict[int, list[tuple[int, Totals]]] = {}
        for index, request in enumerate(problem.requests):
            if request.completions:
                self._add_job(index, request, must_complete)
        for (index, slot), totals in self._totals.items():
            by_slot.setdefault(slot, []).append((index, totals))
        for slot, users in by_slot.items():
            self._limit_pools(slot, users)
            if slot in known.by_server:
                add_servers(self.program, problem, slot, users)
        if must_complete:
            self._order_equal_slots(by_slot)

    def workers(self, values: Floats) -> Integers:
        """Return the workers of each job in each slot, shape (jobs, slots)."""
        counts = np.zeros((len(self._problem.requests), self._problem.slots), dtype=np.int64)
        for (index, slot), totals in self._totals.items():
            counts[index, slot] = sum(
                count * round(float(values[column])) for column, count in totals.workers
            )
        return counts

    def items(self, pool: CutPool, slot: int, values: Floats) -> Floats:
        """Return the total of each item of a pool in a slot."""
        return np.array(
            [sum(count * values[c] for c, count in terms) for terms in self._by_item(pool, slot)]
        )

    def cut_terms(self, pool: CutPool, cut: Cut, slot: int) -> Terms:
        """Return the left side of an inequality in a slot."""
        return cut.terms(self._by_item(pool, slot))

    def add_cuts(self, known: SlotKnowledge) -> None:
        """Add all known inequalities, each in every slot of its pool."""
        for slot, slot_pools in enumerate(known.pools):
            for pool in slot_pools:
                for cut in pool.cuts:
                    self.program.limit(self.cut_terms(pool, cut, slot), cut.limit)

    def _by_item(self, pool: CutPool, slot: int) -> Iterator[Terms]:
        for item in pool.items:
            totals = self._totals.get((item.owner, slot))
            yield [] if totals is None else totals.workers if item.is_worker else totals.ps

    def _add_job(self, index: int, request: JobRequest, must_complete: bool) -> None:
        program = self.program
        completed = {
            slot: program.column(cost=utility, upper=1) for slot, utility in request.completions
        }
        self.completed[index] = completed
        self.completion_rows[index] = program.row(
            weighted(completed.values()), lower=float(must_complete), upper=1
        )
        gained: Terms = []
        progress: dict[int, int] = {}  # number of terms of ``gained`` up to each slot
        for slot in range(request.first, max(completed) + 1):
            totals = add_totals(program, self._problem, slot, request)
            if totals is not None:
                # Workers only run if the job completes in this slot or later.
                later = [column for completion, column in completed.items() if completion >= slot]
                columns = [column for column, _ in totals.workers]
                program.row([*weighted(columns), *weighted(later, -totals.maximum)], upper=0)
                self._totals[index, slot] = totals
                gained += totals.gains
            progress[slot] = len(gained)
        # The work is done by the completion slot, for every prefix of slots.
        required = request.required
        if not request.linear:
            # Divided by their common divisor, gains are small enough for the solver's tolerances.
            divisor = int(np.gcd.reduce([gain for _, gain in gained])) if gained else 1
            required = -(-required // divisor)
            gained = [(column, gain // divisor) for column, gain in gained]
        largest = max((required, *(gain for _, gain in gained)))
        scale = 2.0 ** min(0, MAX_COEFFICIENT_BITS - largest.bit_length())
        for completion in completed:
            before = [column for slot, column in completed.items() if slot <= completion]
            prefix = [(column, gain * scale) for column, gain in gained[: progress[completion]]]
            program.row([*prefix, *weighted(before, -required * scale)], lower=0)

    def _order_equal_slots(self, by_slot: dict[int, list[tuple[int, Totals]]]) -> None:
        """Remove symmetry: in equal neighbouring slots, one job's workers don't increase."""
        free = self._problem.free
        for slot, following in pairwise(sorted(by_slot)):
            users, later = dict(by_slot[slot]), dict(by_slot[following])
            if users.keys() == later.keys() and np.array_equal(free[slot], free[following]):
                job = max(users, key=lambda index: users[index].maximum)
                terms = [(column, -count) for column, count in users[job].workers]
                self.program.limit(terms + later[job].workers, 0)

    def _limit_pools(self, slot: int, users: list[tuple[int, Totals]]) -> None:
        """Limit a slot's total demand by the capacity of all servers that may carry it."""
        problem = self._problem
        members = [(problem.hosts_workers, True, False), (problem.hosts_ps, False, True)]
        if not problem.has_separate_roles:
            members.append((problem.hosts_workers | problem.hosts_ps, True, True))
        for hosts, with_workers, with_ps in members:
            free = problem.free[slot][hosts]
            for r in range(free.shape[1]):
                if bool(np.any(free[:, r] >= UNLIMITED)):
                    continue
                terms: Terms = []
                for index, totals in users:
                    job = problem.requests[index].job
                    if with_workers and job.worker[r]:
                        terms += [(column, n * int(job.worker[r])) for column, n in totals.workers]
                    if with_ps and job.ps is not None and job.ps[r]:
                        terms += [(column, n * int(job.ps[r])) for column, n in totals.ps]
                self.program.limit(terms, int(free[:, r].sum()))
