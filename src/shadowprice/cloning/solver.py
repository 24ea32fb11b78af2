"""Solvers of CSD: Theorem 1, the KKT system, Algorithm 1, and integer numbers of copies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from shadowprice.cloning.convexity import ConvexityCondition, check_convexity
from shadowprice.cloning.feasible import ROUNDING_MARGIN, check_feasible, miss_terms
from shadowprice.cloning.integer import IntegerCopies, integer_optimum
from shadowprice.cloning.problem import CloningProblem, DeadlineConstraint
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.kernels.cloning.columns import Columns
from shadowprice.kernels.cloning.continuous import optimum, sweep
from shadowprice.kernels.cloning.curves import curves
from shadowprice.kernels.cloning.dual import subgradient


class SolveMethod(Enum):
    """Method of finding the copies."""

    EXACT = "exact"
    """KKT system by root finding; integer copies by exact search."""
    CLOSED_FORM = "closed-form"
    """Theorem 1, rounded up."""
    SUBGRADIENT = "subgradient"
    """Algorithm 1, rounded up, or to the machines if rounded-up copies exceed them."""


@dataclass(frozen=True)
class CloningSolution:
    """Numbers of copies, with their cost and their distance from the optimum."""

    problem: CloningProblem
    method: SolveMethod
    constraint: DeadlineConstraint
    copies: Integers
    """Integer copies of every task, in the order of the problem's groups."""
    continuous: Floats
    """Optimum over real numbers of copies, by the chosen method."""
    miss_probability: float
    """Pr[flowtime > T_d] of the integer copies, (3)."""
    expected_cost: float
    """Machine seconds of the integer copies, (5)."""
    continuous_miss: float
    """Pr[flowtime > T_d] of the real numbers."""
    continuous_cost: float
    """Machine seconds of the real numbers."""
    lower_bound: float
    """Lower bound on the cost of integer copies; 0 if the method proves none."""
    proved: bool
    """Whether ``copies`` is proved optimal."""
    deadline_price: float
    """Multiplier k: machine seconds that a looser C saves."""
    machine_price: float
    """Multiplier l: machine seconds that a further machine saves."""
    iterations: int
    """Number of passes over the tasks."""
    violation: float
    """Largest relative violation of a constraint or its complementarity by ``continuous``."""
    condition: ConvexityCondition
    """Condition under which the problem is convex."""

    @property
    def gap(self) -> float:
        """Relative distance of the cost from the lower bound.

        0 if the copies are proved optimal; infinite if the method proves no lower bound.
        """
        if self.proved:
            return 0.0
        if self.lower_bound <= 0.0:
            return math.inf
        return max(self.expected_cost / self.lower_bound - 1.0, 0.0)

    @property
    def machines(self) -> int:
        """Number of machines that the copies use."""
        return int(self.copies.sum())


def solve(
    problem: CloningProblem,
    method: SolveMethod = SolveMethod.EXACT,
    constraint: DeadlineConstraint = DeadlineConstraint.EXACT,
    *,
    iterations: int = 100_000,
    tolerance: float = 1e-6,
) -> CloningSolution:
    """Find numbers of copies that hold the deadline with the smallest expected machine time.

    ``constraint`` is (6) or (7); Theorem 1 is about (7) and always takes that. ``iterations`` and
    ``tolerance`` are those of Algorithm 1. See CSD, (1)-(17), Theorems 1 and 2, Algorithm 1, and
    design note 0005.

    Raises `InputError` if no integer copies hold the deadline, with the smallest feasible deadline,
    machine count and miss probability; if a distribution breaks the convexity that the solver
    needs; or if Theorem 1's rounded numbers exceed the machines.
    """
    if method is SolveMethod.CLOSED_FORM:
        constraint = DeadlineConstraint.RELAXED
    check_feasible(problem, constraint)
    convexity = check_convexity(problem)
    arrays = problem.arrays
    relaxed = constraint is DeadlineConstraint.RELAXED
    prices = (0.0, 0.0)
    violation = 0.0
    if method is SolveMethod.EXACT:
        ratios, prices, passes, violation = _continuous(problem, relaxed, convexity.max_copies)
        convexity.certify(problem, relaxed, prices, ratios, violation)
        whole = integer_optimum(
            arrays,
            relaxed=relaxed,
            budget=problem.budget,
            machines=problem.machines,
            max_copies=convexity.max_copies,
            convex=convexity.convex,
            prices=prices,
            ratios=ratios,
        )
        whole = convexity.certify_integer(problem, relaxed, prices, ratios, whole)
    elif method is SolveMethod.CLOSED_FORM:
        ratios, passes = _theorem_1(arrays, problem.budget), 1
        copies = _round_up(problem, ratios, relaxed, 1e-9)
        _check_machines(problem, copies)
        whole = _equal_copies(arrays, copies)
    else:
        ratios, prices, passes, violation = _algorithm_1(
            problem, relaxed, convexity.max_copies, iterations, tolerance
        )
        copies = _round_up(problem, ratios, relaxed, 10.0 * tolerance)
        if arrays.tasks @ copies <= problem.machines and _holds_deadline(problem, copies, relaxed):
            whole = _equal_copies(arrays, copies)
        else:
            whole = _round_to_machines(problem, ratios, relaxed, prices[0])
    return _report(
        problem, method, constraint, ratios, whole, prices, passes, violation, convexity.condition
    )


def _theorem_1(arrays: Columns, budget: float) -> Floats:
    """Return (12) before rounding, for any distribution.

    It is written in a_i = alpha ln nu_i. If every g' is equal, (8) makes S_i(T_d)^r_i proportional
    to 1 / a_i.
    """
    inverse = float((arrays.tasks / arrays.decay).sum())
    return np.asarray(np.maximum(np.log(arrays.decay * inverse / budget) / arrays.decay, 1.0))


def _continuous(
    problem: CloningProblem, relaxed: bool, max_copies: Integers
) -> tuple[Floats, tuple[float, float], int, float]:
    arrays = problem.arrays
    ratios = np.ones(len(arrays.tasks))
    k, l, passes = optimum(  # noqa: E741
        arrays, max_copies, relaxed, problem.budget, float(problem.machines), ratios
    )
    return ratios, (k, l), passes, _violation(problem, relaxed, ratios, k, l)


def _violation(
    problem: CloningProblem,
    relaxed: bool,
    ratios: Floats,
    k: float,
    l: float,  # noqa: E741
) -> float:
    """Return the largest relative violation of a constraint, or its slack at a positive price."""
    arrays = problem.arrays
    late = float(arrays.tasks @ miss_terms(arrays.decay, ratios, relaxed)) / problem.budget - 1.0
    over = float(arrays.tasks @ ratios) / problem.machines - 1.0
    first = abs(late) if k > 0.0 else max(late, 0.0)
    second = abs(over) if l > 0.0 else max(over, 0.0)
    return max(first, second)


def _algorithm_1(
    problem: CloningProblem, relaxed: bool, max_copies: Integers, iterations: int, tolerance: float
) -> tuple[Floats, tuple[float, float], int, float]:
    """Run Algorithm 1 from Theorem 1's multiplier; multipliers are scaled by its curvature."""
    arrays = problem.arrays
    ratios = _theorem_1(arrays, problem.budget)
    inverse = float((arrays.tasks / arrays.decay).sum())
    mean = float(arrays.tasks @ (arrays.minimum + arrays.scale)) / problem.tasks
    # sum phi falls like 1 / k: a fixed step is small below the optimum, and overshoots far above.
    out = np.empty((len(arrays.tasks), 3))
    every = np.arange(len(arrays.tasks), dtype=np.int64)
    curves(arrays, every, ratios, out)
    slope = max(float(arrays.tasks @ out[:, 1]) / problem.tasks, 1e-3 * mean)
    k = 0.5 * slope * inverse / problem.budget
    l = 1e-3 * mean  # noqa: E741
    sums = np.zeros(6)
    sweep(arrays, max_copies, relaxed, k, l, ratios, sums)
    # The curvature is 2 x 2: steps below 1 / (2 x diagonal) can't diverge.
    k_scale = 0.5 / sums[2] if sums[2] > 0.0 else 0.5 * k / problem.budget
    l_scale = 0.5 / sums[4] if sums[4] > 0.0 else 0.5 * mean / problem.machines
    k, l, used, violation = subgradient(  # noqa: E741
        arrays, max_copies, relaxed, problem.budget, float(problem.machines), k, l,
        k_scale, l_scale, 1000.0, tolerance, iterations, ratios, np.zeros((0, 3)),
    )  # fmt: skip
    return ratios, (k, l), used, violation


def _equal_copies(arrays: Columns, copies: Integers) -> IntegerCopies:
    """Return the choice that gives all tasks of a merged group the same number of copies."""
    groups = np.arange(len(copies), dtype=np.int64)
    return IntegerCopies(groups, copies, arrays.tasks.copy(), 0.0, False, 0)


def _holds_deadline(problem: CloningProblem, copies: Integers, relaxed: bool) -> bool:
    """Return whether equal copies of the tasks of each merged group hold the deadline."""
    late = problem.arrays.tasks @ miss_terms(problem.arrays.decay, copies, relaxed)
    return bool(late <= problem.budget * ROUNDING_MARGIN)


def _round_up(problem: CloningProblem, ratios: Floats, relaxed: bool, noise: float) -> Integers:
    """Round copies up; rounding noise adds a copy only if the deadline needs it."""
    for factor in (1.0 - noise, 1.0 + noise):
        copies = np.maximum(np.ceil(ratios * factor), 1.0).astype(np.int64)
        if _holds_deadline(problem, copies, relaxed):
            break
    return copies


def _check_machines(problem: CloningProblem, copies: Integers) -> None:
    used = int(problem.arrays.tasks @ copies)
    if used > problem.machines:
        raise InputError(
            Fault(
                "machines",
                f"the rounded copies of Theorem 1 need {used} machines, there are "
                f"{problem.machines}",
                f"use --method subgradient or exact, or write machines: {used}",
            )
        )


def _round_to_machines(
    problem: CloningProblem, ratios: Floats, relaxed: bool, k: float
) -> IntegerCopies:
    """Round to whole copies that meet the deadline and fit the machines. Such copies must exist.

    Rounded-down copies come first. A task's next copy changes its cost + ``k`` phi. Tasks with the
    least change get it, until the deadline holds and no further copy lowers the sum. If the
    machines don't suffice for that, copies are moved.
    """
    arrays = problem.arrays
    every = np.arange(len(ratios), dtype=np.int64)
    # Steps that ended before they converged can exceed the machines.
    excess = (problem.machines - problem.tasks) / max(
        float(arrays.tasks @ ratios) - problem.tasks, 1e-9
    )
    low = np.floor(1.0 + (ratios - 1.0) * min(excess, 1.0))
    change = costs(arrays, every, low + 1.0) - costs(arrays, every, low)
    drop = miss_terms(arrays.decay, low, relaxed) - miss_terms(arrays.decay, low + 1.0, relaxed)
    merit = change - k * drop
    owner = np.repeat(every, arrays.tasks)
    copies = low.astype(np.int64)[owner]
    free = int(problem.machines - copies.sum())
    order = np.argsort(merit[owner], kind="stable")[:free]
    needed = (
        float(arrays.tasks @ miss_terms(arrays.decay, low, relaxed))
        - problem.budget * ROUNDING_MARGIN
    )
    count = int((merit[owner[order]] < 0.0).sum())
    if needed > 0.0:
        count = max(count, int(np.searchsorted(np.cumsum(drop[owner[order]]), needed)) + 1)
    copies[order[:count]] += 1
    _move_copies(problem, owner, copies, relaxed)
    rows, tasks = np.unique(np.stack([owner, -copies]), axis=1, return_counts=True)
    return IntegerCopies(rows[0], -rows[1], tasks.astype(np.int64), 0.0, False, 0)


def _move_copies(problem: CloningProblem, owner: Integers, copies: Integers, relaxed: bool) -> None:
    """Lower phi until the deadline holds, by adding or moving one copy at a time.

    phi is convex, so if no move lowers it, it is the least that the machines allow.
    """
    decay = problem.arrays.decay[owner]

    def phi(numbers: Integers) -> Floats:
        return miss_terms(decay, numbers, relaxed)

    while float(phi(copies).sum()) > problem.budget * ROUNDING_MARGIN:
        drop = phi(copies) - phi(copies + 1)
        to = int(np.argmax(drop))
        if copies.sum() >= problem.machines:
            loss = np.full(len(copies), np.inf)
            several = copies > 1
            loss[several] = (phi(np.maximum(copies - 1, 1)) - phi(copies))[several]
            from_ = int(np.argmin(loss))
            if not loss[from_] < drop[to]:
                return
            copies[from_] -= 1
        copies[to] += 1


def expected_cost(problem: CloningProblem, copies: Floats | Integers) -> float:
    """Return (5), the expected machine seconds.

    ``copies`` are real numbers of at least 1, shape (tasks,), in the order of the groups.
    """
    member = np.repeat(problem.member, [group.count for group in problem.groups])
    return float(costs(problem.arrays, member, np.asarray(copies, dtype=np.float64)).sum())


def costs(arrays: Columns, groups: Integers, ratios: Floats) -> Floats:
    """Return g of tasks, each of a merged group with a number of copies."""
    out = np.empty((len(groups), 3))
    curves(arrays, groups, ratios, out)
    return out[:, 0]


def miss_probability(problem: CloningProblem, copies: Floats | Integers) -> float:
    """Return (3), the probability that a task exceeds the deadline.

    ``copies`` has shape (tasks,), in the order of the groups.
    """
    member = np.repeat(problem.member, [group.count for group in problem.groups])
    h = np.exp(-problem.arrays.decay[member] * copies)
    return float(-np.expm1(np.log1p(-h).sum()))


def _report(
    problem: CloningProblem,
    method: SolveMethod,
    constraint: DeadlineConstraint,
    ratios: Floats,
    whole: IntegerCopies,
    prices: tuple[float, float],
    passes: int,
    violation: float,
    condition: ConvexityCondition,
) -> CloningSolution:
    arrays = problem.arrays
    member, counts = problem.member, np.array([g.count for g in problem.groups])
    owner = np.repeat(member, counts)
    # Tasks of a merged group take its numbers of copies in order, the largest first.
    copies = np.empty(problem.tasks, dtype=np.int64)
    by_group = np.argsort(owner, kind="stable")
    copies[by_group] = np.repeat(whole.copies, whole.tasks)
    groups = np.arange(len(arrays.tasks), dtype=np.int64)
    continuous_cost = float(arrays.tasks @ costs(arrays, groups, ratios))
    cost = float(whole.tasks @ costs(arrays, whole.groups, whole.copies.astype(np.float64)))
    late = miss_terms(arrays.decay, ratios, False)
    h = np.exp(-arrays.decay[whole.groups] * whole.copies)
    bound = whole.bound if method is SolveMethod.EXACT else 0.0
    return CloningSolution(
        problem=problem,
        method=method,
        constraint=constraint,
        copies=copies,
        continuous=ratios[owner],
        miss_probability=float(-np.expm1(whole.tasks @ np.log1p(-h))),
        expected_cost=cost,
        continuous_miss=float(-np.expm1(-(arrays.tasks @ late))),
        continuous_cost=continuous_cost,
        lower_bound=min(bound, cost) if method is SolveMethod.EXACT else 0.0,
        proved=whole.proved,
        deadline_price=prices[0],
        machine_price=prices[1],
        iterations=passes,
        violation=violation,
        condition=condition,
    )


__all__ = ["CloningSolution", "SolveMethod", "expected_cost", "miss_probability", "solve"]
