"""How much of a job a plan does."""

from __future__ import annotations

import numpy as np

from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement, Schedule


def potential(job: Job, plan: Schedule, before: Placement | None, *, charged: bool) -> int:
    """Return the progress units that a plan makes at the declared rates.

    Parameters
    ----------
    job : Job
        Whose plan it is; it has run before.
    plan : Schedule
        Slots that lie ahead, with numbers of workers that the job may run with.
    before : Placement or None
        Where it runs in the slot before.
    charged : bool
        Whether restarts are taken off.
    """
    workers, _, colocated = plan.totals()
    at = np.searchsorted(job.worker_counts, workers)
    gains = np.where(colocated, job.internal_gains[at], job.gains[at])
    if charged and job.restart:
        moved = plan.moved(before, ran=True)
        left = np.where(colocated, job.moved_internal_gains[at], job.moved_gains[at])
        gains = np.where(moved, left, gains)
    return int(gains.sum())
