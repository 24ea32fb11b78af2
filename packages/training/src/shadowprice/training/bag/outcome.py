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


class CopyEnding(StrEnum):
    """How one copy ended."""

    WON = "won"
    """The first copy of its task to end."""
    CANCELLED = "cancelled"
    """Killed because another copy won."""
    FAILED = "failed"
    """Raised an exception, or its process died."""


@dataclass(frozen=True, slots=True)
class Try:
    """A copy that ended; ``started`` is in seconds since the bag's beginning."""

    task: int
    copy: int
    started: float
    seconds: float
    ending: CopyEnding
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a bag."""

    tasks: int
    done: int  # finished tasks, also of earlier runs
    failed: int  # abandoned tasks
    waiting: int  # tasks not yet started
    copies: int  # running copies
    failures: int  # copies that failed so far
    seconds: float  # since the bag's beginning


@dataclass(frozen=True)
class BagResult:
    """Result of a bag; ``ends`` and ``seconds`` are in seconds since its beginning."""

    values: Mapping[int, Any]  # results of the finished tasks
    failed: Mapping[int, TaskFailedError]  # abandoned tasks
    tasks: int  # number of all tasks
    ends: Mapping[int, float]  # end of each finished task, except those of earlier runs
    seconds: float  # end of the last task
    plan: Plan
    tries: tuple[Try, ...]  # every copy that ran, in the order of their ends

    @property
    def results(self) -> list[Any]:
        """Every task's result, in order; raises the first `TaskFailedError`, if any."""
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
