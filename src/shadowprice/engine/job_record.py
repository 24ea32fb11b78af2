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
    (Status.QUEUED, Status.FINISHED): "`SlotEnded`, `JobEnded` of a displaced or paused job",
    (Status.QUEUED, Status.FAILED): "`JobFailed` of a displaced or paused job",
    (Status.ADMITTED, Status.QUEUED): "`Pause`, displaced, or its promise was withdrawn",
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

    Four fields are about starts. ``started`` is the first slot in which the job ran, and
    ``last_start`` the number of its last Start command. The newest generation's command is due in
    ``generation_slot``, and its processes run since ``running_since``.
    """

    job: Job
    order: int  # position among all arrivals
    status: Status = Status.ARRIVED
    progress: int = 0  # completed progress units
    started: int | None = None  # first slot in which it ran
    completion: int | None = None  # slot in which it completed
    plan: Schedule = EMPTY_SCHEDULE  # the committed schedule in force, including past slots
    placement: Placement | None = None  # if the policy places slot by slot
    promise: int | None = None  # completion slot promised by a policy that doesn't commit plans
    refusal: Refusal | None = None  # why it was refused, dropped or cancelled
    plans: int = 0  # number of committed plans
    copies: tuple[TaskCopies, ...] = ()  # of a bag: copies of its tasks in the current plan
    unfinished: list[int] = field(default_factory=list)  # unfinished tasks, by entry of `copies`
    finished: list[int] = field(default_factory=list)  # finished tasks of a bag, by group
    measured: int = 0  # reported progress, in millionths of a mini-batch
    generation: int = 0  # number of the newest generation, 0 before the first
    failures: int = 0  # number of failed generations
    last_start: int = 0  # number of its last Start command, by which running jobs are sorted
    commitment: int = 0  # number of its plan among all plans, by which jobs in a slot are sorted
    generation_plan: int = 0  # number of the plan of the newest generation
    resumed_at: int = 0  # `measured` when the newest generation began; -1 if it ended by itself
    resumed_before: int = -1  # `resumed_at` of the previous generation if a command stopped it
    lost: int = 0  # maximum of `measured` that a generation had to repeat
    generation_slot: int = 0  # slot of the newest generation's Start or Resize command
    running_since: int = -1  # slot in which its processes began to run, -1 before
    # Slots that earlier generations ran, since the last one that ended by itself:
    earlier_slots: int = 0
    earlier_share: float = 0.0  # these slots over the job's stated duration; may exceed 1

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
        pairs = zip(self.unfinished, self.copies, strict=True)
        return sum(remaining * entry.copies for remaining, entry in pairs)

    @property
    def remaining(self) -> int:
        """Progress units that remain, at least 1: an open job needs a slot, even with all done."""
        return max(1, self.job.required - self.progress)

    def units(self, micro: int) -> int:
        """Convert measured progress, in millionths of a mini-batch, to the job's progress units."""
        return micro * self.job.required // (self.job.work * MICRO)

    def slots_run(self, slot: int) -> int:
        """Return the slots that the newest generation has run before a slot, after its start-up."""
        return slot - self.running_since if self.running_since >= 0 else 0

    def stated_slots(self, placement: Placement) -> int:
        """Return the slots that all of the job's work takes in a placement, at its speed there."""
        gain = self.job.gain(placement.total_workers, colocated=placement.colocated)
        return -(-self.job.required // gain)

    def values(self) -> tuple[Any, ...]:
        """Return all fields for rollback; an event must replace lists, never change them."""
        return _VALUES(self)

    def restore(self, values: tuple[Any, ...]) -> None:
        """Restore the result of `values`."""
        for name, value in zip(_FIELDS, values, strict=True):
            setattr(self, name, value)

    def copy(self) -> JobRecord:
        """Return an independent copy."""
        copy = JobRecord(*_VALUES(self))
        copy.unfinished, copy.finished = list(self.unfinished), list(self.finished)
        return copy

    def check_transition(self, status: Status) -> None:
        """Raise PolicyError if `TRANSITIONS` has no change to this status."""
        if (self.status, status) not in TRANSITIONS:
            allowed = [after.value for before, after in TRANSITIONS if before is self.status]
            raise self.error(f"cannot become {status.value}, only {', '.join(allowed) or 'none'}")

    def error(self, problem: str) -> PolicyError:
        """Return the error of a decision that breaks a rule, with the job's history."""
        return PolicyError(f"{self.describe()}: {problem}")

    def describe(self) -> str:
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
            parts.append(f"placed on servers {list(self.placement.servers)}")
        return f"job {self.job.name!r} ({'; '.join(parts)})"


_FIELDS: Final = tuple(JobRecord.__slots__)
_VALUES: Final = attrgetter(*_FIELDS)
