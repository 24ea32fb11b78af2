"""The problem CSD: groups of tasks, and the arrays that its kernels take."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.distributions.parametric import Distribution
from shadowprice.kernels.cloning.columns import Columns
from shadowprice.kernels.cloning.kinds import TABLE, WEIBULL

MAX_DECAY = 700.0
"""Decay above which a miss is impossible in double precision: e^-700."""

MIN_DECAY = 2.0**-52
"""Decay below which a task can't finish in time: its miss probability rounds to 1."""

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
    """(7): necessary for (6), not sufficient."""


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

    groups: tuple[TaskGroup, ...]
    """Groups of tasks."""
    machines: int
    """Number M of machines, each with room for one task."""
    deadline: float
    """T_d in seconds."""
    miss_probability: float
    """Epsilon in (0, 1)."""

    def __init__(
        self, groups: Sequence[TaskGroup], machines: int, deadline: float, miss_probability: float
    ) -> None:
        object.__setattr__(self, "groups", tuple(groups))
        object.__setattr__(self, "machines", int(machines))
        object.__setattr__(self, "deadline", float(deadline))
        object.__setattr__(self, "miss_probability", float(miss_probability))
        faults = self._faults()
        if faults:
            raise InputError(faults)

    def _faults(self) -> list[Fault]:
        faults = []
        if not self.groups:
            faults.append(Fault("tasks", "must not be empty", "add at least one group"))
        for position, group in enumerate(self.groups):
            if group.count < 1:
                faults.append(
                    Fault(f"tasks[{position}].count", f"{group.count} tasks", "write 1 or more")
                )
        if not 0.0 < self.miss_probability < 1.0:
            faults.append(
                Fault(
                    "miss_probability",
                    f"{self.miss_probability:g} is outside (0, 1)",
                    "write for example 0.05: no number of copies never misses, and 1 asks nothing",
                )
            )
        if not self.deadline > 0.0 or not math.isfinite(self.deadline):
            faults.append(Fault("deadline", "is not a positive time", "write for example 60s"))
        if self.machines < self.tasks:
            faults.append(
                Fault(
                    "machines",
                    f"{self.machines} machines for {self.tasks} tasks: the light regime starts "
                    "every task at once",
                    f"give at least {self.tasks} machines, or run the tasks in waves: "
                    "shadowprice cloning waves",
                )
            )
        return faults

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
        """Largest number of copies of one task if every other task has one."""
        return self.machines - self.tasks + 1

    def decays(self, deadline: float) -> Floats:
        """Return a = -ln S(deadline) of each group, limited where a miss is impossible.

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
