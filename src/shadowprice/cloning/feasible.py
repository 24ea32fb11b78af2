"""Feasibility of a deadline: fewest machines, smallest epsilon, earliest deadline."""

from __future__ import annotations

import math

import numpy as np

from shadowprice.cloning.problem import CloningProblem, DeadlineConstraint
from shadowprice.core.amounts import format_seconds
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.kernels.cloning.continuous import min_copies

ROUNDING_MARGIN = 1.0 + 1e-12
"""Relative tolerance of the budget of (6), for the rounding of a sum of logarithms."""

MAX_MACHINES = 10_000_000  # largest number of machines that the search for the smallest one tries


def miss_terms(decay: Floats, copies: Floats | Integers, relaxed: bool) -> Floats:
    """Return phi of each task, whose sum the budget limits: (6), or (7) if ``relaxed``."""
    h = np.exp(-decay * copies)
    return np.asarray(h if relaxed else -np.log1p(-h))


def fewest_machines(
    problem: CloningProblem,
    constraint: DeadlineConstraint,
    machines: int,
    decays: Floats | None = None,
) -> tuple[float, int]:
    """Add copies that reduce the miss probability most, until the deadline holds.

    ``decays`` are -ln S at another deadline, shape (groups,) of the problem's own groups. Returns
    the sum of phi, and the machines used, at most ``machines``. The deadline holds if the sum is
    within the budget; the machines are then the fewest that hold it.
    """
    if decays is None:
        counts, decays = problem.arrays.tasks, problem.arrays.decay
    else:
        counts = np.array([group.count for group in problem.groups], dtype=np.int64)
    copies = np.ones(len(counts), dtype=np.int64)
    relaxed = constraint is DeadlineConstraint.RELAXED
    total, used, _ = min_copies(counts, decays, machines, relaxed, problem.budget, copies)
    return float(total), int(used)


def min_feasible_deadline(
    problem: CloningProblem, constraint: DeadlineConstraint = DeadlineConstraint.EXACT
) -> float:
    """Return the earliest deadline, in seconds, that integer copies on the machines can hold."""

    def holds(deadline: float) -> bool:
        decays = problem.decays(deadline)
        if float(decays.min()) <= 0.0:
            return False
        total, _ = fewest_machines(problem, constraint, problem.machines, decays)
        return total <= problem.budget * ROUNDING_MARGIN

    low = max(group.duration.shortest for group in problem.groups)
    high = max(low, *(group.duration.mean for group in problem.groups))
    while not holds(high):
        low, high = high, 2.0 * high
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def check_feasible(problem: CloningProblem, constraint: DeadlineConstraint) -> None:
    """Refuse a problem that no integer numbers of copies solve.

    The `InputError` names the smallest deadline, machine count and miss probability that are
    feasible, each with the other two unchanged.
    """
    shortest = max(group.duration.shortest for group in problem.groups)
    deadline = format_seconds(problem.deadline)
    reason = ""
    if problem.deadline <= shortest:
        duration = format_seconds(shortest)
        reason = (
            f"{deadline} is not longer than the shortest possible duration of a task, {duration}"
        )
    elif float(problem.arrays.decay.min()) <= 0.0:
        reason = f"a task ends within {deadline} less often than once in 10^15 times"
    if reason:
        message = f"{reason}: no number of copies helps"
        raise InputError(Fault("deadline", message, _deadline_advice(problem, constraint)))
    total, _ = fewest_machines(problem, constraint, problem.machines)
    if total <= problem.budget * ROUNDING_MARGIN:
        return
    smallest = -math.expm1(-total) if constraint is DeadlineConstraint.EXACT or total < 1 else 1.0
    advice = [_deadline_advice(problem, constraint)]
    reached, used = fewest_machines(problem, constraint, MAX_MACHINES)
    if reached <= problem.budget * ROUNDING_MARGIN:
        advice.append(f"machines: {used} (the fewest)")
    rounded = math.ceil(smallest * 1e6) / 1e6
    if rounded < 1.0:
        advice.append(f"miss_probability: {rounded:.6g} (the smallest is {smallest:.6g})")
    raise InputError(
        Fault(
            "deadline",
            f"{problem.machines} machines cannot finish {problem.tasks} tasks in {deadline} with a "
            f"miss probability of {problem.miss_probability:g}; the best whole copies miss with "
            f"{smallest:.6g}",
            "any one of these would do: " + "; ".join(advice),
        )
    )


def _deadline_advice(problem: CloningProblem, constraint: DeadlineConstraint) -> str:
    smallest = min_feasible_deadline(problem, constraint)
    rounded = math.ceil(smallest * 1e4) / 1e4
    return f"deadline: {rounded:.10g}s (the smallest is {smallest:.8g}s)"
