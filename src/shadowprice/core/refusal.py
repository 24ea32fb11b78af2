"""Why a job was not admitted: one dominant reason and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Reason(Enum):
    """The dominant reason of a refusal."""

    NEVER_FITS = "never-fits"
    """No server, or not enough of them, could carry the job even in an empty cluster."""
    TOO_LATE = "too-late"
    """The job cannot complete before the end of the timespan or of the planner's horizon."""
    NO_ROOM = "no-room"
    """The cluster is too full in every window that would complete the job."""
    PRICE = "price"
    """The job is worth less than the resources it would use."""
    NO_VALUE = "no-value"
    """Nothing is left of the job's utility by the time it could complete."""
    DEADLINE = "deadline"
    """No number of copies meets the deadline of a bag often enough, or it has passed."""
    POLICY = "policy"
    """A rule of the policy, told in the message."""
    SERVER_LOST = "server-lost"
    """What remained of the job could not be kept after a server was lost."""
    FAILED = "failed"
    """It ran and failed, once more than it was allowed to."""
    CANCELLED = "cancelled"
    """Its owner withdrew it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason with the numbers behind it.

    Parameters
    ----------
    reason : Reason
        The dominant reason.
    message : str
        One sentence for a person.
    value : float, optional
        Utility at the best completion slot found.
    cost : float, optional
        What the job would have paid for it.
    completion : int, optional
        That completion slot.
    bottleneck : str, optional
        The first thing in the way, such as ``gpu of worker servers from slot 3 to 9``.
    numbers : mapping of str to float
        Anything else worth showing.
    """

    reason: Reason
    message: str
    value: float | None = None
    cost: float | None = None
    completion: int | None = None
    bottleneck: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        """Return the refusal as plain values, without what is unknown."""
        record: dict[str, object] = {"code": self.reason.value, "message": self.message}
        for name in ("value", "cost", "completion", "bottleneck"):
            if getattr(self, name) is not None:
                record[name] = getattr(self, name)
        if self.numbers:
            record["numbers"] = dict(self.numbers)
        return record
