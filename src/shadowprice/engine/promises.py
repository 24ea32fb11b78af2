"""Whether what a job holds is still enough for the work that remains."""

from __future__ import annotations

import numpy as np

from shadowprice.core.job import Job
from shadowprice.core.potential import potential
from shadowprice.core.schedule import Placement
from shadowprice.engine.state import JobRecord


def falls_short(record: JobRecord, now: int, before: Placement | None, *, charged: bool) -> bool:
    """Whether a plan cannot complete its job any more, a slot of it having yielded too little."""
    if record.job.bag is not None:
        return False  # how many copies end in time is chance; the plan's end will tell
    ahead = record.plan.from_slot(now)
    return potential(record.job, ahead, before, charged=charged) < record.remaining


def revised_plan_holds(
    record: JobRecord, old: Job, now: int, before: Placement | None, *, charged: bool, first: bool
) -> bool:
    """Whether the plan of a job that was revised still runs, and completes it.

    Restarts are taken off where they are ``charged``, that of the first start if it is one as well.
    """
    job, ahead = record.job, record.plan.from_slot(now)
    if not job.same_demand(old):
        return False
    workers, ps, _ = ahead.totals()
    at = np.searchsorted(job.worker_counts, workers)
    inside = at < len(job.worker_counts)
    if not inside.all() or (job.worker_counts[at] != workers).any():
        return False
    if (ps < job.ps_counts[at]).any():
        return False
    ran = first or record.started is not None
    if job.resumable is False and before is not None and ahead.leaves(before):
        return False
    return potential(job, ahead, before, charged=charged and ran) >= record.remaining


def standing_holds(record: JobRecord, old: Job) -> bool:
    """Whether a job that was revised can stand where it stands."""
    job, placement = record.job, record.placement
    if placement is None:
        return True
    choice = job.choice_of(placement.total_workers)
    return (
        job.same_demand(old)
        and choice is not None
        and placement.total_ps >= int(job.ps_counts[choice])
    )
