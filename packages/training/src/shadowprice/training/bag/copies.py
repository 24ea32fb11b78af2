"""Number of copies of each task: stated by the caller, or planned by a planner.

``shadowprice.cloning.copies.CopyPlanner`` is such a planner. It is in the package ``shadowprice``,
because it needs solvers that a job's image doesn't need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from shadowprice.training.errors import TrainingError, checked_integer

_MAX_COPIES: Final = 10**6  # maximum number of copies of a task


class Savings(Protocol):
    """Rule by which idle processes start further copies of running tasks."""

    check_period: float
    """Seconds between two calls of `best` while no task ends."""

    def best(
        self, now: float, running: Sequence[int], start_times: Sequence[Sequence[float]]
    ) -> int | None:
        """Return the position of the task whose next copy saves most; None if none saves anything.

        ``start_times`` are those of the present copies of each of the ``running`` tasks.
        """


class Plan(Protocol):
    """Number of copies of every task, and the result that is expected from them."""

    @property
    def copies(self) -> tuple[int, ...]:
        """Number of copies with which each task starts."""

    @property
    def deadline(self) -> float | None:
        """Seconds within which every task should be done; None without a deadline."""

    @property
    def miss_probability(self) -> float | None:
        """Probability of missing the deadline with these copies; None if unknown."""

    @property
    def machine_seconds(self) -> float | None:
        """Expected machine time; None if unknown."""

    @property
    def savings(self) -> Savings | None:
        """Rule by which idle processes start further copies; None if they start none."""


@runtime_checkable
class CopyStrategy(Protocol):
    """Chooses the number of copies of each task."""

    def plan(
        self, tasks: int, remaining: Sequence[int], processes: int, deadline: float | None
    ) -> Plan:
        """Return a plan for the tasks ``remaining``; at most ``processes`` copies run at once."""


@dataclass(frozen=True)
class StatedPlan:
    """Copies as the caller stated them, without any expectation."""

    copies: tuple[int, ...]
    deadline: float | None = None
    miss_probability: None = None
    machine_seconds: None = None
    savings: None = None


@dataclass(frozen=True)
class StatedCopies:
    """Copies as the caller states them: one number for all tasks, or a number for each task."""

    copies: int | Sequence[int]

    def plan(
        self, tasks: int, remaining: Sequence[int], processes: int, deadline: float | None
    ) -> StatedPlan:
        """Return these copies; raise `TrainingError` unless each task has a positive number."""
        del processes
        stated = self.copies
        each = tuple(stated) if isinstance(stated, Iterable) else (stated,) * tasks
        if len(each) != tasks:
            raise TrainingError(
                f"copies: expected a number, or one for each of {tasks} tasks, got {len(each)}"
            )
        numbers = [checked_integer("copies", number, 1, _MAX_COPIES) for number in each]
        return StatedPlan(tuple(numbers[task] for task in remaining), deadline)
