"""The offline optimum of OASiS's problem (1), exactly.

The program decides totals: ``x[i, c] = 1`` where job i completes by slot c, and ``n[i, t]`` workers
of job i in slot t. In place of the completion constraint (8) stand two families of rows, for all
slots t and c:

    n[i, t] <= most workers * sum of x[i, c] over c >= t         (nothing runs after completion)
    sum of gains over slots up to c >= required * sum of x[i, c'] over c' <= c

the second for every prefix, which tightens the relaxation. A slot's servers are one pool at first:
for each resource the sum of demands may not exceed the sum of capacities. That servers are whole
machines is added by the inequalities of `offline.cuts`, at the relaxation's solution until none is
violated, then wherever the numbers chosen for a slot cannot be packed (checked exactly). They cut
out the convex hull of what can be packed; numbers inside it that cannot be packed all the same
make their slot be written out server by server. So this ends, and what it ends with is optimal.
Equal servers bring no symmetry with them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.schedule import Schedule
from shadowprice.policies.milp import INFINITY, Answer, Program
from shadowprice.policies.offline.cuts import CutPool, pools
from shadowprice.policies.offline.packing import Items, items_of, pack, places
from shadowprice.policies.offline.problem import Problem, Request, Solution

Integers = NDArray[np.int64]

ROOT_ROUNDS: Final = 30
"""Most rounds of inequalities at the relaxation, before branching begins."""

LARGEST_BITS: Final = 10
"""Rows of progress, which counts in millionths of a mini-batch, are scaled down to numbers of so
many bits: of 10^10 beside 1 the solver has called bounded programs unbounded."""


def solve(problem: Problem, *, time_limit: float = INFINITY, gap: float = 1e-6) -> Solution:
    """Solve problem (1).

    Parameters
    ----------
    problem : Problem
        Jobs and servers.
    time_limit : float
        Seconds after which the best schedules so far are returned, with their gap.
    gap : float
        Relative distance of utility and bound that counts as optimal.

    Returns
    -------
    Solution
        Schedules; ``optimal`` tells whether they are proved best.
    """
    began = time.perf_counter()
    best = _Incumbent(problem)
    if not any(request.completions for request in problem.requests):
        return best.solution(0.0, True, 0, began)
    walls = _Walls(problem)
    bound = float(sum(one.completions[0][1] for one in problem.requests if one.completions))
    for _ in range(ROOT_ROUNDS):
        model = _Model(problem, walls)
        left = time_limit - (time.perf_counter() - began)
        answer = model.program.solve(relaxed=True, time_limit=left)
        if not answer.optimal:
            break  # time is up, and what an unfinished relaxation is worth bounds nothing
        bound = min(bound, answer.bound)
        if time.perf_counter() - began >= time_limit or not model.tighten(answer):
            break
    rounds = 0
    while True:
        left = time_limit - (time.perf_counter() - began)
        if left <= 0:  # to write the program down takes seconds where there are many slots
            best.improvise()
            return best.solution(bound, False, rounds, began)
        model = _Model(problem, walls)
        left = time_limit - (time.perf_counter() - began)
        answer = model.program.solve(time_limit=left, gap=gap)
        rounds += 1
        bound = min(bound, answer.bound)
        if not answer.feasible:
            best.improvise()
            return best.solution(bound, False, rounds, began)
        unpacked = best.offer(model.workers(answer))
        if best.utility >= bound - gap * abs(bound) - 1e-7:
            return best.solution(bound, True, rounds, began)
        if not answer.optimal or time.perf_counter() - began >= time_limit:
            return best.solution(bound, False, rounds, began)
        if not model.tighten(answer, unpacked):
            fresh = unpacked - walls.written
            if not fresh:
                # Written out already: the solver's tolerances let it overbook by a rounding
                # error. Say that nothing is proved rather than loop.
                return best.solution(bound, False, rounds, began)
            walls.written |= fresh


class _Walls:
    """What is known of how servers are whole: inequalities, and slots written out.

    Parameters
    ----------
    problem : Problem
        Jobs and servers.
    """

    def __init__(self, problem: Problem) -> None:
        self.written: set[int] = set()
        alike: dict[bytes, list[CutPool]] = {}
        self.pools: list[list[CutPool]] = []
        for slot in range(problem.slots):
            key = problem.free[slot].tobytes()
            if key not in alike:
                alike[key] = pools(problem, slot)
            self.pools.append(alike[key])


@dataclass
class _Model:
    """The program with some slots written out server by server."""

    problem: Problem
    walls: _Walls
    program: Program = field(default_factory=Program)

    def __post_init__(self) -> None:
        self._by_slot: dict[
            int, list[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]]
        ] = {}
        self._terms: dict[tuple[int, int, bool], list[tuple[int, int]]] = {}
        for at, request in enumerate(self.problem.requests):
            if request.completions:
                self._job(at, request)
        for slot, users in self._by_slot.items():
            self._pool(slot, users)
            self._cuts(slot)
            if slot in self.walls.written:
                self._servers(slot, users)

    def workers(self, answer: Answer) -> Integers:
        """Return the workers of each job in each slot, shape (jobs, slots)."""
        counts = np.zeros((len(self.problem.requests), self.problem.slots), dtype=np.int64)
        for (at, slot, is_worker), terms in self._terms.items():
            if is_worker:
                counts[at, slot] = sum(
                    count * round(float(answer.values[column])) for column, count in terms
                )
        return counts

    def tighten(self, answer: Answer, slots: Iterable[int] | None = None) -> bool:
        """Look for violated inequalities in slots, all by default; return whether any is new."""
        found = False
        for slot in range(self.problem.slots) if slots is None else sorted(slots):
            for pool in self.walls.pools[slot]:
                totals = np.zeros(len(pool.items))
                for at, item in enumerate(pool.items):
                    terms = self._terms.get((item.owner, slot, item.is_worker), ())
                    totals[at] = sum(count * answer.values[column] for column, count in terms)
                # An inequality found for an earlier slot of this round may hold it off already.
                held_off = any(float(cut.weights @ totals) > cut.limit + 0.1 for cut in pool.fresh)
                found |= held_off or pool.separate(totals) is not None
        for pools_ in self.walls.pools:
            for pool in pools_:
                pool.fresh.clear()
        return found

    def _cuts(self, slot: int) -> None:
        for pool in self.walls.pools[slot]:
            listed = [self._terms.get((one.owner, slot, one.is_worker), ()) for one in pool.items]
            for cut in pool.cuts:
                terms = [
                    (column, count * int(weight))
                    for weight, its in zip(cut.weights, listed, strict=True)
                    for column, count in its
                    if weight
                ]
                self._capacity(terms, cut.limit)

    def _job(self, at: int, request: Request) -> None:
        program = self.program
        done = {slot: program.column(cost=worth, upper=1) for slot, worth in request.completions}
        program.row(done.values(), [1.0] * len(done), upper=1)
        last = max(done)
        gained: list[tuple[int, int]] = []
        progress: dict[int, int] = {}
        for slot in range(request.first, last + 1):
            later = [column for completion, column in done.items() if completion >= slot]
            room = self._room(slot, request)
            workers, servers, gains = (
                self._linear(request, room, later)
                if request.linear
                else self._choices(request, room, later)
            )
            if not workers:
                progress[slot] = len(gained)
                continue
            gained += gains
            progress[slot] = len(gained)
            self._terms[at, slot, True] = workers
            self._terms[at, slot, False] = servers
            self._by_slot.setdefault(slot, []).append((at, workers, servers))
        # Work is done before completion, for every prefix of slots.
        required = request.required
        if not request.linear:
            # In units of their common divisor, gains are small enough for the solver's tolerances.
            divisor = int(np.gcd.reduce([gain for _, gain in gained])) if gained else 1
            required = -(-required // divisor)
            gained = [(column, gain // divisor) for column, gain in gained]
        largest = max((required, *(gain for _, gain in gained)))
        scale = 2.0 ** min(0, LARGEST_BITS - largest.bit_length())
        for completion in done:
            before = [column for slot, column in done.items() if slot <= completion]
            made = gained[: progress[completion]]
            program.row(
                [column for column, _ in made] + before,
                [gain * scale for _, gain in made] + [-required * scale] * len(before),
                lower=0,
            )

    def _room(self, slot: int, request: Request) -> tuple[int, int]:
        """Return the most workers, and parameter servers, that a slot carries of a job alone."""
        problem, job = self.problem, request.job
        free = problem.free[slot]
        workers = int(places(free, job.worker, problem.hosts_workers).sum())
        if job.ps is None:
            return workers, 0
        return workers, int(places(free, job.ps, problem.hosts_ps).sum())

    def _linear(
        self, request: Request, room: tuple[int, int], later: list[int]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]:
        """Add one integer for the workers and one for the parameter servers of a slot."""
        program, job = self.program, request.job
        most = min(job.most_workers, request.required, room[0])
        if job.ps is not None:
            most = min(most, room[1] * job.ps_bandwidth // job.worker_bandwidth)
        if most <= 0:
            return [], [], []
        n = program.column(upper=most)
        program.row([n, *later], [1.0, *[-most] * len(later)], upper=0)
        if job.ps is None:
            return [(n, 1)], [], [(n, 1)]
        # (6): z B >= n b; (7) follows, as b <= B.
        z = program.column(upper=job.ps_needed(most))
        ratio = job.worker_bandwidth / job.ps_bandwidth
        program.row([z, n], [1.0, -ratio], lower=0)
        return [(n, 1)], [(z, 1)], [(n, 1)]

    def _choices(
        self, request: Request, room: tuple[int, int], later: list[int]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]:
        """Add a binary for every allowed number of workers of a slot."""
        program, job = self.program, request.job
        workers, servers, gains = [], [], []
        for count, needed, gain in zip(
            job.worker_counts.tolist(), job.ps_counts.tolist(), job.gains.tolist(), strict=True
        ):
            if count > room[0] or needed > room[1]:
                continue
            column = program.column(upper=1)
            workers.append((column, count))
            gains.append((column, gain))
            if needed:
                servers.append((column, needed))
        if workers:
            columns = [column for column, _ in workers]
            program.row([*columns, *later], [*[1.0] * len(columns), *[-1.0] * len(later)], upper=0)
        return workers, servers, gains

    def _pool(
        self, slot: int, users: list[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]]
    ) -> None:
        """Bound a slot's demands by the capacity of all servers that may carry them."""
        problem = self.problem
        pools = [(problem.hosts_workers, True, False), (problem.hosts_ps, False, True)]
        if not problem.separate:
            pools.append((problem.hosts_workers | problem.hosts_ps, True, True))
        for members, with_workers, with_ps in pools:
            free = problem.free[slot][members]
            for r in range(free.shape[1]):
                if bool(np.any(free[:, r] >= UNLIMITED)):
                    continue
                terms: list[tuple[int, int]] = []
                for at, workers, servers in users:
                    job = problem.requests[at].job
                    if with_workers and job.worker[r]:
                        terms += [(column, n * int(job.worker[r])) for column, n in workers]
                    if with_ps and job.ps is not None and job.ps[r]:
                        terms += [(column, n * int(job.ps[r])) for column, n in servers]
                self._capacity(terms, int(free[:, r].sum()))

    def _servers(
        self, slot: int, users: list[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]]
    ) -> None:
        """Write a slot out server by server: (4) and (5)."""
        problem, program = self.problem, self.program
        free = problem.free[slot]
        on_server: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for at, workers, servers in users:
            job = problem.requests[at].job
            sides = [(workers, job.worker, problem.hosts_workers)]
            if job.ps is not None:
                sides.append((servers, job.ps, problem.hosts_ps))
            for totals, demand, hosts in sides:
                room = places(free, demand, hosts)
                here = [int(server) for server in np.flatnonzero(room)]
                columns = [program.column(upper=int(room[server])) for server in here]
                program.row(
                    [*columns, *(column for column, _ in totals)],
                    [*[1.0] * len(columns), *(-float(count) for _, count in totals)],
                    lower=0,
                    upper=0,
                )
                for server, column in zip(here, columns, strict=True):
                    for r in np.flatnonzero(demand).tolist():
                        on_server.setdefault((server, r), []).append((column, int(demand[r])))
        for (server, r), terms in on_server.items():
            if free[server, r] < UNLIMITED:
                self._capacity(terms, int(free[server, r]))

    def _capacity(self, terms: list[tuple[int, int]], capacity: int) -> None:
        if terms:
            # Small integers: the solver's tolerances then cannot hide an overbooking.
            divisor = int(np.gcd.reduce([amount for _, amount in terms]))
            self.program.row(
                [column for column, _ in terms],
                [amount // divisor for _, amount in terms],
                upper=capacity // divisor,
            )


class _Incumbent:
    """The best schedules found, built from totals by packing them slot by slot."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.utility = -np.inf
        self._schedules: tuple[Schedule | None, ...] = ()

    def offer(self, workers: Integers) -> set[int]:
        """Try totals; return the slots in which they cannot be packed.

        Where some cannot, jobs are taken in order of worth, each as planned or else as early as
        the room that is left allows: any totals give feasible schedules.
        """
        problem = self._problem
        entries: dict[int, list[tuple[int, int, int, int]]] = {}
        bad = set()
        for slot in range(problem.slots):
            running = [int(at) for at in np.flatnonzero(workers[:, slot])]
            items = [
                one
                for at in running
                for one in items_of(at, problem.requests[at].job, int(workers[at, slot]))
            ]
            given = pack(problem.machines(slot), items)
            if given is None:
                bad.add(slot)
            else:
                _enter(entries, problem.start + slot, items, given)
        if not bad:
            self._keep(entries)
        else:
            self._keep(self._repair(workers))
        return bad

    def improvise(self) -> None:
        """Try the jobs in order of worth, each as early as it goes."""
        shape = (len(self._problem.requests), self._problem.slots)
        self._keep(self._repair(np.zeros(shape, dtype=np.int64)))

    def _repair(self, workers: Integers) -> dict[int, list[tuple[int, int, int, int]]]:
        problem = self._problem
        free = problem.free.copy()
        entries: dict[int, list[tuple[int, int, int, int]]] = {}
        worth = [
            request.completions[0][1] / request.required if request.completions else 0.0
            for request in problem.requests
        ]
        planned = workers.sum(axis=1) > 0
        order = sorted(range(len(worth)), key=lambda at: (not planned[at], -worth[at], at))
        for at in order:
            request = problem.requests[at]
            if not request.completions:
                continue
            for follow in (True, False):
                taken = _fit_in(problem, free, request, at, workers[at] if follow else None)
                if taken is not None:
                    for slot, items, given in taken:
                        _enter(entries, problem.start + slot, items, given)
                        for one, counts in zip(items, given, strict=True):
                            free[slot] -= counts[:, None] * one.demand
                    break
        return entries

    def _keep(self, entries: dict[int, list[tuple[int, int, int, int]]]) -> None:
        schedules: list[Schedule | None] = []
        total = 0.0
        for at, request in enumerate(self._problem.requests):
            schedule = Schedule.of(entries.get(at, ()))
            worth, schedule = _worth(request, schedule)
            schedules.append(schedule if len(schedule) else None)
            total += worth
        if total > self.utility:
            self.utility, self._schedules = total, tuple(schedules)

    def solution(self, bound: float, optimal: bool, rounds: int, began: float) -> Solution:
        """Return the schedules with their bound."""
        if not self._schedules:
            self._schedules, self.utility = (None,) * len(self._problem.requests), 0.0
        bound = max(bound, self.utility)
        seconds = time.perf_counter() - began
        return Solution(self._schedules, self.utility, bound, optimal, rounds, seconds)


def _enter(
    entries: dict[int, list[tuple[int, int, int, int]]],
    slot: int,
    items: list[Items],
    given: list[Integers],
) -> None:
    for one, counts in zip(items, given, strict=True):
        for server in np.flatnonzero(counts).tolist():
            count = int(counts[server])
            entry = (slot, server, count, 0) if one.is_worker else (slot, server, 0, count)
            entries.setdefault(one.owner, []).append(entry)


def _fit_in(
    problem: Problem, free: Integers, request: Request, owner: int, wanted: Integers | None
) -> list[tuple[int, list[Items], list[Integers]]] | None:
    """Fit one job into the room that is left: as wanted, or as wide and as early as it goes."""
    job, left = request.job, request.required
    taken = []
    for slot in range(request.first, request.completions[-1][0] + 1):
        counts = job.worker_counts[::-1].tolist() if wanted is None else [int(wanted[slot])]
        machines = problem.machines(slot)
        for count in counts:
            if not count or (wanted is None and job.gain(count) <= 0):
                continue
            items = items_of(owner, job, count)
            room = type(machines)(free[slot], machines.hosts_workers, machines.hosts_ps)
            given = pack(room, items)
            if given is not None:
                taken.append((slot, items, given))
                left -= job.gain(count)
                break
        if left <= 0:
            return taken
    return None


def _worth(request: Request, schedule: Schedule) -> tuple[float, Schedule]:
    """Cut a schedule where the work is done; return what it earns (0 and nothing if it is not)."""
    made = 0
    workers, _, _ = schedule.totals()
    for slot, count in zip(schedule.active_slots.tolist(), workers.tolist(), strict=True):
        made += request.job.gain(count)
        if made >= request.required:
            cut = int(np.searchsorted(schedule.slots, slot, side="right"))
            kept = Schedule(
                schedule.slots[:cut],
                schedule.servers[:cut],
                schedule.workers[:cut],
                schedule.ps[:cut],
            )
            worth = float(request.job.utility.values(np.array([slot - request.job.arrival]))[0])
            return worth, kept
    return 0.0, Schedule.of(())
