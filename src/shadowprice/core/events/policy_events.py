"""What the engine tells a policy: what it may decide about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shadowprice.core.events.driver_events import (
    CapacityChanged,
    JobCancelled,
    JobRevised,
    JobsArrived,
    ServerBack,
    ServerLost,
    SlotBegan,
    TimespanChanged,
)


@dataclass(frozen=True, slots=True)
class JobsFinished:
    """Jobs completed in the slot before ``slot``; what they held is released."""

    tag: ClassVar[str] = "JobsFinished"

    slot: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobsDisplaced:
    """Admitted jobs lost their plan or placement and must be planned again, or dropped.

    Parameters
    ----------
    slot : int
        First slot in which they could run again.
    jobs : tuple of str
        The jobs, in the order in which they were admitted.
    server : int or None
        Row of the server whose loss displaced them; None where a plan is not enough for the work
        that remains, could not be started, or reaches past the end of the timespan.
    """

    tag: ClassVar[str] = "JobsDisplaced"

    slot: int
    jobs: tuple[str, ...]
    server: int | None


@dataclass(frozen=True, slots=True)
class PlansFellShort:
    """Plans of admitted jobs ended, or cannot complete the work that remains.

    The jobs still hold what is left of their plans. The policy extends each plan, moves the job, or
    drops it.

    Parameters
    ----------
    slot : int
        First slot that can still be decided.
    jobs : tuple of str
        The jobs, in order of arrival.
    """

    tag: ClassVar[str] = "PlansFellShort"

    slot: int
    jobs: tuple[str, ...]


PolicyEvent = (
    JobsArrived
    | SlotBegan
    | JobsFinished
    | JobsDisplaced
    | PlansFellShort
    | JobCancelled
    | JobRevised
    | ServerLost
    | ServerBack
    | CapacityChanged
    | TimespanChanged
)
