"""The cloning problem of the CSD paper: its task groups, kernel arrays and feasibility check.

Formulas are those of the paper. S is the survival function of a task's duration: the probability
that a copy runs longer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from shadowprice.core.amounts import format_seconds
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.distributions.parametric import Distribution
from shadowprice.kernels.cloning.continuous import min_copies
from shadowprice.kernels.cloning.curves import Columns
from shadowprice.kernels.cloning.kinds import TABLE, WEIBULL

MAX_DECAY = 700.0
"""Maximum decay a = -ln S(deadline). One copy then misses with a probability of e^-700, about 0."""

MIN_DECAY = 2.0**-52
"""Decay below which a task can't finish in time, because its miss probability rounds to 1."""

TIE_SLOPE = 1e-9
"""Assumed cost of a copy of an exponential task without a minimum, as a share of its mean.

The true cost of such copies is 0, which leaves the optimum undetermined; this value selects the
fewest copies.
"""


class DeadlineConstraint(Enum):
    """Form of the deadline constraint."""

    EXACT = "exact"
    """(6): the probability of a miss is at most epsilon."""
    RELAXED = "relaxed"
    """(7): necessary for (6), but not sufficient."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Tasks with one distribution of durations."""

    count: int
    """Number of tasks."""
    duration: Distribution
    """Distribution of the duration of each task."""


@dataclass(frozen=True)
class CloningProblem:
    """CSD: N tasks on M machines, a deadline, and the probability of missing it.

    Raises `InputError` if a number is out of range, or there are fewer machines than tasks.
    """

    groups: Sequence[TaskGroup]
    """Groups of tasks."""
    machines: int
    """Number M of machines, each with room for one copy."""
    deadline: float
    """T_d in seconds."""
    miss_probability: float
    """Epsilon in (0, 1)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        faults = []
        if not self.groups:
            faults.append(Fault("tasks", "must not be empty", "add at least one group"))
        for position, group in enumerate(self.groups):
            if group.count < 1:
                location = f"tasks[{position}].count"
                faults.append(Fault(location, f"{group.count} tasks", "write 1 or more"))
        if not 0.0 < self.miss_probability < 1.0:
            message = f"{self.miss_probability:g} is outside (0, 1)"
            hint = "write for example 0.05; 0 is impossible with any number of copies"
            faults.append(Fault("miss_probability", message, hint))
        if not self.deadline > 0.0 or not math.isfinite(self.deadline):
            faults.append(Fault("deadline", "is not a positive time", "write for example 60s"))
        if self.machines < self.tasks:
            message = (
                f"{self.machines} machines for {self.tasks} tasks: the plan starts "
                "every task at once"
            )
            command = "shadowprice cloning waves"
            hint = f"give at least {self.tasks} machines, or run the tasks in waves: {command}"
            faults.append(Fault("machines", message, hint))
        if faults:
            raise InputError(faults)

    @cached_property
    def tasks(self) -> int:
        """N, the number of tasks."""
        return sum(group.count for group in self.groups)

    @property
    def budget(self) -> float:
        """C = -ln(1 - epsilon)."""
        return -math.log1p(-self.miss_probability)

    @property
    def max_copies_per_task(self) -> int:
        """Maximum number of copies of one task if every other task has one."""
        return self.machines - self.tasks + 1

    def decays(self, deadline: float) -> Floats:
        """Return a = -ln S(deadline) of each group, at most `MAX_DECAY`.

        It is 0 if the task can't finish in time.
        """
        by_form: dict[type[Distribution], list[int]] = {}
        for position, group in enumerate(self.groups):
            by_form.setdefault(type(group.duration), []).append(position)
        decays = np.empty(len(self.groups))
        for form, positions in by_form.items():
            distributions = [self.groups[position].duration for position in positions]
            decays[positions] = form.log_survivals(distributions, deadline)
        return np.where(decays > -MIN_DECAY, 0.0, np.minimum(-decays, MAX_DECAY))

    @cached_property
    def _merged(self) -> tuple[Columns, Integers]:
        # Groups with equal numbers are merged, so that the solver has fewer variables.
        tables: dict[Hashable, int] = {}
        rows: list[Floats] = []
        numbers = np.empty((len(self.groups), 7))
        numbers[:, 0] = self.decays(self.deadline)
        for position, group in enumerate(self.groups):
            distribution = group.duration
            table = 0
            if distribution.kind == TABLE:
                cached = tables.get(distribution.table_key)
                if cached is None:
                    cached = tables[distribution.table_key] = len(rows)
                    rows.append(distribution.table(float(self.max_copies_per_task)))
                table = cached
            minimum, scale = distribution.shortest, distribution.scale
            if (
                distribution.kind == WEIBULL
                and distribution.shape_parameter == 1.0
                and minimum == 0.0
            ):
                minimum = TIE_SLOPE * scale
            numbers[position, 1:] = (
                minimum, scale, distribution.kind, distribution.shape_parameter, table, group.count,
            )  # fmt: skip
        keys = np.ascontiguousarray(numbers[:, :6]).view(np.dtype((np.void, 6 * 8))).ravel()
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        count = np.bincount(inverse, weights=numbers[:, 6]).astype(np.int64)
        columns = np.ascontiguousarray(numbers[first, :6].T)
        arrays = Columns(
            tasks=count,
            decay=columns[0].copy(),
            minimum=columns[1].copy(),
            scale=columns[2].copy(),
            kind=columns[3].astype(np.int64),
            shape=columns[4].copy(),
            table=columns[5].astype(np.int64),
            tables=np.stack(rows) if rows else np.zeros((1, 2, 3)),
        )
        return arrays, inverse.astype(np.int64)

    @property
    def arrays(self) -> Columns:
        """Merged groups as arrays; equal groups are one."""
        return self._merged[0]

    @property
    def member(self) -> Integers:
        """Merged group that each group belongs to, shape (groups,)."""
        return self._merged[1]


ROUNDING_MARGIN = 1.0 + 1e-12
"""Relative tolerance of the budget of (6), for rounding errors in a sum of logarithms."""

MAX_MACHINES = 10_000_000  # maximum that the search for a sufficient number of machines tries


def miss_terms(decay: Floats, copies: Floats | Integers, relaxed: bool) -> Floats:
    """Return phi of each task, whose sum the budget limits: (6), or (7) if ``relaxed``."""
    h = np.exp(-decay * copies)
    return np.asarray(h if relaxed else -np.log1p(-h))


def add_copies_greedily(
    problem: CloningProblem,
    constraint: DeadlineConstraint,
    machines: int,
    decays: Floats | None = None,
) -> tuple[float, int]:
    """Add copies that reduce the miss probability most; return sum phi and the number of copies.

    Stops when the sum is within the budget, or at ``machines`` copies. In the first case, the
    copies are the fewest that meet the deadline. ``decays`` are those of the problem's groups at
    another deadline.
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
    """Return the earliest deadline, in seconds, that integer copies on the machines can meet."""

    def holds(deadline: float) -> bool:
        decays = problem.decays(deadline)
        if float(decays.min()) <= 0.0:
            return False
        total, _ = add_copies_greedily(problem, constraint, problem.machines, decays)
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
    """Raise `InputError` if no integer copies meet the deadline, with limits that would do."""
    shortest = max(group.duration.shortest for group in problem.groups)
    deadline = format_seconds(problem.deadline)
    reason = ""
    if problem.deadline <= shortest:
        duration = format_seconds(shortest)
        reason = (
            f"{deadline} is not longer than the shortest possible duration of a task, {duration}"
        )
    elif float(problem.arrays.decay.min()) <= 0.0:
        reason = f"a task ends within {deadline} with a probability below 1e-15"
    if reason:
        message = f"{reason}: no number of copies helps"
        raise InputError(Fault("deadline", message, _deadline_advice(problem, constraint)))
    total, _ = add_copies_greedily(problem, constraint, problem.machines)
    if total <= problem.budget * ROUNDING_MARGIN:
        return
    smallest = -math.expm1(-total) if constraint is DeadlineConstraint.EXACT or total < 1 else 1.0
    advice = [_deadline_advice(problem, constraint)]
    reached, used = add_copies_greedily(problem, constraint, MAX_MACHINES)
    if reached <= problem.budget * ROUNDING_MARGIN:
        advice.append(f"machines: {used} (the fewest)")
    rounded = math.ceil(smallest * 1e6) / 1e6
    if rounded < 1.0:
        advice.append(f"miss_probability: {rounded:.6g} (the smallest is {smallest:.6g})")
    message = (
        f"{problem.machines} machines cannot finish {problem.tasks} tasks in {deadline} with a "
        f"miss probability of {problem.miss_probability:g}; with the best numbers of copies it is "
        f"{smallest:.6g}"
    )
    hint = "any one of these would do: " + "; ".join(advice)
    raise InputError(Fault("deadline", message, hint))


def _deadline_advice(problem: CloningProblem, constraint: DeadlineConstraint) -> str:
    smallest = min_feasible_deadline(problem, constraint)
    rounded = math.ceil(smallest * 1e4) / 1e4
    return f"deadline: {rounded:.10g}s (the smallest is {smallest:.8g}s)"
