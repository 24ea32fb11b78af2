"""Progress that a plan can make."""

from __future__ import annotations

import numpy as np

from shadowprice.core.arrays import Flags, Integers
from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement, Schedule


def planned_progress(
    job: Job, plan: Schedule, before: Placement | None, *, charged: bool, ran: bool = True
) -> int:
    """Return the progress units that a plan makes at the declared rates.

    The plan's slots are in the future, and its worker counts are allowed. ``before`` is the
    placement in the slot before the plan. If ``charged``, restarts are deducted. ``ran`` is whether
    the first start is a restart: the job ran before, or `Cluster.restart_first` is set.
    """
    workers, _, colocated = plan.totals()
    choices = np.searchsorted(job.worker_counts, workers)
    moved = plan.moved(before, ran=ran) if charged and job.restart else None
    progress, lost = progress_and_loss(job, choices, colocated, moved)
    return progress - lost


def progress_and_loss(
    job: Job, choices: Integers, colocated: Flags, moved: Flags | None
) -> tuple[int, int]:
    """Return the progress units of slots without restarts, and those that restarts cost.

    ``choices`` are the indices of the worker counts of the slots. ``moved`` marks the slots that
    begin with a restart; None if restarts cost nothing.
    """
    gains = np.where(colocated, job.internal_gains[choices], job.gains[choices])
    if moved is None:
        return int(gains.sum()), 0
    moved_gains = np.where(colocated, job.restart_internal_gains[choices], job.moved_gains[choices])
    return int(gains.sum()), int((gains - moved_gains)[moved].sum())
