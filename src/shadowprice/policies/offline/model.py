"""The program of problem (1), and the inequalities known for its slots."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Floats, Integers
from shadowprice.policies.milp import LinearProgram
from shadowprice.policies.offline.cuts import Cut, CutPool, pools
from shadowprice.policies.offline.problem import JobRequest, Problem
from shadowprice.policies.offline.rows import Terms, Totals, add_limit, add_servers, add_totals

MAX_COEFFICIENT_BITS: Final = 10
"""Bits to which the coefficients of progress rows are scaled down.

Progress counts in millionths of a mini-batch. With coefficients of 10^10 and 1, the solver has
reported bounded programs as unbounded.
"""


class SlotKnowledge:
    """Inequalities by slot, and the slots that are modelled server by server."""

    def __init__(self, problem: Problem) -> None:
        self.by_server: set[int] = set()
        by_capacity: dict[bytes, list[CutPool]] = {}
        self.pools: list[list[CutPool]] = []
        for slot in range(problem.slots):
            key = problem.free[slot].tobytes()
            if key not in by_capacity:
                by_capacity[key] = pools(problem, slot)
            self.pools.append(by_capacity[key])


class Model:
    """The program, with some slots modelled server by server.

    With ``must_complete``, every job with completion slots has to complete; each has one such slot
    then.
    """

    def __init__(
        self, problem: Problem, known: SlotKnowledge, *, must_complete: bool = False
    ) -> None:
        self.program = LinearProgram()
        self.completed: dict[int, dict[int, int]] = {}  # by job, the column of each completion slot
        self.completion_rows: dict[int, int] = {}  # by job, the row of the sum of these columns
        self._problem = problem
        self._totals: dict[tuple[int, int], Totals] = {}
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
        """Return the number of each item of a pool in a slot."""
        return np.array(
            [sum(count * values[c] for c, count in terms) for terms in self._by_item(pool, slot)]
        )

    def cut_terms(self, pool: CutPool, cut: Cut, slot: int) -> Terms:
        """Return the left side of an inequality in a slot."""
        return cut.terms(self._by_item(pool, slot))

    def add_cuts(self, known: SlotKnowledge) -> None:
        """Add all known inequalities to all slots."""
        for slot, slot_pools in enumerate(known.pools):
            for pool in slot_pools:
                for cut in pool.cuts:
                    add_limit(self.program, self.cut_terms(pool, cut, slot), cut.limit)

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
            completed.values(), [1.0] * len(completed), lower=float(must_complete), upper=1
        )
        gained: Terms = []
        progress: dict[int, int] = {}
        for slot in range(request.first, max(completed) + 1):
            totals = add_totals(program, self._problem, slot, request)
            if totals is not None:
                later = [column for completion, column in completed.items() if completion >= slot]
                columns = [column for column, _ in totals.workers]
                program.row(
                    [*columns, *later],
                    [*[1.0] * len(columns), *[-float(totals.maximum)] * len(later)],
                    upper=0,
                )
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
            prefix = gained[: progress[completion]]
            program.row(
                [column for column, _ in prefix] + before,
                [gain * scale for _, gain in prefix] + [-required * scale] * len(before),
                lower=0,
            )

    def _order_equal_slots(self, by_slot: dict[int, list[tuple[int, Totals]]]) -> None:
        """Order equal slots, which can be exchanged: a job's workers don't increase."""
        free = self._problem.free
        for slot, following in pairwise(sorted(by_slot)):
            users, later = dict(by_slot[slot]), dict(by_slot[following])
            if users.keys() == later.keys() and np.array_equal(free[slot], free[following]):
                job = max(users, key=lambda index: users[index].maximum)
                terms = [(column, -count) for column, count in users[job].workers]
                add_limit(self.program, terms + later[job].workers, 0)

    def _limit_pools(self, slot: int, users: list[tuple[int, Totals]]) -> None:
        """Limit a slot's demands by the total capacity of the servers that may carry them."""
        problem = self._problem
        members = [(problem.hosts_workers, True, False), (problem.hosts_ps, False, True)]
        if not problem.separate:
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
                add_limit(self.program, terms, int(free[:, r].sum()))
