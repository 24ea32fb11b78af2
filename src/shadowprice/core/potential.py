"""How much of a job a plan does."""

from __future__ import annotations

import numpy as np

from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement, Schedule


def potential(
    job: Job, plan: Schedule, before: Placement | None, *, charged: bool, ran: bool = True
) -> int:
    """Return the progress units that a plan makes at the declared rates.

    Parameters
    ----------
    job : Job
        Whose plan it is.
    plan : Schedule
        Slots that lie ahead, with numbers of workers that the job may run with.
    before : Placement or None
        Where it runs in the slot before.
    charged : bool
        Whether restarts are taken off.
    ran : bool
        Whether its first start is one of them: it has run before, or the first costs as much.
    """
    workers, _, colocated = plan.totals()
    at = np.searchsorted(job.worker_counts, workers)
    gains = np.where(colocated, job.internal_gains[at], job.gains[at])
    if charged and job.restart:
        moved = plan.moved(before, ran=ran)
        left = np.where(colocated, job.moved_internal_gains[at], job.moved_gains[at])
        gains = np.where(moved, left, gains)
    return int(gains.sum())
