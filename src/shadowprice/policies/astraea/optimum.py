"""The best schedule of a small batch of gangs: problem (4), and (3), as an integer program.

Every way to run a job (start, size, placement kind, parameter servers) is a binary. Placed, each
also says how many workers stand on which server, which is exact. Unplaced, only the totals of the
cluster bind: an upper bound of the placed optimum, for batches whose placements are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shadowprice.policies.milp import Program
from shadowprice.policies.tenants.gang_jobs import GangJob

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a job.

    Parameters
    ----------
    job : int
        Which job.
    start, end : int
        Slots ``[start, end)``.
    workers, ps : int
        Counts in each of them.
    colocated : bool
        Whether all stand on one server.
    worth : float
        Utility.
    """

    job: int
    start: int
    end: int
    workers: int
    ps: int
    colocated: bool
    worth: float


@dataclass(frozen=True, slots=True)
class Optimum:
    """What the solver found.

    Parameters
    ----------
    value : float
        Total utility of the best schedule found.
    bound : float
        No schedule is worth more.
    proved : bool
        Whether the two are equal to within the solver's gap.
    chosen : tuple of Way
        The schedule.
    """

    value: float
    bound: float
    proved: bool
    chosen: tuple[Way, ...]


@dataclass(frozen=True, eq=False)
class Batch:
    """Jobs of one pair of types and the places for them.

    Parameters
    ----------
    jobs : sequence of GangJob
        The jobs.
    workers, ps : int64, shape (servers,)
        Places.
    slots : int
        Slots there are.
    releases : sequence of int, optional
        First slot of each job; 0 by default.
    worth : callable, optional
        From a job's position and the slot after its last to its utility; by default its utility on
        the clock of the batch.
    """

    jobs: Sequence[GangJob]
    workers: Integers
    ps: Integers
    slots: int
    releases: Sequence[int] | None = None
    worth: Callable[[int, int], float] | None = None

    def ways(self) -> list[Way]:
        """Return all ways worth considering: of each duration only the fewest workers."""
        found = []
        for at, job in enumerate(self.jobs):
            release = self.releases[at] if self.releases is not None else 0
            kinds = self._kinds(job)
            for colocated, ps, slots, count in kinds:
                for start in range(release, self.slots - slots + 1):
                    end = start + slots
                    worth = self._worth(at, end)
                    if worth > 0:
                        found.append(Way(at, start, end, count, ps, colocated, worth))
        return found

    def _worth(self, at: int, end: int) -> float:
        if self.worth is not None:
            return self.worth(at, end)
        return float(self.jobs[at].utility(np.array([end], np.int64))[0])

    def _kinds(self, job: GangJob) -> list[tuple[bool, int, int, int]]:
        """Return (colocated, parameter servers, slots, workers), none dominated."""
        kinds = []
        allowed = np.flatnonzero(job.reach >= 0).tolist()
        for ps in allowed:
            fits = self.workers[self.ps >= ps]
            if not fits.size:
                continue
            most, reach = int(fits.max()), int(job.reach[ps])
            modes = [(False, job.spread_slots)]
            if ps == allowed[0]:
                modes.append((True, job.colocated_slots))
            for colocated, durations in modes:
                seen: set[int] = set()
                for count, slots in zip(job.counts.tolist(), durations.tolist(), strict=True):
                    possible = (
                        count <= most
                        if colocated
                        else reach >= 1 and count - min(reach, count) <= most
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
    ) -> Optimum:
        """Maximise total utility.

        Parameters
        ----------
        placed : bool
            Whether gangs must find servers; else only totals bind.
        floors : mapping of int to float, optional
            Least total utility of each tenant (`GangJob.tenant`).
        time_limit : float
            Seconds.
        gap : float
            Relative gap that counts as proved.
        """
        program, ways = Program(), self.ways()
        chosen = [program.column(cost=way.worth, upper=1) for way in ways]
        for at in range(len(self.jobs)):
            mine = [c for c, way in zip(chosen, ways, strict=True) if way.job == at]
            program.row(mine, [1] * len(mine), upper=1)
        for tenant, floor in (floors or {}).items():
            mine = [at for at, way in enumerate(ways) if self.jobs[way.job].tenant == tenant]
            program.row([chosen[at] for at in mine], [ways[at].worth for at in mine], lower=floor)
        if placed:
            self._place(program, ways, chosen)
        else:
            self._totals(program, ways, chosen)
        answer = program.solve(time_limit=time_limit, gap=gap)
        taken = tuple(
            way
            for way, column in zip(ways, chosen, strict=True)
            if answer.feasible and answer.values[column] > 0.5
        )
        value = sum(way.worth for way in taken)
        return Optimum(value, max(answer.bound, value), answer.optimal, taken)

    def _totals(self, program: Program, ways: Sequence[Way], chosen: Sequence[int]) -> None:
        for slot in range(self.slots):
            running = [at for at, way in enumerate(ways) if way.start <= slot < way.end]
            columns = [chosen[at] for at in running]
            for places, needs in (
                (self.workers, [ways[at].workers for at in running]),
                (self.ps, [ways[at].ps for at in running]),
            ):
                program.row(columns, needs, upper=int(places.sum()))

    def _place(self, program: Program, ways: Sequence[Way], chosen: Sequence[int]) -> None:
        servers = range(self.workers.size)
        stands: list[list[int]] = []
        hosts: list[list[int]] = []
        for way, column in zip(ways, chosen, strict=True):
            reach = int(min(self.jobs[way.job].reach[way.ps], way.workers))
            on = [program.column(upper=min(int(self.workers[s]), way.workers)) for s in servers]
            host = [program.column(upper=1) for _ in servers]
            stands.append(on)
            hosts.append(host)
            # All workers stand somewhere, the parameter servers on one server.
            program.row([*on, column], [*[1] * len(on), -way.workers], lower=0, upper=0)
            program.row([*host, column], [*[1] * len(host), -1], lower=0, upper=0)
            beside = way.workers if way.colocated else way.workers - reach
            for s in servers:
                if beside > 0:
                    program.row([on[s], host[s]], [1, -beside], lower=0)
        for slot in range(self.slots):
            running = [at for at, way in enumerate(ways) if way.start <= slot < way.end]
            for s in servers:
                columns = [stands[at][s] for at in running]
                program.row(columns, [1] * len(columns), upper=int(self.workers[s]))
                columns = [hosts[at][s] for at in running if ways[at].ps]
                needs = [ways[at].ps for at in running if ways[at].ps]
                program.row(columns, needs, upper=int(self.ps[s]))


def dominating(batch: Batch, earned: Mapping[int, float]) -> Optimum | None:
    """Return a schedule that is better for some tenant and worse for none, None if there is none.

    Parameters
    ----------
    batch : Batch
        A small batch.
    earned : mapping of int to float
        What each tenant gets now.

    Notes
    -----
    Exact: the total utility of all schedules that leave nobody worse off is maximised, and is
    above what is earned now exactly if one of them is better for somebody (Theorem 5's claim).
    """
    optimum = batch.solve(floors={tenant: value - 1e-7 for tenant, value in earned.items()})
    return optimum if optimum.value > sum(earned.values()) + 1e-5 else None
