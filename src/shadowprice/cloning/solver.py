"""Solvers of CSD: Theorem 1, the KKT system, Algorithm 1, and integer numbers of copies.

The integer optimum comes from a Lagrangian relaxation. Multipliers k (of the deadline constraint)
and l (of the machines) give a lower bound, and a *base* number of copies for each group. A change
of a task's copies has a *penalty*: what it adds to the Lagrangian, at least 0. A search over
changes finds the best integer copies whose penalties stay within a *gap* of the bound. Its *states*
are sums over the groups so far: penalty, late (sum phi of (6)) and machines.
"""

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

FIRST_GROUPS = 8  # groups whose copies the first search, with the smallest gap, may change
SMALL_STATE_COUNT = 200
"""Number of states below which a search is cheap, so that the gap grows in large steps."""
MAX_MOVES = 64  # initial space for the changes of one task; it grows if more are within the gap
MAX_OPTIONS = 200_000  # of a group; further options are dropped
MAX_STATES = 100_000  # maximum number kept after a step
MAX_LISTED_STATES = 20_000_000
"""Number of states listed in all searches, some seconds of work, after which fewer are kept."""
FEW_STATES = 1_000  # maximum number kept after a step beyond `MAX_LISTED_STATES`
MAX_COMBINATIONS = 16_384
"""Maximum number of combinations of a group's tasks; above it, each task is a step."""


@dataclass(frozen=True, slots=True)
class IntegerCopies:
    """Integer numbers of copies, with a lower bound on the cost of all others."""

    groups: Integers
    """Group of each row; a group has one row for every number of copies that its tasks have."""
    copies: Integers  # number of copies of each row
    tasks: Integers  # number of tasks of the group that have these copies
    bound: float  # lower bound on the cost of integer copies
    proved: bool  # whether the search proves that the choice is optimal
    states: int  # maximum number of states after a step


@dataclass(frozen=True, slots=True)
class _Options:
    """Possible changes of a group's copies, in order of their penalty."""

    penalty: Floats
    late: Floats  # change of sum phi
    machines: Integers  # change of the number of copies
    chosen: Integers  # number of tasks that make each of `moves`, shape (options, moves)
    moves: Integers
    """Changes of one task. Empty for a balanced group, whose change is distributed evenly."""
    tasks: int  # number of tasks over which a balanced group distributes its change

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
    """A step of the search: options of one group, and the origin of each state after it."""

    group: int
    options: _Options
    parent: Integers  # index of the state before
    option: Integers  # index of the option


class _Core:
    """Search over changes whose total penalty is within a gap of the bound."""

    def __init__(
        self, program: Program, convex: Flags, prices: tuple[float, float], base: Integers
    ) -> None:
        arrays = program.columns
        self.program = program
        self.convex = convex
        self.k, self.l = prices
        self.base = base
        late = float(arrays.tasks @ miss_terms(arrays.decay, base, program.relaxed))
        # What the base leaves of the budget and the machines; negative if it exceeds them.
        self.slack_late = program.budget * ROUNDING_MARGIN - late
        self.slack_machines = int(program.machines - arrays.tasks @ base)
        self.min_penalties = np.empty(len(base))  # of any change, by group
        kernel.min_penalties(program, self.k, self.l, base, self.min_penalties)
        # The bound is only valid if every task's base is optimal at these prices.
        if np.any(self.min_penalties < -1e-9 * np.abs(arrays.minimum * base + arrays.scale)):
            raise ShadowpriceError("a task's best number of copies was missed: this is a bug")
        np.maximum(self.min_penalties, 0.0, out=self.min_penalties)
        self.max_states = 1  # after any step of the last search
        self.listed = 0  # states in all searches
        self.is_complete = True  # whether the last search dropped no option or state

    def _options(self, group: int, gap: float) -> list[_Options]:
        """Return the options of each step for a group: one for all tasks, or one for each task.

        If g is convex, an even distribution over the tasks is optimal. Otherwise all combinations
        are listed, if they aren't too many.
        """
        count = int(self.program.columns.tasks[group])
        if self.convex[group] or count == 1:
            return [self._balanced_options(group, gap, count)]
        combined = self._combine(group, gap, count)
        if combined is not None:
            return [combined]
        return [self._balanced_options(group, gap, 1)] * count

    def _balanced_options(self, group: int, gap: float, tasks: int) -> _Options:
        size = 256
        while True:  # the kernel returns how much space it needs
            penalty, late = np.empty(size), np.empty(size)
            change = np.empty(size, dtype=np.int64)
            count = self._list_options(group, tasks, gap, penalty, late, change)
            if count <= size:
                break
            if size >= MAX_OPTIONS:
                self.is_complete = False
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
        """Return all combinations of changes of a group's tasks, None if there are too many."""
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
        """Find the cheapest feasible changes within the gap of the bound, None if there are none.

        Returns the excess of their cost over the bound, and all (group, change of copies, tasks).
        """
        self.is_complete = True
        self.max_states = 1
        active = np.flatnonzero(self.min_penalties <= gap)
        active = active[np.argsort(self.min_penalties[active], kind="stable")]
        steps = [
            (int(group), options) for group in active for options in self._options(int(group), gap)
        ]
        # Smallest and largest changes of late and machines that the remaining steps can make.
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
        # Without steps, only the base is left, which may be infeasible.
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
        """Combine states with a group's options, and keep the undominated ones within the gap."""
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
                self.is_complete = False
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
            self.is_complete = False
            keep = keep[np.argpartition(penalty[keep], limit)[:limit]]
        self.max_states = max(self.max_states, len(keep))
        layer = _Layer(group, options, parent[keep], picked[keep])
        return kernel.Sums(penalty[keep], late[keep], machines[keep]), layer


def integer_optimum(
    program: Program, convex: Flags, prices: tuple[float, float], ratios: Floats
) -> IntegerCopies:
    """Find the integer copies of minimum cost: a Lagrangian bound, then a search near it.

    Feasible copies must exist. ``convex`` marks groups whose g is convex in r (Lemma 1). The
    multipliers (k, l) and copies of the continuous optimum, ``prices`` and ``ratios``, are where
    the bound starts. If a limit such as `MAX_STATES` drops states, the copies are feasible, but
    perhaps not optimal; the bound holds all the same.
    """
    arrays = program.columns
    base = np.empty(len(arrays.tasks), dtype=np.int64)
    total = int(arrays.tasks.sum())
    first_k = prices[0]
    if first_k <= 0.0:  # the deadline doesn't bind the real numbers, but may bind integers
        first_k = float(arrays.tasks @ (1.0 / arrays.decay)) / program.budget
        first_k *= float(arrays.tasks @ (arrays.minimum + arrays.scale)) / total
    k, l, bound = integer_bound(program, first_k, prices[1], ratios.copy(), base)
    core = _Core(program, convex, (k, l), base)
    floor = 1e-13 * abs(bound)
    # With the first gap, only a few groups can change.
    penalties = np.sort(core.min_penalties)[: FIRST_GROUPS + 1]
    first = penalties[np.isfinite(penalties)].max(initial=0.0)
    gap = max(float(first), 1e-6 * abs(bound) / total, floor)
    proved_above = 0.0  # excess over the bound within which no copies are feasible
    # Without a result, the bound rises by the gap. Small steps, because the last search is slowest.
    for _ in range(64):
        result = core.search(gap)
        if result is not None:
            excess, moves = result
            proved = core.is_complete
            best_bound = bound + (excess if proved else proved_above)
            groups, copies, tasks = _rows(arrays, base, moves)
            return IntegerCopies(groups, copies, tasks, best_bound, proved, core.max_states)
        if not core.is_complete:
            break
        proved_above = gap
        gap *= 3.0 if core.max_states < SMALL_STATE_COUNT else 1.4
    return _fallback(program, bound + proved_above, core.max_states)


def _rows(
    arrays: Columns, base: Integers, moves: list[tuple[int, int, int]]
) -> tuple[Integers, Integers, Integers]:
    """Return the rows of `IntegerCopies` (group, copies, tasks) after changes of the base."""
    unchanged = arrays.tasks.copy()
    for group, _, number in moves:
        unchanged[group] -= number
    at_base = np.flatnonzero(unchanged)
    groups = np.concatenate([at_base, np.array([move[0] for move in moves], dtype=np.int64)])
    copies = np.concatenate(
        [base[at_base], np.array([base[move[0]] + move[1] for move in moves], dtype=np.int64)]
    )
    tasks = np.concatenate(
        [unchanged[at_base], np.array([move[2] for move in moves], dtype=np.int64)]
    )
    order = np.lexsort((-copies, groups))
    return groups[order], copies[order], tasks[order]


def _fallback(program: Program, bound: float, states: int) -> IntegerCopies:
    """Return the copies with the fewest machines, which are feasible but not optimal."""
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
    """Condition that makes the KKT point optimal."""

    LEMMA_1 = "lemma-1"
    """g'' >= 0, by the form of the distribution or checked in the range of numbers of copies."""
    WIDER = "wider"
    """g'' >= min(0, -a g'), with a = -ln S(T_d): g is convex in S(T_d)^r instead of in r."""
    CERTIFIED = "certified"
    """Neither holds in the whole range, but copies beyond the convex part aren't better."""


@dataclass(frozen=True)
class Convexity:
    """Result of `check_convexity`."""

    condition: ConvexityCondition
    max_copies: Integers
    """Maximum copies of a task of each merged group up to which the condition holds."""
    convex: Flags  # whether g of each merged group is convex in r (Lemma 1's conclusion)
    doubtful: Integers  # merged groups whose condition fails beyond ``max_copies``

    def certify(
        self,
        problem: CloningProblem,
        program: Program,
        prices: tuple[float, float],
        ratios: Floats,
        violation: float,
    ) -> None:
        """Prove that copies beyond the convex range don't help, or raise `InputError`.

        Within that range, convexity implies that the KKT point minimises each task's Lagrangian. By
        weak duality, the point is optimal if it does so over all numbers of copies.
        """
        if not len(self.doubtful):
            return
        if violation > 1e-6:
            self._refuse(problem, int(self.doubtful[0]))
        insides = _lagrangian(program, prices, self.doubtful, ratios[self.doubtful])
        for group, inside in zip(self.doubtful.tolist(), insides.tolist(), strict=True):
            beyond = self._lagrangians_beyond(program, prices, group)
            if np.any(beyond < inside - 1e-9 * abs(inside)):
                self._refuse(problem, group)

    def certify_integer(
        self, program: Program, prices: tuple[float, float], ratios: Floats, chosen: IntegerCopies
    ) -> IntegerCopies:
        """Prove that copies beyond the convex range cost more, or return ``chosen`` as unproved."""
        if not len(self.doubtful):
            return chosen
        arrays = program.columns
        inside = _lagrangian(program, prices, np.arange(len(arrays.tasks)), ratios)
        k, l = prices
        bound = float(arrays.tasks @ inside) - k * program.budget - l * program.machines
        cost = costs(arrays, chosen.groups, chosen.copies.astype(np.float64))
        excess = float(chosen.tasks @ cost) - bound
        for group in self.doubtful.tolist():
            beyond = self._lagrangians_beyond(program, prices, group)
            if np.any(beyond - inside[group] < excess):
                return replace(chosen, bound=min(bound, chosen.bound), proved=False)
        return chosen

    def _lagrangians_beyond(
        self, program: Program, prices: tuple[float, float], group: int
    ) -> Floats:
        """Return the Lagrangian of a doubtful group's task at copies beyond its convex range."""
        max_copies = float(self.max_copies[group])
        last = program.machines - float(program.columns.tasks.sum()) + 1.0
        # The next thousand integers, then the knots between which the table of g is interpolated.
        near = np.arange(max_copies, min(max_copies + 1000.0, last)) + 1.0
        far = np.arange(np.log(max_copies), np.log(last) + KNOT_STEP, KNOT_STEP)
        copies = np.concatenate([near, np.minimum(np.exp(far), last)])
        groups = np.full(len(copies), group, dtype=np.int64)
        return _lagrangian(program, prices, groups, copies)

    def _refuse(self, problem: CloningProblem, group: int) -> None:
        position = int(np.flatnonzero(problem.member == group)[0])
        distribution = problem.groups[position].duration
        raise InputError(
            Fault(
                f"tasks[{position}].duration",
                f"the cost of {distribution.label} tasks is not convex beyond "
                f"{self.max_copies[group]} copies (Lemma 1's condition fails), so a solution with "
                "fewer copies may not be the optimum",
                "allow a longer deadline or fewer machines, or describe the tasks by a "
                "distribution whose hazard falls (pareto, weibull with shape <= 1, "
                "hyper-exponential)",
            )
        )


def check_convexity(problem: CloningProblem) -> Convexity:
    """Check for each group up to which number of copies a condition for convexity holds.

    Pareto, Weibull of shape <= 1 and hyper-exponential distributions satisfy Lemma 1 by their form.
    Other distributions are checked at every knot of their tables up to M - N + 1 copies.
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
    broken_at = np.full(len(checked), np.inf)  # smallest number of copies without the condition
    out = np.empty((len(checked), 3))
    for ratio in ratios:
        curves(problem.arrays, checked, np.full(len(checked), ratio), out)
        slope, curvature = out[:, 1], out[:, 2]
        noise = 1e-9 * np.abs(slope) / ratio
        convex[checked] &= curvature >= -noise
        is_broken = curvature < np.minimum(0.0, -decay * slope) - noise
        broken_at[is_broken & np.isinf(broken_at)] = ratio
    doubtful = np.isfinite(broken_at)
    if not np.any(doubtful):
        condition = ConvexityCondition.LEMMA_1 if convex.all() else ConvexityCondition.WIDER
        return Convexity(condition, max_copies, convex, np.zeros(0, dtype=np.int64))
    below = np.exp(np.log(broken_at[doubtful]) - KNOT_STEP).astype(np.int64)
    max_copies[checked[doubtful]] = np.maximum(below, 1)
    return Convexity(ConvexityCondition.CERTIFIED, max_copies, convex, checked[doubtful])


def _lagrangian(
    program: Program, prices: tuple[float, float], groups: Integers, ratios: Floats
) -> Floats:
    """Return g + k phi + l r of tasks of merged groups with ``ratios`` copies."""
    phi = miss_terms(program.columns.decay[groups], ratios, program.relaxed)
    cost = costs(program.columns, groups, ratios)
    return np.asarray(cost + prices[0] * phi + prices[1] * ratios)


class SolveMethod(Enum):
    """Method of finding the copies."""

    EXACT = "exact"
    """KKT system by root finding; then integer copies by exact search."""
    CLOSED_FORM = "closed-form"
    """Theorem 1, rounded up."""
    SUBGRADIENT = "subgradient"
    """Algorithm 1, rounded up if the machines suffice, else rounded to fit them."""


@dataclass(frozen=True)
class CloningSolution:
    """Numbers of copies, with their cost and their distance from the optimum."""

    problem: CloningProblem
    method: SolveMethod
    constraint: DeadlineConstraint
    copies: Integers
    """Integer copies of every task, in the order of the problem's groups."""
    continuous: Floats
    """Real numbers of copies of every task, by the chosen method."""
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
    """Multiplier k: machine seconds saved per unit of the budget C = -ln(1 - epsilon)."""
    machine_price: float
    """Multiplier l: machine seconds saved by one more machine."""
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
    """Find numbers of copies that meet the deadline with the smallest expected machine time.

    ``constraint`` is (6) or (7); Theorem 1 always uses (7). ``iterations`` and ``tolerance`` are
    for Algorithm 1. See CSD, (1)-(17), Theorems 1 and 2, Algorithm 1, and design note 0005.

    Raises `InputError` if no integer copies meet the deadline, with the limits that would do; if a
    distribution breaks the convexity that the solver needs; or if the rounded copies of Theorem 1
    exceed the machines.
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
        chosen = integer_optimum(program, convexity.convex, prices, ratios)
        chosen = convexity.certify_integer(program, prices, ratios, chosen)
    elif method is SolveMethod.CLOSED_FORM:
        ratios, passes = _theorem_1(arrays, problem.budget), 1
        copies = _round_up(program, ratios, 1e-9)
        used = int(arrays.tasks @ copies)
        if used > problem.machines:
            message = (
                f"the rounded copies of Theorem 1 need {used} machines, but there are "
                f"{problem.machines}"
            )
            hint = f"use --method subgradient or exact, or write machines: {used}"
            raise InputError(Fault("machines", message, hint))
        chosen = _equal_copies(arrays, copies)
    else:
        ratios, prices, passes, violation = _algorithm_1(program, iterations, tolerance)
        copies = _round_up(program, ratios, 10.0 * tolerance)
        if arrays.tasks @ copies <= problem.machines and _meets_deadline(program, copies):
            chosen = _equal_copies(arrays, copies)
        else:
            chosen = _round_to_machines(program, ratios, prices[0])
    member = problem.member
    owner = np.repeat(member, [group.count for group in problem.groups])
    # The first tasks of a merged group get the largest numbers of copies.
    copies_of_task = np.empty(problem.tasks, dtype=np.int64)
    copies_of_task[np.argsort(owner, kind="stable")] = np.repeat(chosen.copies, chosen.tasks)
    cost = float(chosen.tasks @ costs(arrays, chosen.groups, chosen.copies.astype(np.float64)))
    h = np.exp(-arrays.decay[chosen.groups] * chosen.copies)
    late = miss_terms(arrays.decay, ratios, False)
    return CloningSolution(
        problem=problem,
        method=method,
        constraint=constraint,
        copies=copies_of_task,
        continuous=ratios[owner],
        miss_probability=float(-np.expm1(chosen.tasks @ np.log1p(-h))),
        expected_cost=cost,
        continuous_miss=float(-np.expm1(-(arrays.tasks @ late))),
        continuous_cost=float(arrays.tasks @ costs(arrays, np.arange(len(ratios)), ratios)),
        lower_bound=min(chosen.bound, cost) if method is SolveMethod.EXACT else 0.0,
        proved=chosen.proved,
        deadline_price=prices[0],
        machine_price=prices[1],
        iterations=passes,
        violation=violation,
        condition=convexity.condition,
    )


def build_program(
    problem: CloningProblem, constraint: DeadlineConstraint, max_copies: Integers
) -> Program:
    """Return the problem in the form of the kernels; ``max_copies`` is by merged group."""
    relaxed = constraint is DeadlineConstraint.RELAXED
    return Program(problem.arrays, max_copies, relaxed, problem.budget, float(problem.machines))


def _theorem_1(arrays: Columns, budget: float) -> Floats:
    """Return (12) before rounding, for any distribution, with a_i = alpha ln nu_i.

    If all g' are equal, (8) makes S_i(T_d)^r_i proportional to 1 / a_i.
    """
    inverse = float((arrays.tasks / arrays.decay).sum())
    return np.asarray(np.maximum(np.log(arrays.decay * inverse / budget) / arrays.decay, 1.0))


def _continuous(program: Program) -> tuple[Floats, tuple[float, float], int, float]:
    """Solve the KKT system; return copies, multipliers, passes and the largest violation."""
    ratios = np.ones(len(program.columns.tasks))
    k, l, passes = optimum(program, ratios)
    # Violation: relative excess of a constraint, or its slack if the price is positive.
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
    """Run Algorithm 1, scaled by the curvature of the dual; results as `_continuous`."""
    arrays, budget, machines = program.columns, program.budget, program.machines
    ratios = _theorem_1(arrays, budget)
    tasks = int(arrays.tasks.sum())
    inverse = float((arrays.tasks / arrays.decay).sum())
    mean = float(arrays.tasks @ (arrays.minimum + arrays.scale)) / tasks
    # sum phi falls like 1 / k: a fixed step is small below the optimal k, but overshoots far above
    # it. So start below.
    out = np.empty((len(arrays.tasks), 3))
    curves(arrays, np.arange(len(arrays.tasks)), ratios, out)
    slope = max(float(arrays.tasks @ out[:, 1]) / tasks, 1e-3 * mean)
    k = 0.5 * slope * inverse / budget
    l = 1e-3 * mean
    sums = np.zeros(5)
    sweep(program, k, l, ratios, sums)
    # The curvature is a 2 x 2 matrix; steps up to 1 / (2 x its diagonal) can't diverge.
    k_scale = 0.5 / sums[2] if sums[2] > 0.0 else 0.5 * k / budget
    l_scale = 0.5 / sums[4] if sums[4] > 0.0 else 0.5 * mean / machines
    k, l, used, violation = subgradient(
        program, k, l, k_scale, l_scale, 1000.0, tolerance, iterations, ratios
    )
    return ratios, (k, l), used, violation


def _equal_copies(arrays: Columns, copies: Integers) -> IntegerCopies:
    """Return equal numbers of copies for all tasks of each merged group."""
    groups = np.arange(len(copies), dtype=np.int64)
    return IntegerCopies(groups, copies, arrays.tasks.copy(), 0.0, False, 0)


def _meets_deadline(program: Program, copies: Integers) -> bool:
    """Return whether equal copies of the tasks of each merged group meet the deadline."""
    late = program.columns.tasks @ miss_terms(program.columns.decay, copies, program.relaxed)
    return bool(late <= program.budget * ROUNDING_MARGIN)


def _round_up(program: Program, ratios: Floats, noise: float) -> Integers:
    """Round copies up. A number within ``noise`` above an integer is only rounded up if needed."""
    for factor in (1.0 - noise, 1.0 + noise):
        copies = np.maximum(np.ceil(ratios * factor), 1.0).astype(np.int64)
        if _meets_deadline(program, copies):
            break
    return copies


def _round_to_machines(program: Program, ratios: Floats, k: float) -> IntegerCopies:
    """Round to integer copies that meet the deadline and fit the machines; they must exist.

    All tasks start with the copies rounded down. One more copy of a task changes cost + ``k`` phi.
    Tasks with the smallest change get one, until the deadline is met and no further copy lowers the
    sum. If the machines don't suffice for the deadline, copies are moved between tasks.
    """
    arrays, relaxed, machines = program.columns, program.relaxed, program.machines
    all_groups = np.arange(len(ratios), dtype=np.int64)
    tasks = int(arrays.tasks.sum())
    # Real numbers that haven't converged can exceed the machines, so scale them down.
    share = (machines - tasks) / max(float(arrays.tasks @ ratios) - tasks, 1e-9)
    low = np.floor(1.0 + (ratios - 1.0) * min(share, 1.0))
    change = costs(arrays, all_groups, low + 1.0) - costs(arrays, all_groups, low)
    drop = miss_terms(arrays.decay, low, relaxed) - miss_terms(arrays.decay, low + 1.0, relaxed)
    merit = change - k * drop
    owner = np.repeat(all_groups, arrays.tasks)
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
    """Add or move one copy at a time, in place, until the deadline is met.

    phi is convex, so if no move lowers it, it is the minimum that the machines allow.
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
    """Return g, the expected machine seconds, of tasks of merged groups with ``ratios`` copies."""
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
