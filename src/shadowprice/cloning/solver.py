"""Solvers of CSD: Theorem 1, the KKT system, Algorithm 1, and integer numbers of copies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from shadowprice.cloning.integer import IntegerCopies, integer_optimum
from shadowprice.cloning.problem import (
    ROUNDING_MARGIN,
    CloningProblem,
    DeadlineConstraint,
    check_feasible,
    miss_terms,
)
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.kernels.cloning.continuous import optimum, subgradient, sweep
from shadowprice.kernels.cloning.curves import Columns, Program, curves
from shadowprice.kernels.cloning.kinds import KNOT_STEP


class ConvexityCondition(Enum):
    """Condition under which the problem is convex."""

    LEMMA_1 = "lemma-1"
    """g'' >= 0: by the form of the distribution, or at every number of copies in the range."""
    WIDER = "wider"  # g'' >= min(0, -a g'), with a = -ln S(T_d): convex in S(T_d)^r instead of in r
    CERTIFIED = "certified"
    """Neither holds everywhere, but no number of copies beyond the convex range is better."""


@dataclass(frozen=True)
class Convexity:
    """Result of the check."""

    condition: ConvexityCondition
    max_copies: Integers
    """Largest number of copies of a task of each merged group for which the condition holds."""
    convex: Flags  # merged groups whose g is convex in r (Lemma 1's conclusion)
    doubtful: Integers  # merged groups for which the condition fails beyond ``max_copies``

    def certify(
        self,
        problem: CloningProblem,
        program: Program,
        prices: tuple[float, float],
        ratios: Floats,
        violation: float,
    ) -> None:
        """Prove that doubtful groups gain nothing beyond the convex range, or refuse.

        By weak duality, the KKT point is optimal if it minimises each task's Lagrangian over all
        numbers of copies, not only over the range in which convexity implies that.
        """
        if not len(self.doubtful):
            return
        if violation > 1e-6:
            self._refuse(problem, int(self.doubtful[0]))
        insides = _lagrangian(program, prices, self.doubtful, ratios[self.doubtful])
        for group, inside in zip(self.doubtful.tolist(), insides.tolist(), strict=True):
            beyond = self._nonconvex_minimum(program, prices, group)
            if np.any(beyond < inside - 1e-9 * abs(inside)):
                self._refuse(problem, group)

    def certify_integer(
        self, program: Program, prices: tuple[float, float], ratios: Floats, whole: IntegerCopies
    ) -> IntegerCopies:
        """Prove that integer copies beyond the convex range cost more, or mark them as unproved."""
        if not len(self.doubtful):
            return whole
        arrays = program.columns
        inside = _lagrangian(program, prices, np.arange(len(arrays.tasks)), ratios)
        k, l = prices
        bound = float(arrays.tasks @ inside) - k * program.budget - l * program.machines
        cost = costs(arrays, whole.groups, whole.copies.astype(np.float64))
        excess = float(whole.tasks @ cost) - bound
        for group in self.doubtful.tolist():
            beyond = self._nonconvex_minimum(program, prices, group)
            if np.any(beyond - inside[group] < excess):
                return replace(whole, bound=min(bound, whole.bound), proved=False)
        return whole

    def _nonconvex_minimum(
        self, program: Program, prices: tuple[float, float], group: int
    ) -> Floats:
        """Return the Lagrangian of a doubtful group at copies beyond its convex range."""
        max_copies = float(self.max_copies[group])
        last = program.machines - float(program.columns.tasks.sum()) + 1.0
        near = np.arange(max_copies, min(max_copies + 1000.0, last)) + 1.0
        far = np.arange(np.log(max_copies), np.log(last) + KNOT_STEP, KNOT_STEP)
        copies = np.concatenate([near, np.minimum(np.exp(far), last)])
        groups = np.full(len(copies), group, dtype=np.int64)
        return _lagrangian(program, prices, groups, copies)

    def _refuse(self, problem: CloningProblem, group: int) -> None:
        """Refuse the problem because of a merged group."""
        position = int(np.flatnonzero(problem.member == group)[0])
        distribution = problem.groups[position].duration
        raise InputError(
            Fault(
                f"tasks[{position}].duration",
                f"this {distribution.label} distribution breaks Lemma 1's condition beyond "
                f"{self.max_copies[group]} copies "
                "(its cost curve is not convex there), and more copies may be better: a solution "
                "may not be the optimum",
                "allow a longer deadline or fewer machines, or describe the tasks by a "
                "distribution whose hazard falls (pareto, weibull with shape <= 1, "
                "hyper-exponential)",
            )
        )


def check_convexity(problem: CloningProblem) -> Convexity:
    """Check Lemma 1's conclusion, or the wider condition, on the range of numbers of copies.

    Pareto, Weibull of shape <= 1 and hyper-exponential distributions satisfy Lemma 1 by their form.
    The others are checked at every knot of their tables up to M - N + 1 copies.
    """
    last = problem.max_copies_per_task
    max_copies = np.full(len(problem.arrays.tasks), last, dtype=np.int64)
    convex = np.ones(len(problem.arrays.tasks), dtype=np.bool_)
    for member, group in zip(problem.member, problem.groups, strict=True):
        convex[member] = group.duration.convex_by_form
    checked = np.flatnonzero(~convex)
    if not len(checked) or last == 1:
        return Convexity(
            ConvexityCondition.LEMMA_1, max_copies, convex, np.zeros(0, dtype=np.int64)
        )
    knots = np.arange(0.0, np.log(last) + KNOT_STEP, KNOT_STEP)
    ratios = np.minimum(np.exp(knots), float(last))
    decay = problem.arrays.decay[checked]
    convex[:] = True
    reach = np.full(len(checked), np.inf)
    out = np.empty((len(checked), 3))
    for ratio in ratios:
        curves(problem.arrays, checked, np.full(len(checked), ratio), out)
        slope, bow = out[:, 1], out[:, 2]
        noise = 1e-9 * np.abs(slope) / ratio
        convex[checked] &= bow >= -noise
        broken = bow < np.minimum(0.0, -decay * slope) - noise
        reach[broken & np.isinf(reach)] = ratio
    doubtful = np.isfinite(reach)
    if not np.any(doubtful):
        condition = ConvexityCondition.LEMMA_1 if convex.all() else ConvexityCondition.WIDER
        return Convexity(condition, max_copies, convex, np.zeros(0, dtype=np.int64))
    below = np.exp(np.log(reach[doubtful]) - KNOT_STEP).astype(np.int64)
    max_copies[checked[doubtful]] = np.maximum(below, 1)
    return Convexity(ConvexityCondition.CERTIFIED, max_copies, convex, checked[doubtful])


def _lagrangian(
    program: Program, prices: tuple[float, float], groups: Integers, ratios: Floats
) -> Floats:
    phi = miss_terms(program.columns.decay[groups], ratios, program.relaxed)
    cost = costs(program.columns, groups, ratios)
    return np.asarray(cost + prices[0] * phi + prices[1] * ratios)


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
    program = build_program(problem, constraint, convexity.max_copies)
    arrays = program.columns
    prices = (0.0, 0.0)
    violation = 0.0
    if method is SolveMethod.EXACT:
        ratios, prices, passes, violation = _continuous(program)
        convexity.certify(problem, program, prices, ratios, violation)
        whole = integer_optimum(program, convexity.convex, prices, ratios)
        whole = convexity.certify_integer(program, prices, ratios, whole)
    elif method is SolveMethod.CLOSED_FORM:
        ratios, passes = _theorem_1(arrays, problem.budget), 1
        copies = _round_up(program, ratios, 1e-9)
        used = int(arrays.tasks @ copies)
        if used > problem.machines:
            message = (
                f"the rounded copies of Theorem 1 need {used} machines, there are "
                f"{problem.machines}"
            )
            hint = f"use --method subgradient or exact, or write machines: {used}"
            raise InputError(Fault("machines", message, hint))
        whole = _equal_copies(arrays, copies)
    else:
        ratios, prices, passes, violation = _algorithm_1(program, iterations, tolerance)
        copies = _round_up(program, ratios, 10.0 * tolerance)
        if arrays.tasks @ copies <= problem.machines and _holds_deadline(program, copies):
            whole = _equal_copies(arrays, copies)
        else:
            whole = _round_to_machines(program, ratios, prices[0])
    member = problem.member
    owner = np.repeat(member, [group.count for group in problem.groups])
    # Tasks of a merged group take its numbers of copies in order, the largest first.
    of_task = np.empty(problem.tasks, dtype=np.int64)
    of_task[np.argsort(owner, kind="stable")] = np.repeat(whole.copies, whole.tasks)
    cost = float(whole.tasks @ costs(arrays, whole.groups, whole.copies.astype(np.float64)))
    h = np.exp(-arrays.decay[whole.groups] * whole.copies)
    late = miss_terms(arrays.decay, ratios, False)
    return CloningSolution(
        problem=problem,
        method=method,
        constraint=constraint,
        copies=of_task,
        continuous=ratios[owner],
        miss_probability=float(-np.expm1(whole.tasks @ np.log1p(-h))),
        expected_cost=cost,
        continuous_miss=float(-np.expm1(-(arrays.tasks @ late))),
        continuous_cost=float(arrays.tasks @ costs(arrays, np.arange(len(ratios)), ratios)),
        lower_bound=min(whole.bound, cost) if method is SolveMethod.EXACT else 0.0,
        proved=whole.proved,
        deadline_price=prices[0],
        machine_price=prices[1],
        iterations=passes,
        violation=violation,
        condition=convexity.condition,
    )


def build_program(
    problem: CloningProblem, constraint: DeadlineConstraint, max_copies: Integers
) -> Program:
    """Return the problem as kernels take it, with the maximum copies of each merged group."""
    relaxed = constraint is DeadlineConstraint.RELAXED
    return Program(problem.arrays, max_copies, relaxed, problem.budget, float(problem.machines))


def _theorem_1(arrays: Columns, budget: float) -> Floats:
    """Return (12) before rounding, for any distribution.

    It is written in a_i = alpha ln nu_i. If every g' is equal, (8) makes S_i(T_d)^r_i proportional
    to 1 / a_i.
    """
    inverse = float((arrays.tasks / arrays.decay).sum())
    return np.asarray(np.maximum(np.log(arrays.decay * inverse / budget) / arrays.decay, 1.0))


def _continuous(program: Program) -> tuple[Floats, tuple[float, float], int, float]:
    ratios = np.ones(len(program.columns.tasks))
    k, l, passes = optimum(program, ratios)
    # The largest relative violation of a constraint, or its slack at a positive price.
    arrays = program.columns
    late = float(arrays.tasks @ miss_terms(arrays.decay, ratios, program.relaxed))
    excess = late / program.budget - 1.0, float(arrays.tasks @ ratios) / program.machines - 1.0
    violation = max(
        abs(share) if price > 0.0 else max(share, 0.0)
        for share, price in zip(excess, (k, l), strict=True)
    )
    return ratios, (k, l), passes, violation


def _algorithm_1(
    program: Program, iterations: int, tolerance: float
) -> tuple[Floats, tuple[float, float], int, float]:
    """Run Algorithm 1 from Theorem 1's multiplier; multipliers are scaled by its curvature."""
    arrays, budget, machines = program.columns, program.budget, program.machines
    ratios = _theorem_1(arrays, budget)
    tasks = int(arrays.tasks.sum())
    inverse = float((arrays.tasks / arrays.decay).sum())
    mean = float(arrays.tasks @ (arrays.minimum + arrays.scale)) / tasks
    # sum phi falls like 1 / k: a fixed step is small below the optimum, and overshoots far above.
    out = np.empty((len(arrays.tasks), 3))
    curves(arrays, np.arange(len(arrays.tasks)), ratios, out)
    slope = max(float(arrays.tasks @ out[:, 1]) / tasks, 1e-3 * mean)
    k = 0.5 * slope * inverse / budget
    l = 1e-3 * mean
    sums = np.zeros(5)
    sweep(program, k, l, ratios, sums)
    # The curvature is 2 x 2: steps below 1 / (2 x diagonal) can't diverge.
    k_scale = 0.5 / sums[2] if sums[2] > 0.0 else 0.5 * k / budget
    l_scale = 0.5 / sums[4] if sums[4] > 0.0 else 0.5 * mean / machines
    k, l, used, violation = subgradient(
        program, k, l, k_scale, l_scale, 1000.0, tolerance, iterations, ratios
    )
    return ratios, (k, l), used, violation


def _equal_copies(arrays: Columns, copies: Integers) -> IntegerCopies:
    """Return the choice that gives all tasks of a merged group the same number of copies."""
    groups = np.arange(len(copies), dtype=np.int64)
    return IntegerCopies(groups, copies, arrays.tasks.copy(), 0.0, False, 0)


def _holds_deadline(program: Program, copies: Integers) -> bool:
    """Return whether equal copies of the tasks of each merged group hold the deadline."""
    late = program.columns.tasks @ miss_terms(program.columns.decay, copies, program.relaxed)
    return bool(late <= program.budget * ROUNDING_MARGIN)


def _round_up(program: Program, ratios: Floats, noise: float) -> Integers:
    """Round copies up; rounding noise adds a copy only if the deadline needs it."""
    for factor in (1.0 - noise, 1.0 + noise):
        copies = np.maximum(np.ceil(ratios * factor), 1.0).astype(np.int64)
        if _holds_deadline(program, copies):
            break
    return copies


def _round_to_machines(program: Program, ratios: Floats, k: float) -> IntegerCopies:
    """Round to whole copies that meet the deadline and fit the machines. Such copies must exist.

    Rounded-down copies come first. A task's next copy changes its cost + ``k`` phi. Tasks with the
    least change get it, until the deadline holds and no further copy lowers the sum. If the
    machines don't suffice for that, copies are moved.
    """
    arrays, relaxed, machines = program.columns, program.relaxed, program.machines
    every = np.arange(len(ratios), dtype=np.int64)
    tasks = int(arrays.tasks.sum())
    # Steps that ended before they converged can exceed the machines.
    excess = (machines - tasks) / max(float(arrays.tasks @ ratios) - tasks, 1e-9)
    low = np.floor(1.0 + (ratios - 1.0) * min(excess, 1.0))
    change = costs(arrays, every, low + 1.0) - costs(arrays, every, low)
    drop = miss_terms(arrays.decay, low, relaxed) - miss_terms(arrays.decay, low + 1.0, relaxed)
    merit = change - k * drop
    owner = np.repeat(every, arrays.tasks)
    copies = low.astype(np.int64)[owner]
    free = int(machines - copies.sum())
    order = np.argsort(merit[owner], kind="stable")[:free]
    needed = (
        float(arrays.tasks @ miss_terms(arrays.decay, low, relaxed))
        - program.budget * ROUNDING_MARGIN
    )
    count = int((merit[owner[order]] < 0.0).sum())
    if needed > 0.0:
        count = max(count, int(np.searchsorted(np.cumsum(drop[owner[order]]), needed)) + 1)
    copies[order[:count]] += 1
    _move_copies(program, owner, copies)
    rows, counts = np.unique(np.stack([owner, -copies]), axis=1, return_counts=True)
    return IntegerCopies(rows[0], -rows[1], counts.astype(np.int64), 0.0, False, 0)


def _move_copies(program: Program, owner: Integers, copies: Integers) -> None:
    """Lower phi until the deadline holds, by adding or moving one copy at a time.

    phi is convex, so if no move lowers it, it is the least that the machines allow.
    """
    decay = program.columns.decay[owner]

    def phi(numbers: Integers) -> Floats:
        return miss_terms(decay, numbers, program.relaxed)

    while float(phi(copies).sum()) > program.budget * ROUNDING_MARGIN:
        drop = phi(copies) - phi(copies + 1)
        to = int(np.argmax(drop))
        if copies.sum() >= program.machines:
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


__all__ = ["CloningSolution", "SolveMethod", "expected_cost", "miss_probability", "solve"]
