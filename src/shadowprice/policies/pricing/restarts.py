"""Whether a job that is planned anew loses something by it."""

from __future__ import annotations

from shadowprice.core.policy import JobState, View


def restarts(view: View, state: JobState) -> bool:
    """Whether a job that begins again loses something by it; copies of a bag do not move."""
    job = state.job
    begun = view.cluster.restart_first or state.started is not None
    return begun and bool(job.restart) and job.bag is None
