"""Refusals: the main reason why a job wasn't admitted, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from shadowprice.core.errors import ShadowpriceError


class RefusalReason(Enum):
    """The main reason of a refusal."""

    NEVER_FITS = "never-fits"
    """The servers can't run the job, even in an empty cluster."""
    TOO_LATE = "too-late"
    """The job can't complete before the end of the timespan or of the planner's horizon."""
    NO_ROOM = "no-room"
    """Free capacity doesn't suffice in any window that would complete the job."""
    PRICE = "price"
    """The job's utility is below the price of its resources."""
    NO_VALUE = "no-value"
    """The job's utility is 0 by the time it could complete."""
    DEADLINE = "deadline"
    """The deadline has passed, or no number of copies meets it with the required probability."""
    POLICY = "policy"
    """A rule of the policy, which the message names."""
    SERVER_LOST = "server-lost"
    """A server was lost, and the job's remaining work couldn't be replanned."""
    TIME_LIMIT = "time-limit"
    """The job ran for as long as its owner or the operator allows."""
    FAILED = "failed"
    """The job failed more often than it was allowed to."""
    CANCELLED = "cancelled"
    """The owner cancelled the job."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The main reason of a refusal, one sentence for the user, and numbers.

    ``value`` and ``cost`` are utility and price at the best completion slot that was found.
    ``bottleneck`` is the first obstacle, such as ``gpu of worker servers from slot 3 to 9``.
    """

    reason: RefusalReason
    message: str
    value: float | None = None
    cost: float | None = None
    completion: int | None = None
    bottleneck: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        """Return the refusal as plain values, without unknown ones."""
        record: dict[str, object] = {"code": self.reason.value, "message": self.message}
        for name in ("value", "cost", "completion", "bottleneck"):
            if getattr(self, name) is not None:
                record[name] = getattr(self, name)
        if self.numbers:
            record["numbers"] = dict(self.numbers)
        return record


class RevisionRefusedError(ShadowpriceError):
    """A revision asks for more than a policy admits; the job stays as it was."""

    code = "refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
