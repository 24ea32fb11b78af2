"""What a bag tells while it runs, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shadowprice.core.errors import ShadowpriceError
from shadowprice.training.bag.planning import Plan


class TaskFailedError(ShadowpriceError):
    """A task failed more often than it may; what else was done is done.

    Parameters
    ----------
    task : int
        Its place in the list, from 0 on.
    failures : int
        How often it failed.
    reason : str
        The last failure: the end of a traceback, or how its process died.
    """

    code = "task"

    def __init__(self, task: int, failures: int, reason: str) -> None:
        self.task = task
        self.failures = failures
        self.reason = reason
        often = "once" if failures == 1 else f"{failures} times"
        super().__init__(f"task {task} failed {often}: {reason}")


class Ending(StrEnum):
    """How one copy ended."""

    WON = "won"
    """It was the first of its task to end."""
    CANCELLED = "cancelled"
    """Another was, and it was killed."""
    FAILED = "failed"
    """It raised, or died."""


@dataclass(frozen=True, slots=True)
class Try:
    """One copy that ran.

    Parameters
    ----------
    task, copy : int
        Which copy of which task.
    started, seconds : float
        When it began, since the bag's beginning, and how long it ran.
    ending : Ending
        How it ended.
    reason : str
        Why it failed, empty otherwise.
    """

    task: int
    copy: int
    started: float
    seconds: float
    ending: Ending
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a bag is.

    Parameters
    ----------
    tasks, done, failed, waiting : int
        Tasks in all, those done (in earlier runs too), given up, and not begun.
    copies : int
        Copies that run now.
    failures : int
        Copies that failed so far.
    seconds : float
        Since the bag's beginning.
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
    """What a bag leaves.

    Parameters
    ----------
    values : mapping of int to object
        Results of the tasks that are done.
    failed : mapping of int to TaskFailedError
        Tasks that were given up.
    tasks : int
        Tasks in all.
    ends : mapping of int to float
        When each task ended, seconds since the bag's beginning; tasks of earlier runs have none.
    seconds : float
        When the last one did.
    plan : Plan
        Copies that were planned, and what they promised.
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
            If a task was given up: the first of these.
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
        """Seconds that processes ran, over all copies."""
        return sum(one.seconds for one in self.tries)
