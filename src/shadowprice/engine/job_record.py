"""The engine's record of a job, and the transitions of its life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from shadowprice.core.bag import TaskCopies
from shadowprice.core.errors import PolicyError
from shadowprice.core.job import MICRO, Job
from shadowprice.core.policy import Status
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import EMPTY_SCHEDULE, Placement, Schedule

TRANSITIONS: Final[Mapping[tuple[Status, Status], str]] = {
    (Status.ARRIVED, Status.QUEUED): "`Queue`, `Displace`",
    (Status.ARRIVED, Status.ADMITTED): "`Commit`, `Place`, `Promise`",
    (Status.ARRIVED, Status.REFUSED): "`Reject`, or the job can never run",
    (Status.ARRIVED, Status.DROPPED): "`Drop`",
    (Status.QUEUED, Status.ADMITTED): "`Commit`, `Place`, `Promise`",
    (Status.QUEUED, Status.REFUSED): "`Reject`",
    (Status.QUEUED, Status.DROPPED): "`Drop`",
    (Status.QUEUED, Status.CANCELLED): "`JobCancelled`",
    (Status.QUEUED, Status.FINISHED): "`SlotEnded`, `JobEnded` of a displaced job that still ran",
    (Status.QUEUED, Status.FAILED): "`JobFailed` of a displaced job that still ran",
    (Status.ADMITTED, Status.QUEUED): "displaced, or its promise was withdrawn",
    (Status.ADMITTED, Status.DROPPED): "`Drop`",
    (Status.ADMITTED, Status.CANCELLED): "`JobCancelled`",
    (Status.ADMITTED, Status.FINISHED): "`SlotEnded`, `JobEnded`",
    (Status.ADMITTED, Status.FAILED): "`JobFailed`, more often than its retries",
}
"""All changes of a job's status, with the decision or event that causes each.

A job is `ARRIVED` only while the event of its arrival is handled.
"""


@dataclass(slots=True, eq=False)
class JobRecord:
    """The mutable state of one job; policies see it as `core.policy.JobState`.

    Parameters
    ----------
    job : Job
        The job.
    status : Status
        Its lifecycle status.
    progress : int
        Progress units completed.
    started, completion : int or None
        First slot in which it ran, and the slot in which it completed.
    plan : Schedule
        The committed schedule in force, including past slots.
    placement : Placement or None
        Current placement, if the policy places slot by slot.
    promise : int or None
        Slot by whose end completion is promised, by a policy that plans without committing.
    refusal : Refusal or None
        Why it was refused, dropped or cancelled.
    order : int
        Position among all arrivals.
    plans : int
        Number of plans that were committed.
    copies : tuple of TaskCopies
        Of a bag: the copies that the current plan gave to the tasks that then remained.
    left : list of int
        Of a bag: unfinished tasks, by entry of ``copies``.
    finished : list of int
        Of a bag: finished tasks by group.
    measured : int
        Reported progress, in millionths of a mini-batch.
    generation : int
        Number of the newest generation, 0 before the first.
    failures : int
        Number of failed generations.
    began : int
        Number of its last Start command; running jobs are sorted by it.
    committed : int
        Number of the current plan among all plans of the engine; jobs in a slot are sorted by it.
    following : int
        Number of the plan of the newest generation.
    resumed_at : int
        ``measured`` when the newest generation began; -1 once it has ended without a command.
    resumed_before : int
        ``resumed_at`` of the previous generation if a command stopped it, otherwise -1.
    lost : int
        Maximum of ``measured`` that a generation had to repeat.
    generation_slot : int
        Slot in which the newest generation began.
    running_since : int
        Slot in which the processes of the newest generation began to run, -1 before.
    earlier_slots : int
        Slots that earlier generations ran, since the last one that ended without a command.
    earlier_share : float
        The same in multiples of the job's stated duration.
    """

    job: Job
    order: int
    status: Status = Status.ARRIVED
    progress: int = 0
    started: int | None = None
    completion: int | None = None
    plan: Schedule = EMPTY_SCHEDULE
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
    running_since: int = -1
    earlier_slots: int = 0
    earlier_share: float = 0.0

    @property
    def tasks_left(self) -> tuple[int, ...]:
        """Unfinished tasks of a bag, by group; empty for other jobs."""
        if self.job.bag is None:
            return ()
        finished = self.finished or [0] * len(self.job.bag.groups)
        return tuple(
            group.count - number
            for group, number in zip(self.job.bag.groups, finished, strict=True)
        )

    @property
    def copies_running(self) -> int:
        """Maximum number of running copies of a bag's unfinished tasks; 0 if it doesn't run."""
        if self.placement is None and not len(self.plan):
            return 0
        pairs = zip(self.left, self.copies, strict=True)
        return sum(left * entry.copies for left, entry in pairs)

    @property
    def remaining(self) -> int:
        """Progress units that remain."""
        return max(0, self.job.required - self.progress)

    def units(self, micro: int) -> int:
        """Convert measured progress, in millionths of a mini-batch, to the job's progress units."""
        return micro * self.job.required // (self.job.work * MICRO)

    def slots_run(self, slot: int) -> int:
        """Return the slots that the newest generation has run before a slot.

        A start that takes long, such as the pull of an image, doesn't count.
        """
        return slot - self.running_since if self.running_since >= 0 else 0

    def stated_slots(self, placement: Placement) -> int:
        """Return the slots that the whole job takes in a placement, at its measured speed."""
        gain = self.job.gain(placement.total_workers, colocated=placement.colocated)
        return -(-self.job.required // gain)

    def values(self) -> tuple[Any, ...]:
        """Return all values for rollback; within an event, lists must be replaced, not changed."""
        return _VALUES(self)

    def restore(self, values: tuple[Any, ...]) -> None:
        """Restore the result of `values`."""
        for name, value in zip(_FIELDS, values, strict=True):
            setattr(self, name, value)

    def copy(self) -> JobRecord:
        """Return an independent copy."""
        copy = JobRecord(*_VALUES(self))
        copy.left, copy.finished = list(self.left), list(self.finished)
        return copy

    def check_transition(self, status: Status) -> None:
        """Raise PolicyError if `TRANSITIONS` has no change to this status."""
        if (self.status, status) not in TRANSITIONS:
            allowed = [after.value for before, after in TRANSITIONS if before is self.status]
            raise PolicyError(
                f"{self.story()}: cannot become {status.value}, only {', '.join(allowed) or 'none'}"
            )

    def story(self) -> str:
        """Return the job's history in one line, for messages."""
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
