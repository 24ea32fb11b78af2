"""The actual speed of placed jobs in the simulator."""

from __future__ import annotations

from typing import ClassVar, Protocol

from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement


class ExecutionModel(Protocol):
    """Progress that a placement makes per slot.

    If a model's attribute ``steady`` exists and is true, a placement makes the same progress in
    every slot. So it is computed only once.
    """

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return a job's progress in a slot; ``moved`` if it restarts at the slot's start."""


class ExactExecution:
    """Jobs run at their declared rates: the internal rate on one server, else the external rate."""

    steady: ClassVar = True

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the declared progress of the placement, less the restart cost."""
        del slot
        return job.gain(placement.total_workers, colocated=placement.colocated, moved=moved)
