"""True speed of placed jobs in the simulator."""

from __future__ import annotations

from typing import ClassVar, Protocol

from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement


class ExecutionModel(Protocol):
    """Progress that a placement makes per slot.

    If a model has a true attribute ``steady``, the progress is the same in every slot, and is
    computed once per placement.
    """

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the progress units of a job in a slot; ``moved``: it restarted at its start."""


class ExactExecution:
    """Jobs run at their declared rate: internal on one server, otherwise external."""

    steady: ClassVar = True

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the declared progress of the placement, less the restart cost."""
        del slot
        return job.gain(placement.total_workers, colocated=placement.colocated, moved=moved)
