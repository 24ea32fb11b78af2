"""The best schedules found so far for problem (1), and their packing on servers.

Packing is exact: a fast heuristic is tried first, then a feasibility program.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.schedule import Schedule
from shadowprice.policies.milp import LinearProgram, weighted
from shadowprice.policies.offline.problem import EqualItems, JobRequest, OfflineSolution, Problem
from shadowprice.policies.placements import distribute


def pack(free: Integers, items: Sequence[EqualItems]) -> list[Integers] | None:
    """Return the number of each item on each server, None if they don't fit together."""
    if not items:
        return []
    return _first_fit(free, items) or _exact(free, items)


def _first_fit(capacity: Integers, items: Sequence[EqualItems]) -> list[Integers] | None:
    """Place the largest items first, on servers with the least room, then with the most."""
    total = np.maximum(capacity.sum(axis=0).astype(np.float64), 1.0)
    weight = [float((item.demand / total).max()) for item in items]
    order = sorted(range(len(items)), key=lambda index: -weight[index])
    for descending in (False, True):
        free = capacity.copy()
        packed = [np.zeros(len(free), dtype=np.int64) for _ in items]
        for index in order:
            item = items[index]
            room = item.fit_counts(free)
            servers = np.argsort(-room if descending else room, kind="stable")
            counts = distribute(room, servers, item.count)
            if counts is None:
                break
            packed[index] = counts
            free -= counts[:, None] * item.demand
        else:
            return packed
    return None


def _exact(free: Integers, items: Sequence[EqualItems]) -> list[Integers] | None:
    """Solve a feasibility program, and check its result without rounding errors."""
    program = LinearProgram()
    columns = []
    for item in items:
        fits = item.fit_counts(free)
        if int(fits.sum()) < item.count:
            return None
        row = [program.column(upper=min(int(limit), item.count)) for limit in fits]
        program.row(weighted(row), lower=item.count, upper=item.count)
        columns.append(row)
    demands = np.array([item.demand for item in items])
    needed = np.array([item.count for item in items]) @ demands
    for server, r in np.argwhere(needed > free).tolist():
        terms = [
            (row[server], int(amount))
            for row, amount in zip(columns, demands[:, r], strict=True)
            if amount
        ]
        program.limit(terms, int(free[server, r]))
    result = program.solve()
    if not result.feasible:
        return None
    packed = [np.rint(result.values[row]).astype(np.int64) for row in columns]
    used = sum(
        (counts[:, None] * item.demand for counts, item in zip(packed, items, strict=True)),
        start=np.zeros_like(free),
    )
    return packed if bool((used <= free).all()) else None


class Incumbent:
    """The best schedules so far, built from totals by packing them slot by slot."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.utility = -np.inf
        self._schedules: tuple[Schedule | None, ...] = ()

    def offer(self, workers: Integers) -> set[int]:
        """Try workers of shape (jobs, slots); return the slots in which they can't be packed.

        If there are such slots, jobs are placed one by one, by utility per work. Each is placed as
        planned, or else as early as possible.
        """
        problem = self._problem
        entries: dict[int, list[tuple[int, int, int, int]]] = {}
        unpacked = set()
        for slot in range(problem.slots):
            running = [int(index) for index in np.flatnonzero(workers[:, slot])]
            items = [
                item
                for index in running
                for item in problem.items(index, int(workers[index, slot]))
            ]
            packed = pack(problem.free[slot], items)
            if packed is None:
                unpacked.add(slot)
            else:
                _add_entries(entries, problem.start + slot, items, packed)
        if not unpacked:
            self._keep(entries)
        else:
            self._keep(self._repair(workers))
        return unpacked

    def place_greedily(self) -> None:
        """Place the jobs by utility per work, each as early as possible."""
        shape = (len(self._problem.requests), self._problem.slots)
        self._keep(self._repair(np.zeros(shape, dtype=np.int64)))

    def _repair(self, workers: Integers) -> dict[int, list[tuple[int, int, int, int]]]:
        problem = self._problem
        free = problem.free.copy()
        entries: dict[int, list[tuple[int, int, int, int]]] = {}
        density = [
            request.completions[0][1] / request.required if request.completions else 0.0
            for request in problem.requests
        ]
        planned = workers.sum(axis=1) > 0
        order = sorted(
            range(len(density)), key=lambda index: (not planned[index], -density[index], index)
        )
        for index in order:
            request = problem.requests[index]
            if not request.completions:
                continue
            for follow in (True, False):
                fitted = _fit_in(problem, free, index, workers[index] if follow else None)
                if fitted is not None:
                    for slot, items, packed in fitted:
                        _add_entries(entries, problem.start + slot, items, packed)
                        for item, counts in zip(items, packed, strict=True):
                            free[slot] -= counts[:, None] * item.demand
                    break
        return entries

    def _keep(self, entries: dict[int, list[tuple[int, int, int, int]]]) -> None:
        schedules: list[Schedule | None] = []
        total = 0.0
        for index, request in enumerate(self._problem.requests):
            schedule = Schedule.of(entries.get(index, ()))
            utility, schedule = _truncate_at_completion(request, schedule)
            schedules.append(schedule if len(schedule) else None)
            total += utility
        if total > self.utility:
            self.utility, self._schedules = total, tuple(schedules)

    def solution(self, bound: float, optimal: bool, nodes: int) -> OfflineSolution:
        """Return the best schedules, with a bound on the optimum."""
        if not self._schedules:
            self._schedules, self.utility = (None,) * len(self._problem.requests), 0.0
        bound = max(bound, self.utility)
        return OfflineSolution(self._schedules, self.utility, bound, optimal, nodes)


def _add_entries(
    entries: dict[int, list[tuple[int, int, int, int]]],
    slot: int,
    items: list[EqualItems],
    given: list[Integers],
) -> None:
    for item, counts in zip(items, given, strict=True):
        for server in np.flatnonzero(counts).tolist():
            count = int(counts[server])
            entry = (slot, server, count, 0) if item.is_worker else (slot, server, 0, count)
            entries.setdefault(item.owner, []).append(entry)


def _fit_in(
    problem: Problem, free: Integers, owner: int, wanted: Integers | None
) -> list[tuple[int, list[EqualItems], list[Integers]]] | None:
    """Fit one job into free capacity, None if it doesn't fit.

    It gets the ``wanted`` workers of each slot; None: as many as fit, as early as possible.
    """
    request = problem.requests[owner]
    job, remaining = request.job, request.required
    fitted = []
    for slot in range(request.first, request.completions[-1][0] + 1):
        counts = job.worker_counts[::-1].tolist() if wanted is None else [int(wanted[slot])]
        for count in counts:
            if not count or (wanted is None and job.gain(count) <= 0):
                continue
            items = problem.items(owner, count)
            packed = pack(free[slot], items)
            if packed is not None:
                fitted.append((slot, items, packed))
                remaining -= job.gain(count)
                break
        if remaining <= 0:
            return fitted
    return None


def _truncate_at_completion(request: JobRequest, schedule: Schedule) -> tuple[float, Schedule]:
    """Cut a schedule at completion; return its utility and itself, or 0 and an empty one."""
    progress = 0
    workers, _, _ = schedule.totals()
    for slot, count in zip(schedule.active_slots.tolist(), workers.tolist(), strict=True):
        progress += request.job.gain(count)
        if progress >= request.required:
            length = int(np.searchsorted(schedule.slots, slot, side="right"))
            kept = Schedule(
                schedule.slots[:length],
                schedule.servers[:length],
                schedule.workers[:length],
                schedule.ps[:length],
            )
            utility = float(request.job.utility.values(np.array([slot - request.job.arrival]))[0])
            return utility, kept
    return 0.0, Schedule.of(())
