"""How fast placed jobs really run in the simulator."""

from __future__ import annotations

from typing import ClassVar, Protocol

from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement


class ExecutionModel(Protocol):
    """What a slot of a placement yields.

    A model with a true attribute ``steady`` yields the same in every slot: it is asked once a
    placement.
    """

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the progress units that a job makes in a slot; ``moved``: it restarted first."""
        ...


class ExactExecution:
    """Every job runs at the rate it declares: internal on one machine, else external."""

    steady: ClassVar = True

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the declared gain of the placement, less what a restart costs."""
        del slot
        return job.gain(placement.total_workers, colocated=placement.colocated, moved=moved)
