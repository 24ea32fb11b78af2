"""The best schedules found so far for problem (1), and their packing on servers.

Packing is exact and in integers: a fast heuristic first, and a feasibility program if it fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule
from shadowprice.policies.milp import LinearProgram
from shadowprice.policies.offline.problem import (
    EqualItems,
    JobRequest,
    OfflineSolution,
    Problem,
    SlotServers,
)
from shadowprice.policies.placements import fit_counts


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


class Incumbent:
    """The best schedules so far, built from totals by packing them slot by slot."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.utility = -np.inf
        self._schedules: tuple[Schedule | None, ...] = ()

    def offer(self, workers: Integers) -> set[int]:
        """Try totals; return the slots in which they can't be packed.

        Then jobs are placed by utility per work, each as planned or else as early as possible.
        """
        problem = self._problem
        entries: dict[int, list[tuple[int, int, int, int]]] = {}
        unpacked = set()
        for slot in range(problem.slots):
            running = [int(index) for index in np.flatnonzero(workers[:, slot])]
            items = [
                item
                for index in running
                for item in build_items(
                    index, problem.requests[index].job, int(workers[index, slot])
                )
            ]
            packed = pack(problem.machines(slot), items)
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
                fitted = _fit_in(problem, free, request, index, workers[index] if follow else None)
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
        """Return the best schedules with their bound."""
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
    problem: Problem, free: Integers, request: JobRequest, owner: int, wanted: Integers | None
) -> list[tuple[int, list[EqualItems], list[Integers]]] | None:
    """Fit one job into free capacity: as planned, or as early and with as many workers as fit."""
    job, remaining = request.job, request.required
    fitted = []
    for slot in range(request.first, request.completions[-1][0] + 1):
        counts = job.worker_counts[::-1].tolist() if wanted is None else [int(wanted[slot])]
        available = SlotServers(free[slot], problem.hosts_workers, problem.hosts_ps)
        for count in counts:
            if not count or (wanted is None and job.gain(count) <= 0):
                continue
            items = build_items(owner, job, count)
            packed = pack(available, items)
            if packed is not None:
                fitted.append((slot, items, packed))
                remaining -= job.gain(count)
                break
        if remaining <= 0:
            return fitted
    return None


def _truncate_at_completion(request: JobRequest, schedule: Schedule) -> tuple[float, Schedule]:
    """Cut a schedule when the work is done; return utility and schedule, 0 and empty if not."""
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
