"""Progress and result of a bag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shadowprice.training.bag.copies import Plan
from shadowprice.training.errors import TrainingError


class TaskFailedError(TrainingError):
    """A task failed more often than its retries allow; finished tasks keep their results.

    ``task`` is the index of the task. ``failures`` counts its failures, and ``reason`` describes
    the last one: the end of a traceback, or how its process died.
    """

    def __init__(self, task: int, failures: int, reason: str) -> None:
        self.task = task
        self.failures = failures
        self.reason = reason
        often = "once" if failures == 1 else f"{failures} times"
        super().__init__(f"task {task} failed {often}: {reason}")


class Ending(StrEnum):
    """How one copy ended."""

    WON = "won"
    """The first copy of its task to end."""
    CANCELLED = "cancelled"
    """Killed because another copy won."""
    FAILED = "failed"
    """Raised an exception, or its process died."""


@dataclass(frozen=True, slots=True)
class Try:
    """One copy that ran; ``started`` is in seconds since the bag's beginning."""

    task: int
    copy: int
    started: float
    seconds: float
    ending: Ending
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a bag.

    Parameters
    ----------
    tasks, done, failed, waiting : int
        All tasks, finished ones (in earlier runs too), abandoned ones, and those not yet started.
    copies : int
        Copies that run now.
    failures : int
        Copies that failed so far.
    seconds : float
        Time since the bag's beginning.
    """

    tasks: int
    done: int
    failed: int
    waiting: int
    copies: int
    failures: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Result of a bag.

    Parameters
    ----------
    values : mapping of int to object
        Results of the finished tasks.
    failed : mapping of int to TaskFailedError
        Abandoned tasks.
    tasks : int
        Number of all tasks.
    ends : mapping of int to float
        End of each task in seconds since the bag's beginning; without tasks of earlier runs.
    seconds : float
        End of the last task, in the same time.
    plan : Plan
        Planned copies, and what they promised.
    tries : tuple of Try
        Every copy that ran, in the order of their ends.
    """

    values: Mapping[int, Any]
    failed: Mapping[int, TaskFailedError]
    tasks: int
    ends: Mapping[int, float]
    seconds: float
    plan: Plan
    tries: tuple[Try, ...]

    @property
    def results(self) -> list[Any]:
        """Every task's result, in the order of the tasks.

        Raises
        ------
        TaskFailedError
            The first error, if a task was abandoned.
        """
        if self.failed:
            raise self.failed[min(self.failed)]
        return [self.values[task] for task in range(self.tasks)]

    @property
    def missed(self) -> bool:
        """Whether the deadline passed before every task was done."""
        deadline = self.plan.deadline
        return deadline is not None and (self.seconds > deadline or bool(self.failed))

    @property
    def machine_seconds(self) -> float:
        """Total running time of all copies, in seconds."""
        return sum(attempt.seconds for attempt in self.tries)
