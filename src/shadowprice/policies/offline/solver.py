"""Exact solver of the offline optimum of OASiS's problem (1).

The variables are totals: ``x[i, c] = 1`` if job i completes by slot c, and ``n[i, t]`` workers of
job i in slot t. Two families of rows replace the completion constraint (8), for all slots t and c:

    n[i, t] <= maximum workers * sum of x[i, c] over c >= t      (nothing runs after completion)
    sum of gains over slots up to c >= required * sum of x[i, c'] over c' <= c

The second holds for every prefix of slots, which tightens the relaxation. At first, a slot's
servers are one pool: the total demand for each resource is at most the total capacity. Inequalities
of `CutPool` express that a process can't be split over servers. Those of `add_totals` express that
numbers of parameter servers are integers. Without servers in the program, equal servers cause no
symmetry.

The search only branches on completion slots (`CompletionSearch`). If all of them are fixed, a small
program finds numbers of workers. If these can't be packed on servers (checked exactly), more
inequalities exclude them. If no inequality does, because they are in the convex hull, their slot is
modelled server by server. So the search terminates, and its result is optimal.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from shadowprice.core.arrays import Floats
from shadowprice.core.time_limit import Clock, Deadline
from shadowprice.policies.milp import INFINITY, IncrementalProgram, weighted
from shadowprice.policies.offline.incumbent import Incumbent
from shadowprice.policies.offline.model import Model, SlotKnowledge
from shadowprice.policies.offline.problem import OfflineSolution, Problem

INTEGRALITY_TOLERANCE: Final = 1e-6
"""Maximum distance from 0 or 1 at which a job completes not at all, or entirely."""

DELAY_SHARE: Final = 0.25
"""Share of the utility above the best known one that delays of completions may cost."""

VIOLATED: Final = 1e-4
"""Minimum excess over an inequality's limit, per its largest weight, at which it is added."""


def solve(
    problem: Problem, *, time_limit: float = INFINITY, clock: Clock = Clock.WALL, gap: float = 1e-6
) -> OfflineSolution:
    """Solve problem (1) to a relative ``gap``, or until ``time_limit`` seconds of the clock."""
    deadline = Deadline.after(time_limit, clock)
    best = Incumbent(problem)
    if not any(request.completions for request in problem.requests):
        return best.solution(0.0, True, 0)
    best.place_greedily()
    if deadline.passed:  # building the program takes seconds if there are many slots
        bound = float(sum(job.completions[0][1] for job in problem.requests if job.completions))
        return best.solution(bound, False, 0)
    search = CompletionSearch(problem, best, deadline, gap)
    bound = search.run()
    return best.solution(bound, search.is_enough(bound), search.nodes)


@dataclass(frozen=True, slots=True)
class _Window:
    """Completion slots that a node allows a job: later than ``after``, up to ``by``.

    With ``must``, the job has to complete.
    """

    after: int
    by: int
    must: bool


_Windows = tuple[_Window, ...]


class CompletionSearch:
    """Search for the completion slots of all jobs.

    It ends when utility and bound differ by at most the relative ``gap``, or at the deadline. A
    node allows each job a range of completion slots. Its bound is that of the relaxation, which
    starts from the last node's basis and keeps all inequalities. If the relaxation completes a job
    partly by slot c, one child completes it by c, the other later or never. If the relaxation
    completes every job entirely or not at all, a program searches numbers of workers that complete
    the jobs by these slots, somewhat delayed (`_delay`). If there are none, a row excludes that all
    these jobs complete by these slots.
    """

    def __init__(self, problem: Problem, best: Incumbent, deadline: Deadline, gap: float) -> None:
        self.nodes = 0
        self._problem = problem
        self._best = best
        self._deadline = deadline
        self._gap = gap
        self._known = SlotKnowledge(problem)
        self._model = Model(problem, self._known)
        self._relaxation = IncrementalProgram(self._model.program, deadline, relaxed=True)
        self._added: set[tuple[int, int, int]] = set()  # inequalities: (slot, pool, cut)
        self._jobs = tuple(self._model.completed)
        everything = _Window(-1, problem.slots, must=False)
        self._windows: _Windows = (everything,) * len(self._jobs)
        self._closed_bound = -np.inf
        """Largest bound of nodes that were closed without a solution that attains it."""

    def run(self) -> float:
        """Search; return an upper bound of all solutions: the best utility if that is proved."""
        bound = self._search_root()
        waiting: list[tuple[float, int, _Windows]] = [(-bound, 0, self._windows)]
        # Depth first along the likelier child, else the node with the largest bound.
        dive: list[tuple[float, _Windows]] = []
        pushed = 0
        while (waiting or dive) and not self._deadline.passed:
            if dive:
                bound, windows = dive.pop()
            else:
                negative, _, windows = heapq.heappop(waiting)
                bound = -negative
            if self.is_enough(bound):
                self._close(bound)
                continue
            self.nodes += 1
            node = self._explore(windows, bound)
            if node is None:
                continue
            bound, children = node
            for child in children[1:]:
                pushed += 1
                heapq.heappush(waiting, (-bound, pushed, child))
            dive += [(bound, child) for child in children[:1]]
        open_bounds = [-negative for negative, _, _ in waiting] + [bound for bound, _ in dive]
        return max([self._best.utility, self._closed_bound, *open_bounds])

    def is_enough(self, bound: float) -> bool:
        """Return whether the best schedules are within the gap of a bound."""
        return self._best.utility >= bound - self._gap * abs(bound) - 1e-7

    def _explore(self, windows: _Windows, bound: float) -> tuple[float, list[_Windows]] | None:
        """Solve a node; return its bound and children (itself if time is up), None without any."""
        self._enter(windows)
        while True:
            result = self._relaxation.solve()
            if not result.optimal:
                return bound, [windows]
            if not result.feasible:
                return None
            bound = min(bound, result.bound)
            if self.is_enough(bound):
                self._close(bound)
                return None
            children = self._branch(windows, result.values)
            if children:
                return bound, children
            if self._separate(result.values):
                continue
            completions = self._delay(self._completions(result.values))
            utility = self._best.utility
            if self._is_impossible(completions):
                self._exclude(completions)
            elif self._best.utility <= utility and not self._deadline.passed:
                self._close(bound)  # neither decided nor improved: only the bound remains
                return None
            if self._deadline.passed:
                return bound, [windows]

    def _close(self, bound: float) -> None:
        self._closed_bound = max(self._closed_bound, bound)

    def _enter(self, windows: _Windows) -> None:
        """Limit the relaxation to the completion slots of a node."""
        for job, window, previous in zip(self._jobs, windows, self._windows, strict=True):
            if window == previous:
                continue
            completed = self._model.completed[job]
            self._relaxation.limit_columns(
                list(completed.values()),
                [float(window.after < slot <= window.by) for slot in completed],
            )
            row = self._model.completion_rows[job]
            self._relaxation.limit_row(row, float(window.must), 1.0)
        self._windows = windows

    def _branch(self, windows: _Windows, values: Floats) -> list[_Windows]:
        """Return two children at the most uncertain completion, the likelier one first, or none."""
        best, chosen = INTEGRALITY_TOLERANCE, None
        for position, job in enumerate(self._jobs):
            utility = self._problem.requests[job].completions[0][1]
            share = 0.0
            for slot, column in self._model.completed[job].items():
                share += float(values[column])
                doubt = min(share, 1.0 - share)
                if doubt > INTEGRALITY_TOLERANCE and doubt * utility > best:
                    best, chosen = doubt * utility, (position, slot, share)
        if chosen is None:
            return []
        position, slot, share = chosen
        window = windows[position]
        halves = [_Window(window.after, slot, must=True), replace(window, after=slot)]
        if share < 0.5:
            halves.reverse()
        return [(*windows[:position], half, *windows[position + 1 :]) for half in halves]

    def _search_root(self) -> float:
        """Tighten the first relaxation by violated inequalities; return its upper bound."""
        requests = self._problem.requests
        bound = float(sum(job.completions[0][1] for job in requests if job.completions))
        while True:
            result = self._relaxation.solve()
            if not result.optimal:
                return bound
            bound = min(bound, result.bound)
            if self.is_enough(bound) or not self._separate(result.values):
                return bound

    def _separate(self, values: Floats) -> bool:
        """Add inequalities that the relaxation violates; return whether there are any."""
        violated = False
        for slot, pools in enumerate(self._known.pools):
            for pool_index, pool in enumerate(pools):
                items = self._model.items(pool, slot, values)
                cuts = [
                    index
                    for index, cut in enumerate(pool.cuts)
                    if (slot, pool_index, index) not in self._added
                    and float(cut.weights @ items) > cut.limit + VIOLATED * float(cut.weights.max())
                ]
                if not cuts and pool.separate(items) is not None:
                    cuts = [len(pool.cuts) - 1]
                for index in cuts:
                    cut = pool.cuts[index]
                    terms = self._model.cut_terms(pool, cut, slot)
                    self._relaxation.limit(terms, cut.limit)
                    self._added.add((slot, pool_index, index))
                violated |= bool(cuts)
        return violated

    def _completions(self, values: Floats) -> dict[int, int]:
        """Return the completion slot of each job that an integral relaxation completes."""
        return {
            job: slot
            for job in self._jobs
            for slot, column in self._model.completed[job].items()
            if values[column] > 0.5
        }

    def _delay(self, completions: dict[int, int]) -> dict[int, int]:
        """Delay completions, in order of loss, while their utility exceeds the best known one.

        A trial of later slots is more likely to succeed. If it proves that they are impossible, all
        earlier slots are excluded too.
        """
        delayed = dict(completions)
        utilities = {job: dict(self._problem.requests[job].completions) for job in delayed}
        total = sum(utilities[job][slot] for job, slot in delayed.items())
        spare = (total - self._best.utility * (1 + self._gap)) * DELAY_SHARE
        while True:
            steps = []
            for job, slot in delayed.items():
                later = [c for c in utilities[job] if c > slot]
                if later:
                    steps.append((utilities[job][slot] - utilities[job][later[0]], job, later[0]))
            if not steps or min(steps)[0] > spare:
                return delayed
            loss, job, slot = min(steps)
            delayed[job] = slot
            spare -= loss

    def _is_impossible(self, completions: dict[int, int]) -> bool:
        """Return whether these completions are proved impossible; offer schedules with them."""
        requests = tuple(
            replace(
                request,
                completions=tuple(
                    pair for pair in request.completions if pair[0] == completions.get(index)
                ),
            )
            for index, request in enumerate(self._problem.requests)
        )
        problem = replace(self._problem, requests=requests)
        while not self._deadline.passed:
            model = Model(problem, self._known, must_complete=True)
            model.add_cuts(self._known)
            result = model.program.solve(
                time_limit=self._deadline.remaining, clock=self._deadline.clock
            )
            if not result.feasible:
                return result.optimal
            unpacked = self._best.offer(model.workers(result.values))
            if not unpacked:
                return False
            if not self._tighten(model, result.values, unpacked):
                new_slots = unpacked - self._known.by_server
                if not new_slots:
                    # All are modelled by server, so only the solver's tolerances overbook them.
                    return False
                self._known.by_server |= new_slots
        return False

    def _tighten(self, model: Model, values: Floats, slots: set[int]) -> bool:
        """Search inequalities that exclude the totals of slots; return whether there are any."""
        violated = False
        for slot in sorted(slots):
            for pool in self._known.pools[slot]:
                items = model.items(pool, slot, values)
                known = any(float(cut.weights @ items) > cut.limit + 0.1 for cut in pool.cuts)
                if known or pool.separate(items) is not None:
                    violated = True
                    break
        return violated

    def _exclude(self, completions: dict[int, int]) -> None:
        columns = [
            column
            for job, completion in completions.items()
            for slot, column in self._model.completed[job].items()
            if slot <= completion
        ]
        self._relaxation.row(weighted(columns), len(completions) - 1.0)
