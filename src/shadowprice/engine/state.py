"""What the engine remembers of every job."""

from __future__ import annotations

from dataclasses import dataclass

from shadowprice.core.job import Job
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
    refusal : Refusal or None
        Why it was rejected, dropped or cancelled.
    order : int
        Position among all arrivals.
    """

    job: Job
    order: int
    status: Status = Status.ARRIVED
    progress: int = 0
    started: int | None = None
    completion: int | None = None
    plan: Schedule = EMPTY
    placement: Placement | None = None
    refusal: Refusal | None = None

    @property
    def remaining(self) -> int:
        """Progress units still to make."""
        return max(0, self.job.required - self.progress)

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
        if self.placement is not None:
            parts.append(f"standing on servers {list(self.placement.servers)}")
        return f"job {self.job.name!r} ({'; '.join(parts)})"
