"""Exact solver of the offline optimum of OASiS's problem (1).

The program decides totals: ``x[i, c] = 1`` if job i completes by slot c, and ``n[i, t]`` workers of
job i in slot t. Two families of rows replace the completion constraint (8), for all slots t and c:

    n[i, t] <= most workers * sum of x[i, c] over c >= t         (nothing runs after completion)
    sum of gains over slots up to c >= required * sum of x[i, c'] over c' <= c

The second holds for every prefix, which tightens the relaxation. At first a slot's servers are one
pool: for each resource the sum of demands may not exceed the sum of capacities. The inequalities of
`offline.cuts` add that servers are integral, and those of `offline.rows` that the parameter servers
of a job are. Equal servers introduce no symmetry.

Only the completion slots are branched on (`offline.search`). Numbers of workers follow by a small
program once all completion slots are fixed; it orders equal slots, which can be exchanged. If its
numbers can't be packed (checked exactly), more inequalities exclude them; if numbers inside the
hull can't be packed, their slot is modelled server by server. So the search terminates, and its
result is optimal.
"""

from __future__ import annotations

from shadowprice.core.time_limit import Clock, Deadline
from shadowprice.policies.milp import INFINITY
from shadowprice.policies.offline.incumbent import Incumbent
from shadowprice.policies.offline.problem import OfflineSolution, Problem
from shadowprice.policies.offline.search import CompletionSearch


def solve(
    problem: Problem,
    *,
    time_limit: float = INFINITY,
    clock: Clock = Clock.WALL,
    gap: float = 1e-6,
) -> OfflineSolution:
    """Solve problem (1).

    The best schedules so far are returned after ``time_limit`` seconds, or when their relative
    distance to the bound is at most ``gap``.
    """
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
