"""Events from the engine to a policy."""

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
    """Jobs completed in the slot before ``slot``; their reservations are released."""

    tag: ClassVar[str] = "JobsFinished"

    slot: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobsDisplaced:
    """Admitted jobs, in order of arrival, lost their placement and must be replanned or dropped.

    ``slot`` is the first slot in which they could run again. ``server`` is the row of the server
    whose loss displaced them. It is None for other causes: a plan that falls short, a failed start,
    changed servers, or the end of the timespan.
    """

    tag: ClassVar[str] = "JobsDisplaced"

    slot: int
    jobs: tuple[str, ...]
    server: int | None


@dataclass(frozen=True, slots=True)
class PlansFellShort:
    """Plans of admitted jobs ended, or can't complete the remaining work; in order of arrival.

    The jobs still hold the remaining slots of their plans. The policy extends each plan, moves the
    job, or drops it.
    """

    tag: ClassVar[str] = "PlansFellShort"

    slot: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LengthsRevised:
    """Open jobs have more work than was stated so far; placements and plans stay in force.

    The view has the new descriptions. Plans that don't suffice any more follow in `PlansFellShort`.
    """

    tag: ClassVar[str] = "LengthsRevised"

    slot: int
    jobs: tuple[str, ...]


PolicyEvent = (
    JobsArrived
    | SlotBegan
    | JobsFinished
    | JobsDisplaced
    | PlansFellShort
    | LengthsRevised
    | JobCancelled
    | JobRevised
    | ServerLost
    | ServerBack
    | CapacityChanged
    | TimespanChanged
)
