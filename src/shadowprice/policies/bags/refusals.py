"""Refusals of bags of tasks: the deadline has passed, or can't be met with any copies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shadowprice.cloning.feasible import fewest_machines, min_feasible_deadline
from shadowprice.cloning.problem import CloningProblem, DeadlineConstraint, TaskGroup
from shadowprice.core.amounts import format_seconds
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.laws.named import law_of
from shadowprice.policies.bags.planner import RESERVE_SHARE


def refuse_past_deadline(job: Job, left: Sequence[int]) -> Refusal:
    """Return the refusal of a bag whose deadline has passed; ``left`` is by group."""
    bag = job.bag
    assert bag is not None
    last = job.arrival + bag.slots - 1
    unfinished = sum(left)
    return Refusal(
        RefusalReason.DEADLINE,
        f"its deadline passed in slot {last} with {unfinished} of {bag.tasks} tasks unfinished",
        numbers={"tasks_unfinished": unfinished},
    )


def refuse_infeasible_deadline(
    job: Job, left: Sequence[int], slot: int, slots: int, places: int, cut: str = ""
) -> Refusal:
    """Return the refusal of a bag that would miss its deadline even with all capacity.

    Parameters
    ----------
    left : sequence of int
        Unfinished tasks by group.
    slot : int
        First usable slot.
    slots : int
        Number of usable slots.
    places : int
        Number of copies that fit at once.
    cut : str
        What limits its time besides the deadline; empty for nothing.
    """
    bag = job.bag
    assert bag is not None
    if slots <= 0:
        return Refusal(RefusalReason.TOO_LATE, f"no slot is left for it{cut}")
    elapsed = slot - job.arrival
    time = min(float(slots), bag.deadline - elapsed) * bag.slot_seconds
    groups = [
        TaskGroup(count, law_of(group.law))
        for count, group in zip(left, bag.groups, strict=True)
        if count
    ]
    tasks = sum(group.count for group in groups)
    places = max(places, tasks)
    share = 1.0 - RESERVE_SHARE
    problem = CloningProblem(groups, places, time, bag.miss_probability * share)
    decays = problem.decays(time)
    best = 1.0
    if decays.min() > 0.0:
        phi, _ = fewest_machines(problem, DeadlineConstraint.EXACT, places, decays)
        best = -math.expm1(-phi) / share
    # Reported deadlines count from the submission.
    since = elapsed + job.before_arrival
    soonest = min_feasible_deadline(problem) + since * bag.slot_seconds
    return Refusal(
        RefusalReason.TOO_LATE if cut else RefusalReason.DEADLINE,
        f"no number of copies on {places} places ends {tasks} tasks within "
        f"{format_seconds(time)} with a miss probability of {bag.miss_probability:g}{cut}; "
        f"the best misses with {min(best, 1.0):.3g}",
        numbers={"best_miss_probability": min(best, 1.0), "smallest_deadline_s": soonest},
    )
