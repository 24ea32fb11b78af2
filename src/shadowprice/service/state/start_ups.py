"""Start-up times of jobs, compared with the length of a slot.

A start-up lasts from the start of a generation's slot until the job works. If its reports don't
show its first mini-batches, it counts as working once its process runs. If slots are short in
comparison, jobs occupy servers without working, and promises break.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from statistics import median
from typing import Any, Final

from shadowprice.core.amounts import format_seconds
from shadowprice.core.job import MICRO, Job
from shadowprice.core.schedule import Placement

KEY: Final = "start-ups"  # key of the start-ups in the store
NEWEST: Final = 20  # number of start-ups that the median covers
MIN_START_UPS: Final = 3  # minimum number of start-ups for a median
MAX_SHARE: Final = 0.1  # share of a slot above which start-ups are too long
CLEARED_SHARE: Final = 0.08  # share at which the warning ends; lower, so that it doesn't flap
CODE: Final = "slot-too-short"  # code of the warning


@dataclass(frozen=True, slots=True)
class StartUp:
    """Start-up of one generation: seconds until its process ran, and until the job worked."""

    job: str
    generation: int
    process: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StartUps:
    """The newest start-ups, oldest first, and whether slots are too short for them."""

    newest: tuple[StartUp, ...] = ()
    too_long: bool = False

    @property
    def median(self) -> float | None:
        """The median in seconds; None if there are too few start-ups."""
        seconds = [start_up.seconds for start_up in self.newest]
        return median(seconds) if len(seconds) >= MIN_START_UPS else None

    def find(self, job: str, generation: int) -> StartUp | None:
        """Return the start-up of a generation, if it is among the newest."""
        key = (job, generation)
        return next((item for item in self.newest if (item.job, item.generation) == key), None)

    def with_start_up(self, start_up: StartUp, slot_seconds: float) -> StartUps:
        """Return the start-ups with a new one, which replaces an earlier one of its generation."""
        previous = self.find(start_up.job, start_up.generation)
        others = [item for item in self.newest if item is not previous]
        after = StartUps((*others, start_up)[-NEWEST:])
        limit = (CLEARED_SHARE if self.too_long else MAX_SHARE) * slot_seconds
        return replace(after, too_long=after.median is not None and after.median > limit)

    def warning(self, slot_seconds: float) -> dict[str, Any] | None:
        """Return the warning with its numbers; None if slots are long enough."""
        seconds = self.median
        if not self.too_long or seconds is None:
            return None
        needed = math.ceil(10 * seconds)  # a start-up is `MAX_SHARE` of such a slot
        message = (
            f"starting a job takes {format_seconds(seconds)} (median of the newest "
            f"{len(self.newest)}), {seconds / slot_seconds:.0%} of a slot of {slot_seconds:g} s; "
            f"make jobs start faster, or begin with new data and slots of {needed} s or more"
        )
        numbers = {"start_up_seconds": seconds, "slot_seconds": slot_seconds}
        return {"code": CODE, "message": message, **numbers, "needed_seconds": needed}

    def stored(self) -> str:
        """Serialize the start-ups for the store."""
        rows = [astuple(start_up) for start_up in self.newest]
        return json.dumps({"newest": rows, "too_long": self.too_long})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StartUps:
        """Return the start-ups of a stored record; none if it is empty."""
        newest = tuple(StartUp(*row) for row in record.get("newest", ()))
        return cls(newest, record.get("too_long", False))


def stated_seconds(job: Job, placement: Placement, micro: float, slot_seconds: float) -> float:
    """Return the estimated seconds for millionths of a mini-batch in a placement."""
    workers = placement.total_workers
    if job.required != job.work * MICRO and not job.predicted:
        # A progress unit is a worker-slot, which is too coarse for a few mini-batches.
        return micro / MICRO * job.step_seconds / workers
    units = micro * job.required / (job.work * MICRO)
    return units / job.gain(workers, colocated=placement.colocated) * slot_seconds
