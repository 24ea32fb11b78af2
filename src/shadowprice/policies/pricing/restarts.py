"""Plans made anew for what restarts took.

The papers plan without restarts, and so are arrivals planned. Made anew in the same way, a plan
that is just long enough and moves in every slot would fall short by its restarts again, for ever.
"""

from __future__ import annotations

from typing import Final

from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, View
from shadowprice.core.potential import potential
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Placement, Schedule

_FRUITLESS: Final = 16
"""Slots that a job may be on its way for each that brings something, where no plan does."""


def restarts(view: View, state: JobState) -> bool:
    """Whether a job that begins again loses something by it; copies of a bag do not move."""
    job = state.job
    begun = view.cluster.restart_first or state.started is not None
    return begun and bool(job.restart) and job.bag is None


def done_in(job: Job, plan: Schedule) -> int:
    """Return the progress units of a plan that begins somewhere else, less what restarts take."""
    return potential(job, plan, None, charged=True)


def staying(view: View, state: JobState, slot: int, placement: Placement) -> Schedule | None:
    """Return a plan that completes a job in one placement, its restart there included.

    Parameters
    ----------
    view : View
        Where there may be room.
    state : JobState
        The job.
    slot : int
        The plan's first slot.
    placement : Placement
        Where it is to stay.

    Returns
    -------
    Schedule or None
        None where there is no room for as long as that takes.
    """
    job, colocated = state.job, placement.colocated
    workers = placement.total_workers
    left = state.remaining - job.gain(workers, colocated=colocated, moved=True)
    end = slot + 1 + max(0, -(-left // job.gain(workers, colocated=colocated)))
    if end > view.end:
        return None
    ledger = view.ledger
    used = ledger.used[slot - ledger.start : end - ledger.start]
    entries = list(zip(placement.servers, placement.workers, placement.ps, strict=True))
    for server, count, servers in entries:
        wanted = count * job.worker
        if job.ps is not None:
            wanted = wanted + servers * job.ps
        if (used[:, server] + wanted > ledger.capacity[server]).any():
            return None
    return Schedule.of((at, *entry) for at in range(slot, end) for entry in entries)


def fruitless(view: View, state: JobState) -> Refusal | None:
    """Return why a job is given up whose plan does nothing, None while it may go on."""
    since = 0 if state.started is None else view.slot - state.started
    if since <= _FRUITLESS * (1 + state.progress / int(state.job.gains.max())):
        return None
    message = f"{since} slots after its start, restarts take all that its plan would do"
    return Refusal(Reason.POLICY, message)
