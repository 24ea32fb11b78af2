"""Why a bag of tasks is refused: its deadline passed, or no number of copies keeps it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shadowprice.cloning.feasible import fewest_machines, smallest_deadline
from shadowprice.cloning.problem import CloningProblem, Constraint, TaskGroup
from shadowprice.core.amounts import format_seconds
from shadowprice.core.job import Job
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.laws.named import law_of
from shadowprice.policies.bags.planner import RESERVE_SHARE


def past_deadline(job: Job, left: Sequence[int]) -> Refusal:
    """Return the reason of a bag whose deadline passed with so many tasks left, by group."""
    bag = job.bag
    assert bag is not None
    last = job.arrival + bag.slots - 1
    unfinished = sum(left)
    return Refusal(
        Reason.DEADLINE,
        f"its deadline passed in slot {last} with {unfinished} of {bag.tasks} tasks unfinished",
        numbers={"tasks_unfinished": unfinished},
    )


def out_of_reach(
    job: Job, left: Sequence[int], slot: int, slots: int, places: int, cut: str = ""
) -> Refusal:
    """Return the reason of a bag that all places together could not save.

    Parameters
    ----------
    job : Job
        The bag.
    left : sequence of int
        Unfinished tasks by group.
    slot : int
        The first slot that can be used.
    slots : int
        How many can be.
    places : int
        Copies that fit at once.
    cut : str
        What cuts its time short, besides its deadline; empty for nothing.
    """
    bag = job.bag
    assert bag is not None
    if slots <= 0:
        return Refusal(Reason.TOO_LATE, f"no slot is left for it{cut}")
    passed = slot - job.arrival
    time = min(float(slots), bag.deadline - passed) * bag.slot_seconds
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
        late, _ = fewest_machines(problem, Constraint.EXACT, places, decays)
        best = -math.expm1(-late) / share
    # On the clock a deadline runs from the submission.
    since = passed + job.before_arrival
    soonest = smallest_deadline(problem) + since * bag.slot_seconds
    return Refusal(
        Reason.TOO_LATE if cut else Reason.DEADLINE,
        f"no number of copies on {places} places ends {tasks} tasks within "
        f"{format_seconds(time)} with a miss probability of {bag.miss_probability:g}{cut}; "
        f"the best misses with {min(best, 1.0):.3g}",
        numbers={"best_miss_probability": min(best, 1.0), "smallest_deadline_s": soonest},
    )
