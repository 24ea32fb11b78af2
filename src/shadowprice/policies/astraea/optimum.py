"""Best schedule of a small batch of gangs: problems (4) and (3), as an integer program.

A *way* to run a job is a start, a number of workers, a number of parameter servers, and whether all
are on one server. Each way is a binary variable. With placement, integer variables are the workers
of each way on each server; the result is then exact. Without placement, only the cluster's totals
are constraints. The result is then an upper bound, for batches with too many placements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.policies.milp import LinearProgram, weighted
from shadowprice.policies.tenants.tenancy import GangJob


@dataclass(frozen=True, slots=True)
class GangOption:
    """One way to run a job, in slots ``[start, end)``."""

    job: int  # position in the batch
    start: int
    end: int
    workers: int  # in each slot
    ps: int
    colocated: bool  # whether all processes are on one server
    worth: float  # utility


@dataclass(frozen=True, slots=True)
class OptimumResult:
    """Result of the solver."""

    value: float  # total utility of the best schedule found
    bound: float  # upper bound on the total utility of every schedule
    proved: bool  # whether value and bound are equal within the solver's gap
    chosen: tuple[GangOption, ...]  # the schedule


@dataclass(frozen=True, eq=False)
class GangBatch:
    """Jobs that use the same two types of units, and these units."""

    jobs: Sequence[GangJob]
    workers: Integers  # units for workers on each server
    ps: Integers  # units for parameter servers on each server
    slots: int
    releases: Sequence[int] | None = None  # first slot of each job; None: 0
    worth: Callable[[int, int], float] | None = None
    """Utility of a job, from its position in `jobs` and the slot after its last. None: its utility
    as if it arrived at the start of the batch."""

    def ways(self) -> list[GangOption]:
        """Return all undominated ways: of equal durations, the one with the fewest workers."""
        ways = []
        for index, job in enumerate(self.jobs):
            release = self.releases[index] if self.releases is not None else 0
            for colocated, ps, slots, count in self._kinds(job):
                for start in range(release, self.slots - slots + 1):
                    end = start + slots
                    utility = (
                        float(job.utility(np.array([end], np.int64))[0])
                        if self.worth is None
                        else self.worth(index, end)
                    )
                    if utility > 0:
                        ways.append(GangOption(index, start, end, count, ps, colocated, utility))
        return ways

    def _kinds(self, job: GangJob) -> list[tuple[bool, int, int, int]]:
        """Return undominated kinds of ways: (colocated, parameter servers, slots, workers)."""
        kinds = []
        allowed = np.flatnonzero(job.reach >= 0).tolist()
        for ps in allowed:
            fits = self.workers[self.ps >= ps]
            if not fits.size:
                continue
            max_units, reach = int(fits.max()), int(job.reach[ps])
            modes = [(False, job.spread_slots)]
            if ps == allowed[0]:  # more PS don't help a co-located gang
                modes.append((True, job.colocated_slots))
            for colocated, durations in modes:
                seen: set[int] = set()
                for count, slots in zip(job.counts.tolist(), durations.tolist(), strict=True):
                    possible = (
                        count <= max_units
                        if colocated
                        else reach >= 1 and count - min(reach, count) <= max_units
                    )
                    if possible and count <= self.workers.sum() and slots not in seen:
                        seen.add(slots)
                        kinds.append((colocated, ps, slots, count))
        return kinds

    def solve(
        self,
        *,
        placed: bool = True,
        floors: Mapping[int, float] | None = None,
        time_limit: float = 60.0,
        gap: float = 1e-6,
    ) -> OptimumResult:
        """Maximise total utility.

        Unless ``placed``, only the cluster's totals are constraints. ``floors`` has the minimum
        total utility by tenant (`GangJob.tenant`). A solution is proved optimal if its relative
        distance from the bound is at most ``gap``.
        """
        program, ways = LinearProgram(), self.ways()
        chosen = [program.column(cost=way.worth, upper=1) for way in ways]
        for index in range(len(self.jobs)):
            members = [
                candidate for candidate, way in zip(chosen, ways, strict=True) if way.job == index
            ]
            program.row(weighted(members), upper=1)
        for tenant, floor in (floors or {}).items():
            worths = [
                (candidate, way.worth)
                for candidate, way in zip(chosen, ways, strict=True)
                if self.jobs[way.job].tenant == tenant
            ]
            program.row(worths, lower=floor)
        if placed:
            self._place(program, ways, chosen)
        else:
            self._totals(program, ways, chosen)
        result = program.solve(time_limit=time_limit, gap=gap)
        schedule = tuple(
            way
            for way, column in zip(ways, chosen, strict=True)
            if result.feasible and result.values[column] > 0.5
        )
        value = sum(way.worth for way in schedule)
        return OptimumResult(value, max(result.bound, value), result.optimal, schedule)

    def _totals(
        self, program: LinearProgram, ways: Sequence[GangOption], chosen: Sequence[int]
    ) -> None:
        for slot in range(self.slots):
            running = [index for index, way in enumerate(ways) if way.start <= slot < way.end]
            workers = [(chosen[index], ways[index].workers) for index in running]
            program.row(workers, upper=int(self.workers.sum()))
            ps = [(chosen[index], ways[index].ps) for index in running]
            program.row(ps, upper=int(self.ps.sum()))

    def _place(
        self, program: LinearProgram, ways: Sequence[GangOption], chosen: Sequence[int]
    ) -> None:
        servers = range(self.workers.size)
        worker_columns: list[list[int]] = []
        ps_columns: list[list[int]] = []
        for way, column in zip(ways, chosen, strict=True):
            reach = int(min(self.jobs[way.job].reach[way.ps], way.workers))
            on_server = [
                program.column(upper=min(int(self.workers[server]), way.workers))
                for server in servers
            ]
            host = [program.column(upper=1) for _ in servers]
            worker_columns.append(on_server)
            ps_columns.append(host)
            # All workers are placed, and all parameter servers share one server.
            program.row([*weighted(on_server), (column, -way.workers)], lower=0, upper=0)
            program.row([*weighted(host), (column, -1)], lower=0, upper=0)
            min_colocated = way.workers if way.colocated else way.workers - reach
            for server in servers:
                if min_colocated > 0:
                    program.row([(on_server[server], 1), (host[server], -min_colocated)], lower=0)
        for slot in range(self.slots):
            running = [index for index, way in enumerate(ways) if way.start <= slot < way.end]
            for server in servers:
                columns = [worker_columns[index][server] for index in running]
                program.row(weighted(columns), upper=int(self.workers[server]))
                ps = [(ps_columns[index][server], ways[index].ps) for index in running]
                program.row([term for term in ps if term[1]], upper=int(self.ps[server]))
