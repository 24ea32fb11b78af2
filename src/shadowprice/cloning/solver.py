"""Solvers of CSD: Theorem 1, the KKT system, Algorithm 1, and integer numbers of copies."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from shadowprice.cloning.problem import (
    ROUNDING_MARGIN,
    CloningProblem,
    DeadlineConstraint,
    check_feasible,
    miss_terms,
)
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.kernels.cloning import integer as kernel
from shadowprice.kernels.cloning.bound import integer_bound
from shadowprice.kernels.cloning.continuous import min_copies, optimum, subgradient, sweep
from shadowprice.kernels.cloning.curves import Columns, Program, curves
from shadowprice.kernels.cloning.kinds import KNOT_STEP

FIRST_GROUPS = 8  # groups whose copies the first, narrowest search may change
SMALL_STATE_COUNT = 200
"""States below which a search is cheap, so that the gap may widen in large steps."""
MAX_MOVES = 64  # numbers of copies of a task that are tried first; more follow if within the gap
MAX_OPTIONS = 200_000
MAX_STATES = 100_000  # held at once
MAX_LISTED_STATES = 20_000_000
"""States listed in all searches, some seconds of work, after which fewer are held."""
FEW_STATES = 1_000  # held at once after that
MAX_COMBINATIONS = 16_384
"""Maximum of listed combinations of a group's tasks; above it, each task is a step."""


@dataclass(frozen=True, slots=True)
class IntegerCopies:
    """Integer numbers of copies, with the bound that proves how good they are."""

    groups: Integers
    """Group of each row; a group has one row for every number of copies that its tasks have."""
    copies: Integers  # number of copies of each row
    tasks: Integers  # number of tasks of the group that have these copies
    bound: float  # lower bound on the cost of integer copies
    proved: bool  # whether the search proves that the choice is optimal
    states: int  # largest number of states held at once


@dataclass(frozen=True, slots=True)
class _Options:
    """Possible changes of a group, in order of their penalty.

    ``chosen`` counts the tasks that make each of ``moves``. A balanced group (``moves`` is empty)
    distributes its change of copies evenly over its ``tasks``.
    """

    penalty: Floats
    late: Floats
    machines: Integers
    chosen: Integers
    moves: Integers
    tasks: int

    def moved(self, option: int) -> list[tuple[int, int]]:
        """Return (change of copies, tasks) of an option."""
        if len(self.moves):
            row = self.chosen[option]
            return [(int(m), int(n)) for m, n in zip(self.moves, row, strict=True) if n]
        each, rest = divmod(int(self.machines[option]), self.tasks)
        pairs = [(each, self.tasks - rest), (each + 1, rest)]
        return [(change, tasks) for change, tasks in pairs if change and tasks]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Options of one group, and the predecessors of the states after it."""

    group: int
    options: _Options
    parent: Integers
    option: Integers


class _Core:
    """Search of the choices whose penalties are within a gap of the bound."""

    def __init__(
        self, program: Program, convex: Flags, prices: tuple[float, float], base: Integers
    ) -> None:
        arrays = program.columns
        self.program = program
        self.convex = convex
        self.k, self.l = prices
        self.base = base
        late = float(arrays.tasks @ miss_terms(arrays.decay, base, program.relaxed))
        self.slack_late = program.budget * ROUNDING_MARGIN - late
        self.slack_machines = int(program.machines - arrays.tasks @ base)
        self.least = np.empty(len(base))
        kernel.min_penalties(program, self.k, self.l, base, self.least)
        # The bound is valid only if every task's choice is optimal at these prices.
        if np.any(self.least < -1e-9 * np.abs(arrays.minimum * base + arrays.scale)):
            raise ShadowpriceError("a task's best number of copies was missed: this is a bug")
        np.maximum(self.least, 0.0, out=self.least)
        self.widest = 1
        self.listed = 0
        self.whole = True

    def _options(self, group: int, gap: float) -> list[_Options]:
        """Return the changes of a group's tasks, combined or one task after another."""
        count = int(self.program.columns.tasks[group])
        # A single task has no shares to balance: its options are all its numbers of copies.
        if self.convex[group] or count == 1:
            return [self._balanced_options(group, gap, count)]
        combined = self._combine(group, gap, count)
        if combined is not None:
            return [combined]
        return [self._balanced_options(group, gap, 1)] * count

    def _balanced_options(self, group: int, gap: float, tasks: int) -> _Options:
        size = 256
        while True:
            penalty, late = np.empty(size), np.empty(size)
            change = np.empty(size, dtype=np.int64)
            count = self._list_options(group, tasks, gap, penalty, late, change)
            if count <= size:
                break
            if size >= MAX_OPTIONS:
                self.whole = False
                count = size
                break
            size *= 8
        order = np.argsort(penalty[:count], kind="stable")
        none = np.zeros((0, 0), dtype=np.int64)
        return _Options(penalty[order], late[order], change[order], none, none.ravel(), tasks)

    def _list_options(
        self, group: int, tasks: int, gap: float, penalty: Floats, late: Floats, change: Integers
    ) -> int:
        base = int(self.base[group])
        return kernel.balanced_options(
            group, tasks, self.program, self.k, self.l, base, gap, penalty, late, change
        )

    def _combine(self, group: int, gap: float, count: int) -> _Options | None:
        """Return every combination of a group's tasks, None if there are too many."""
        size = MAX_MOVES
        while True:
            penalty, late = np.empty(size), np.empty(size)
            change = np.empty(size, dtype=np.int64)
            options = self._list_options(group, 1, gap, penalty, late, change)
            if options <= size:
                break
            size *= 8
        # The first option changes nothing.
        moves = options - 1
        penalty, late, change = penalty[1:options], late[1:options], change[1:options]
        size = min(256, MAX_COMBINATIONS)
        while True:
            chosen = np.zeros((size, moves), dtype=np.int64)
            sums = np.empty(size), np.empty(size), np.empty(size, dtype=np.int64)
            total = kernel.multisets(count, moves, penalty, late, change, gap, size, chosen, *sums)
            if total <= size:
                break
            if size >= MAX_COMBINATIONS:
                return None
            size *= 8
        order = np.argsort(sums[0][:total], kind="stable")
        by_penalty = kernel.Sums(sums[0][order], sums[1][order], sums[2][order])
        return _Options(*by_penalty, chosen[order], change, count)

    def search(self, gap: float) -> tuple[float, list[tuple[int, int, int]]] | None:
        """Find the best choice within the gap of the bound; None if there is none.

        Returns the cost exceeds the limit, and (group, change of copies, tasks) of every change.
        """
        self.whole = True
        self.widest = 1
        active = np.flatnonzero(self.least <= gap)
        active = active[np.argsort(self.least[active], kind="stable")]
        steps = [
            (int(group), options) for group in active for options in self._options(int(group), gap)
        ]
        # Largest change that the remaining groups can make: sums over the rest of the list.
        bounds = np.zeros((len(steps) + 1, 4))
        for i in range(len(steps) - 1, -1, -1):
            late, machines = steps[i][1].late, steps[i][1].machines
            bounds[i] = bounds[i + 1] + (late.min(), late.max(), machines.min(), machines.max())
        by_machines = self.l > 0.0 or bounds[0, 3] > self.slack_machines
        states = kernel.Sums(np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64))
        layers: list[_Layer] = []
        for i, (group, option) in enumerate(steps):
            states, layer = self._step(states, group, option, gap, bounds[i + 1], by_machines)
            layers.append(layer)
            if not len(states.penalty):
                return None
        penalty, late, machines = states
        if (self.slack_late < late.max() or self.slack_machines < machines.max()) and not layers:
            return None
        excess = (
            penalty
            + self.k * np.maximum(self.slack_late - late, 0.0)
            + self.l * (self.slack_machines - machines)
        )
        best = int(np.argmin(excess))
        moves: Counter[tuple[int, int]] = Counter()
        state = best
        for layer in reversed(layers):
            for change, tasks in layer.options.moved(int(layer.option[state])):
                moves[layer.group, change] += tasks
            state = int(layer.parent[state])
        return float(excess[best]), [(*key, tasks) for key, tasks in moves.items()]

    def _step(
        self,
        states: kernel.Sums,
        group: int,
        options: _Options,
        gap: float,
        bounds: Floats,
        by_machines: bool,
    ) -> tuple[kernel.Sums, _Layer]:
        limits = kernel.Limits(
            gap, self.k, self.l, self.slack_late, self.slack_machines, bounds[0], bounds[1],
            int(bounds[2]), int(bounds[3]),
        )  # fmt: skip
        choices = kernel.Sums(options.penalty, options.late, options.machines)
        size = min(len(states.penalty) * len(options.penalty), 4096)
        while True:
            new = kernel.Sums(np.empty(size), np.empty(size), np.empty(size, dtype=np.int64))
            parent, picked = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
            total = kernel.extend(states, choices, limits, new, parent, picked)
            if total <= size:
                break
            if size >= 16 * MAX_STATES:
                self.whole = False
                total = size
                break
            size *= 8
        penalty, late, machines = new.penalty[:total], new.late[:total], new.machines[:total]
        order = np.lexsort((late, machines)) if by_machines else np.argsort(late, kind="stable")
        keep = np.empty(total, dtype=np.int64)
        remaining = kernel.list_undominated(
            order, penalty, late, machines, self.k, self.l, by_machines, keep
        )
        keep = keep[:remaining]
        self.listed += total
        limit = MAX_STATES if self.listed <= MAX_LISTED_STATES else FEW_STATES
        if remaining > limit:
            self.whole = False
            keep = keep[np.argpartition(penalty[keep], limit)[:limit]]
        self.widest = max(self.widest, len(keep))
        layer = _Layer(group, options, parent[keep], picked[keep])
        return kernel.Sums(penalty[keep], late[keep], machines[keep]), layer


def integer_optimum(
    program: Program, convex: Flags, prices: tuple[float, float], ratios: Floats
) -> IntegerCopies:
    """Find the integer copies of least cost: a Lagrangian bound, then a search near it.

    A feasible choice must exist. ``convex`` marks groups whose g is convex in r (Lemma 1).
    ``prices`` are the multipliers (k, l) of the continuous optimum, and ``ratios`` its copies, at
    which the search starts. Beyond `MAX_STATES` states at once, or `MAX_LISTED_STATES` in total,
    the result is feasible with a certified gap.
    """
    arrays = program.columns
    base = np.empty(len(arrays.tasks), dtype=np.int64)
    total = int(arrays.tasks.sum())
    near = prices[0]
    if near <= 0.0:
        near = float(arrays.tasks @ (1.0 / arrays.decay)) / program.budget
        near *= float(arrays.tasks @ (arrays.minimum + arrays.scale)) / total
    k, l, bound = integer_bound(program, near, prices[1], ratios.copy(), base)
    core = _Core(program, convex, (k, l), base)
    floor = 1e-13 * abs(bound)
    # The first gap is one within which only a few groups can change.
    near_penalties = np.sort(core.least)[: FIRST_GROUPS + 1]
    first = near_penalties[np.isfinite(near_penalties)].max(initial=0.0)
    gap = max(float(first), 1e-6 * abs(bound) / total, floor)
    proved_above = 0.0
    # No choice is within the gap, so the bound rises by it. The last search takes most time.
    for _ in range(64):
        result = core.search(gap)
        if result is not None:
            excess, moves = result
            proved = core.whole
            best = bound + (excess if proved else proved_above)
            groups, copies, tasks = _rows(arrays, base, moves)
            return IntegerCopies(groups, copies, tasks, best, proved, core.widest)
        if not core.whole:
            break
        proved_above = gap
        gap *= 3.0 if core.widest < SMALL_STATE_COUNT else 1.4
    return _fallback(program, bound + proved_above, core.widest)


def _rows(
    arrays: Columns, base: Integers, moves: list[tuple[int, int, int]]
) -> tuple[Integers, Integers, Integers]:
    unmoved = arrays.tasks.copy()
    for group, _, number in moves:
        unmoved[group] -= number
    home = np.flatnonzero(unmoved)
    groups = np.concatenate([home, np.array([move[0] for move in moves], dtype=np.int64)])
    copies = np.concatenate(
        [base[home], np.array([base[move[0]] + move[1] for move in moves], dtype=np.int64)]
    )
    tasks = np.concatenate([unmoved[home], np.array([move[2] for move in moves], dtype=np.int64)])
    order = np.lexsort((-copies, groups))
    return groups[order], copies[order], tasks[order]


def _fallback(program: Program, bound: float, states: int) -> IntegerCopies:
    """Return the choice with the fewest machines, which is feasible but not optimal."""
    arrays = program.columns
    copies = np.ones(len(arrays.tasks), dtype=np.int64)
    _, used, last = min_copies(
        arrays.tasks, arrays.decay, int(program.machines), program.relaxed, program.budget, copies
    )
    extra = int(used - arrays.tasks @ copies)
    moves = [(int(last), 1, extra)] if last >= 0 and extra else []
    groups, copies, tasks = _rows(arrays, copies, moves)
    return IntegerCopies(groups, copies, tasks, bound, False, states)


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
