"""Progress that a plan can make."""

from __future__ import annotations

import numpy as np

from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement, Schedule


def planned_progress(
    job: Job, plan: Schedule, before: Placement | None, *, charged: bool, ran: bool = True
) -> int:
    """Return the progress units that a plan makes at the declared rates.

    The plan's slots are in the future, and its worker counts are allowed. ``before`` is the
    placement in the slot before the plan. If ``charged``, restarts are deducted. ``ran`` says
    whether the first start counts as a restart, because the job ran before or the first start costs
    the same.
    """
    workers, _, colocated = plan.totals()
    choices = np.searchsorted(job.worker_counts, workers)
    gains = np.where(colocated, job.internal_gains[choices], job.gains[choices])
    if charged and job.restart:
        moved = plan.moved(before, ran=ran)
        moved_gains = np.where(
            colocated, job.restart_internal_gains[choices], job.moved_gains[choices]
        )
        gains = np.where(moved, moved_gains, gains)
    return int(gains.sum())
