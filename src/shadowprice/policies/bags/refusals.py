"""Refusals of bags of tasks: the deadline has passed, or can't be met with any copies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shadowprice.cloning.feasible import fewest_machines, min_feasible_deadline
from shadowprice.cloning.problem import CloningProblem, DeadlineConstraint, TaskGroup
from shadowprice.core.amounts import format_seconds
from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.distributions.empirical import build_distribution
from shadowprice.policies.bags.planner import RESERVE_SHARE


def refuse_past_deadline(job: Job, remaining: Sequence[int]) -> Refusal:
    """Return the refusal of a bag whose deadline has passed; ``remaining`` is by group."""
    bag = job.bag
    assert bag is not None
    last = job.arrival + bag.slots - 1
    unfinished = sum(remaining)
    return Refusal(
        RefusalReason.DEADLINE,
        f"its deadline passed in slot {last} with {unfinished} of {bag.tasks} tasks unfinished",
        numbers={"tasks_unfinished": unfinished},
    )


def refuse_infeasible_deadline(
    job: Job, remaining: Sequence[int], slot: int, slot_count: int, units: int, limit_text: str = ""
) -> Refusal:
    """Return the refusal of a bag that would miss its deadline even with all capacity.

    ``remaining`` is by group. There are ``slot_count`` usable slots from ``slot`` on, in which
    ``units`` copies fit at once. ``limit_text`` is appended to the message; it names another limit
    of the time, if there is one.
    """
    bag = job.bag
    assert bag is not None
    if slot_count <= 0:
        return Refusal(RefusalReason.TOO_LATE, f"no slot is left for it{limit_text}")
    elapsed = slot - job.arrival
    time = min(float(slot_count), bag.deadline - elapsed) * bag.slot_seconds
    groups = [
        TaskGroup(count, build_distribution(group.distribution))
        for count, group in zip(remaining, bag.groups, strict=True)
        if count
    ]
    tasks = sum(group.count for group in groups)
    # `CloningProblem` needs a machine for each task, so the bound is optimistic if fewer units fit.
    machines = max(units, tasks)
    # Only this share of the miss probability is spent on copies; the rest covers reserving fewer
    # units.
    share = 1.0 - RESERVE_SHARE
    problem = CloningProblem(groups, machines, time, bag.miss_probability * share)
    decays = problem.decays(time)
    best = 1.0
    if decays.min() > 0.0:
        phi, _ = fewest_machines(problem, DeadlineConstraint.EXACT, machines, decays)
        best = -math.expm1(-phi) / share
    # Reported deadlines count from the submission.
    slots_since_submission = elapsed + job.before_arrival
    soonest = min_feasible_deadline(problem) + slots_since_submission * bag.slot_seconds
    return Refusal(
        RefusalReason.TOO_LATE if limit_text else RefusalReason.DEADLINE,
        f"no number of copies on {machines} places ends {tasks} tasks within "
        f"{format_seconds(time)} with a miss probability of {bag.miss_probability:g}{limit_text}; "
        f"the best misses with {min(best, 1.0):.3g}",
        numbers={"best_miss_probability": min(best, 1.0), "smallest_deadline_s": soonest},
    )
