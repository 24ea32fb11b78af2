"""Exact solver of the offline optimum of OASiS's problem (1).

The program decides totals: ``x[i, c] = 1`` if job i completes by slot c, and ``n[i, t]`` workers of
job i in slot t. Two families of rows replace the completion constraint (8), for all slots t and c:

    n[i, t] <= most workers * sum of x[i, c] over c >= t         (nothing runs after completion)
    sum of gains over slots up to c >= required * sum of x[i, c'] over c' <= c

The second holds for every prefix, which tightens the relaxation. At first a slot's servers are one
pool: for each resource the sum of demands may not exceed the sum of capacities. The inequalities of
`offline.cuts` add that servers are integral. They are added at the relaxation's solution until none
is violated, and then for every slot whose numbers can't be packed (checked exactly). They define
the convex hull of the feasible totals. If numbers inside the hull still can't be packed, their slot
is modelled server by server. So the search terminates, and its result is optimal. Equal servers
introduce no symmetry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.schedule import Schedule
from shadowprice.core.time_limit import Clock
from shadowprice.policies.milp import INFINITY, LinearProgram, SolverResult
from shadowprice.policies.offline.cuts import CutPool, pools
from shadowprice.policies.offline.packing import EqualItems, items_of, pack, places
from shadowprice.policies.offline.problem import JobRequest, OfflineSolution, Problem

Integers = NDArray[np.int64]

ROOT_ROUNDS: Final = 30
"""Maximum of rounds of inequalities at the relaxation, before branching begins."""

LARGEST_BITS: Final = 10
"""Bits to which the coefficients of progress rows are scaled down.

Progress counts in millionths of a mini-batch. With coefficients of 10^10 and 1, the solver has
reported bounded programs as unbounded.
"""


def solve(
    problem: Problem,
    *,
    time_limit: float = INFINITY,
    clock: Clock = Clock.WALL,
    gap: float = 1e-6,
) -> OfflineSolution:
    """Solve problem (1).

    Parameters
    ----------
    problem : Problem
        Jobs and servers.
    time_limit : float
        Seconds after which the best schedules so far are returned, with their gap.
    clock : Clock
        Clock of ``time_limit``.
    gap : float
        Relative distance of utility and bound that counts as optimal.

    Returns
    -------
    Solution
        The schedules; ``optimal`` if they are proved best.
    """
    deadline = clock.now() + time_limit
    best = _Incumbent(problem)
    if not any(request.completions for request in problem.requests):
        return best.solution(0.0, True, 0)
    walls = _Walls(problem)
    bound = float(sum(job.completions[0][1] for job in problem.requests if job.completions))
    for _ in range(ROOT_ROUNDS):
        model = _Model(problem, walls)
        result = model.program.solve(relaxed=True, time_limit=deadline - clock.now(), clock=clock)
        if not result.optimal:
            break  # time is up, and an unfinished relaxation proves no bound
        bound = min(bound, result.bound)
        if clock.now() >= deadline or not model.tighten(result):
            break
    rounds = 0
    while True:
        if clock.now() >= deadline:  # building the program takes seconds if there are many slots
            best.improvise()
            return best.solution(bound, False, rounds)
        model = _Model(problem, walls)
        result = model.program.solve(time_limit=deadline - clock.now(), clock=clock, gap=gap)
        rounds += 1
        bound = min(bound, result.bound)
        if not result.feasible:
            best.improvise()
            return best.solution(bound, False, rounds)
        unpacked = best.offer(model.workers(result))
        if best.utility >= bound - gap * abs(bound) - 1e-7:
            return best.solution(bound, True, rounds)
        if not result.optimal or clock.now() >= deadline:
            return best.solution(bound, False, rounds)
        if not model.tighten(result, unpacked):
            fresh = unpacked - walls.written
            if not fresh:
                # These slots are modelled by server already: the solver's tolerances let it
                # overbook by a rounding error. Return unproved instead of looping.
                return best.solution(bound, False, rounds)
            walls.written |= fresh


class _Walls:
    """Knowledge about integral servers: cut pools by slot, and slots modelled by server."""

    def __init__(self, problem: Problem) -> None:
        self.written: set[int] = set()
        by_capacity: dict[bytes, list[CutPool]] = {}
        self.pools: list[list[CutPool]] = []
        for slot in range(problem.slots):
            key = problem.free[slot].tobytes()
            if key not in by_capacity:
                by_capacity[key] = pools(problem, slot)
            self.pools.append(by_capacity[key])


@dataclass
class _Model:
    """The program, with some slots modelled server by server."""

    problem: Problem
    walls: _Walls
    program: LinearProgram = field(default_factory=LinearProgram)

    def __post_init__(self) -> None:
        self._by_slot: dict[
            int, list[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]]
        ] = {}
        self._terms: dict[tuple[int, int, bool], list[tuple[int, int]]] = {}
        for index, request in enumerate(self.problem.requests):
            if request.completions:
                self._job(index, request)
        for slot, users in self._by_slot.items():
            self._pool(slot, users)
            self._cuts(slot)
            if slot in self.walls.written:
                self._servers(slot, users)

    def workers(self, answer: SolverResult) -> Integers:
        """Return the workers of each job in each slot, shape (jobs, slots)."""
        counts = np.zeros((len(self.problem.requests), self.problem.slots), dtype=np.int64)
        for (index, slot, is_worker), terms in self._terms.items():
            if is_worker:
                counts[index, slot] = sum(
                    count * round(float(answer.values[column])) for column, count in terms
                )
        return counts

    def tighten(self, answer: SolverResult, slots: Iterable[int] | None = None) -> bool:
        """Search violated inequalities in slots, all by default; return whether any exists."""
        violated = False
        for slot in range(self.problem.slots) if slots is None else sorted(slots):
            for pool in self.walls.pools[slot]:
                totals = np.zeros(len(pool.items))
                for index, item in enumerate(pool.items):
                    terms = self._terms.get((item.owner, slot, item.is_worker), ())
                    totals[index] = sum(count * answer.values[column] for column, count in terms)
                # An inequality found for an earlier slot of this round may exclude these totals.
                excluded = any(float(cut.weights @ totals) > cut.limit + 0.1 for cut in pool.fresh)
                violated |= excluded or pool.separate(totals) is not None
        for pools_ in self.walls.pools:
            for pool in pools_:
                pool.fresh.clear()
        return violated

    def _cuts(self, slot: int) -> None:
        for pool in self.walls.pools[slot]:
            by_item = [
                self._terms.get((item.owner, slot, item.is_worker), ()) for item in pool.items
            ]
            for cut in pool.cuts:
                terms = [
                    (column, count * int(weight))
                    for weight, item_terms in zip(cut.weights, by_item, strict=True)
                    for column, count in item_terms
                    if weight
                ]
                self._capacity(terms, cut.limit)

    def _job(self, at: int, request: JobRequest) -> None:
        program = self.program
        completed = {
            slot: program.column(cost=utility, upper=1) for slot, utility in request.completions
        }
        program.row(completed.values(), [1.0] * len(completed), upper=1)
        last = max(completed)
        gained: list[tuple[int, int]] = []
        progress: dict[int, int] = {}
        for slot in range(request.first, last + 1):
            later = [column for completion, column in completed.items() if completion >= slot]
            limits = self._room(slot, request)
            workers, servers, gains = (
                self._linear(request, limits, later)
                if request.linear
                else self._choices(request, limits, later)
            )
            if not workers:
                progress[slot] = len(gained)
                continue
            gained += gains
            progress[slot] = len(gained)
            self._terms[at, slot, True] = workers
            self._terms[at, slot, False] = servers
            self._by_slot.setdefault(slot, []).append((at, workers, servers))
        # The work is done by the completion slot, for every prefix of slots.
        required = request.required
        if not request.linear:
            # Divided by their common divisor, gains are small enough for the solver's tolerances.
            divisor = int(np.gcd.reduce([gain for _, gain in gained])) if gained else 1
            required = -(-required // divisor)
            gained = [(column, gain // divisor) for column, gain in gained]
        largest = max((required, *(gain for _, gain in gained)))
        scale = 2.0 ** min(0, LARGEST_BITS - largest.bit_length())
        for completion in completed:
            before = [column for slot, column in completed.items() if slot <= completion]
            prefix = gained[: progress[completion]]
            program.row(
                [column for column, _ in prefix] + before,
                [gain * scale for _, gain in prefix] + [-required * scale] * len(before),
                lower=0,
            )

    def _room(self, slot: int, request: JobRequest) -> tuple[int, int]:
        """Return the maximum of workers, and of PS, that the job alone can have in a slot."""
        problem, job = self.problem, request.job
        free = problem.free[slot]
        workers = int(places(free, job.worker, problem.hosts_workers).sum())
        if job.ps is None:
            return workers, 0
        return workers, int(places(free, job.ps, problem.hosts_ps).sum())

    def _linear(
        self, request: JobRequest, room: tuple[int, int], later: list[int]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]:
        """Add one integer for the workers and one for the parameter servers of a slot."""
        program, job = self.program, request.job
        maximum = min(job.most_workers, request.required, room[0])
        if job.ps is not None:
            maximum = min(maximum, room[1] * job.ps_bandwidth // job.worker_bandwidth)
        if maximum <= 0:
            return [], [], []
        n = program.column(upper=maximum)
        program.row([n, *later], [1.0, *[-maximum] * len(later)], upper=0)
        if job.ps is None:
            return [(n, 1)], [], [(n, 1)]
        # (6): z B >= n b; (7) follows, as b <= B.
        z = program.column(upper=job.ps_needed(maximum))
        ratio = job.worker_bandwidth / job.ps_bandwidth
        program.row([z, n], [1.0, -ratio], lower=0)
        return [(n, 1)], [(z, 1)], [(n, 1)]

    def _choices(
        self, request: JobRequest, room: tuple[int, int], later: list[int]
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
        """Limit a slot's demands by the total capacity of the servers that may carry them."""
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
                for index, workers, servers in users:
                    job = problem.requests[index].job
                    if with_workers and job.worker[r]:
                        terms += [(column, n * int(job.worker[r])) for column, n in workers]
                    if with_ps and job.ps is not None and job.ps[r]:
                        terms += [(column, n * int(job.ps[r])) for column, n in servers]
                self._capacity(terms, int(free[:, r].sum()))

    def _servers(
        self, slot: int, users: list[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]]
    ) -> None:
        """Model a slot server by server: (4) and (5)."""
        problem, program = self.problem, self.program
        free = problem.free[slot]
        on_server: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for index, workers, servers in users:
            job = problem.requests[index].job
            kinds = [(workers, job.worker, problem.hosts_workers)]
            if job.ps is not None:
                kinds.append((servers, job.ps, problem.hosts_ps))
            for totals, demand, hosts in kinds:
                fits = places(free, demand, hosts)
                hosting = [int(server) for server in np.flatnonzero(fits)]
                columns = [program.column(upper=int(fits[server])) for server in hosting]
                program.row(
                    [*columns, *(column for column, _ in totals)],
                    [*[1.0] * len(columns), *(-float(count) for _, count in totals)],
                    lower=0,
                    upper=0,
                )
                for server, column in zip(hosting, columns, strict=True):
                    for r in np.flatnonzero(demand).tolist():
                        on_server.setdefault((server, r), []).append((column, int(demand[r])))
        for (server, r), terms in on_server.items():
            if free[server, r] < UNLIMITED:
                self._capacity(terms, int(free[server, r]))

    def _capacity(self, terms: list[tuple[int, int]], capacity: int) -> None:
        if terms:
            # With small integers the solver's tolerances can't hide an overbooking.
            divisor = int(np.gcd.reduce([amount for _, amount in terms]))
            self.program.row(
                [column for column, _ in terms],
                [amount // divisor for _, amount in terms],
                upper=capacity // divisor,
            )


class _Incumbent:
    """The best schedules so far, built from totals by packing them slot by slot."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.utility = -np.inf
        self._schedules: tuple[Schedule | None, ...] = ()

    def offer(self, workers: Integers) -> set[int]:
        """Try totals; return the slots in which they can't be packed.

        If there are such slots, jobs are placed by utility per work, each as planned or else as
        early as free capacity allows. So any totals give feasible schedules.
        """
        problem = self._problem
        entries: dict[int, list[tuple[int, int, int, int]]] = {}
        unpacked = set()
        for slot in range(problem.slots):
            running = [int(index) for index in np.flatnonzero(workers[:, slot])]
            items = [
                item
                for index in running
                for item in items_of(index, problem.requests[index].job, int(workers[index, slot]))
            ]
            packed = pack(problem.machines(slot), items)
            if packed is None:
                unpacked.add(slot)
            else:
                _enter(entries, problem.start + slot, items, packed)
        if not unpacked:
            self._keep(entries)
        else:
            self._keep(self._repair(workers))
        return unpacked

    def improvise(self) -> None:
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
                        _enter(entries, problem.start + slot, items, packed)
                        for item, counts in zip(items, packed, strict=True):
                            free[slot] -= counts[:, None] * item.demand
                    break
        return entries

    def _keep(self, entries: dict[int, list[tuple[int, int, int, int]]]) -> None:
        schedules: list[Schedule | None] = []
        total = 0.0
        for index, request in enumerate(self._problem.requests):
            schedule = Schedule.of(entries.get(index, ()))
            utility, schedule = _worth(request, schedule)
            schedules.append(schedule if len(schedule) else None)
            total += utility
        if total > self.utility:
            self.utility, self._schedules = total, tuple(schedules)

    def solution(self, bound: float, optimal: bool, rounds: int) -> OfflineSolution:
        """Return the best schedules with their bound."""
        if not self._schedules:
            self._schedules, self.utility = (None,) * len(self._problem.requests), 0.0
        bound = max(bound, self.utility)
        return OfflineSolution(self._schedules, self.utility, bound, optimal, rounds)


def _enter(
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
        machines = problem.machines(slot)
        for count in counts:
            if not count or (wanted is None and job.gain(count) <= 0):
                continue
            items = items_of(owner, job, count)
            available = type(machines)(free[slot], machines.hosts_workers, machines.hosts_ps)
            packed = pack(available, items)
            if packed is not None:
                fitted.append((slot, items, packed))
                remaining -= job.gain(count)
                break
        if remaining <= 0:
            return fitted
    return None


def _worth(request: JobRequest, schedule: Schedule) -> tuple[float, Schedule]:
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
