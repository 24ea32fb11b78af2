"""What the engine remembers of every job."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from shadowprice.core.bag import TaskCopies
from shadowprice.core.job import MICRO, Job
from shadowprice.core.policy import Status
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import EMPTY, Placement, Schedule


@dataclass(slots=True, eq=False)
class JobRecord:
    """One job's life so far; policies see it through `core.policy.JobState`.

    Parameters
    ----------
    job : Job
        The job.
    status : Status
        Where it is.
    progress : int
        Progress units made.
    started, completion : int or None
        First slot in which it ran, and the slot in which it completed.
    plan : Schedule
        The committed schedule in force, past slots included.
    placement : Placement or None
        Where it stands, for policies that place slot by slot.
    promise : int or None
        Slot by whose end its completion is promised, by a policy that plans without committing.
    refusal : Refusal or None
        Why it was refused, dropped or cancelled.
    order : int
        Position among all arrivals.
    plans : int
        Times that it was committed.
    copies : tuple of TaskCopies
        Of a bag: the copies that the plan in force gave to the tasks that remained then.
    left : list of int
        Of a bag: tasks that are not finished, by entry of ``copies``.
    finished : list of int
        Of a bag: finished tasks by group.
    measured : int
        Progress that it reported, in millionths of a mini-batch.
    generation : int
        Number of its newest placement, 0 before the first.
    failures : int
        Generations that failed.
    began : int
        Number of the command that started it the last time; what runs is ordered by it.
    committed : int
        Number of the plan in force among all plans of the engine; slots are ordered by it.
    following : int
        Number of the plan that the newest generation follows.
    resumed_at : int
        ``measured`` when the newest generation began; -1 once that generation ended by itself.
    resumed_before : int
        ``resumed_at`` of the generation before, if an order stopped that one; otherwise -1.
    lost : int
        The most of ``measured`` that a generation had to repeat.
    generation_slot : int
        Slot in which the newest generation began.
    """

    job: Job
    order: int
    status: Status = Status.ARRIVED
    progress: int = 0
    started: int | None = None
    completion: int | None = None
    plan: Schedule = EMPTY
    placement: Placement | None = None
    promise: int | None = None
    refusal: Refusal | None = None
    plans: int = 0
    copies: tuple[TaskCopies, ...] = ()
    left: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    measured: int = 0
    generation: int = 0
    failures: int = 0
    began: int = 0
    committed: int = 0
    following: int = 0
    resumed_at: int = 0
    resumed_before: int = -1
    lost: int = 0
    generation_slot: int = 0

    @property
    def tasks_left(self) -> tuple[int, ...]:
        """Tasks of a bag that are not finished, by group; empty for other jobs."""
        if self.job.bag is None:
            return ()
        done = self.finished or [0] * len(self.job.bag.groups)
        return tuple(
            group.count - number for group, number in zip(self.job.bag.groups, done, strict=True)
        )

    @property
    def copies_running(self) -> int:
        """Copies of a bag's unfinished tasks that it has places for, at most; 0 where none run."""
        if self.placement is None and not len(self.plan):
            return 0
        pairs = zip(self.left, self.copies, strict=True)
        return sum(left * entry.copies for left, entry in pairs)

    @property
    def remaining(self) -> int:
        """Progress units still to make."""
        return max(0, self.job.required - self.progress)

    def units(self, micro: int) -> int:
        """Return measured progress, in millionths of a mini-batch, in the job's own units."""
        return micro * self.job.required // (self.job.work * MICRO)

    def values(self) -> tuple[Any, ...]:
        """Return everything that it holds; lists are replaced, not changed, while it matters."""
        return _VALUES(self)

    def put_back(self, values: tuple[Any, ...]) -> None:
        """Let it hold what `values` gave."""
        for name, value in zip(_FIELDS, values, strict=True):
            setattr(self, name, value)

    def copy(self) -> JobRecord:
        """Return a record that changes on its own from now on."""
        made = JobRecord(*_VALUES(self))
        made.left, made.finished = list(self.left), list(self.finished)
        return made

    def story(self) -> str:
        """Return one line that tells a reader what happened to the job."""
        parts = [
            f"arrived in slot {self.job.arrival}",
            self.status.value,
            f"progress {self.progress} of {self.job.required}",
        ]
        if self.started is not None:
            parts.append(f"ran first in slot {self.started}")
        if len(self.plan):
            parts.append(f"planned for slots {self.plan.start}..{self.plan.completion}")
        if self.promise is not None:
            parts.append(f"promised for slot {self.promise}")
        if self.placement is not None:
            parts.append(f"standing on servers {list(self.placement.servers)}")
        return f"job {self.job.name!r} ({'; '.join(parts)})"


_FIELDS: Final = tuple(JobRecord.__slots__)
_VALUES: Final = attrgetter(*_FIELDS)
