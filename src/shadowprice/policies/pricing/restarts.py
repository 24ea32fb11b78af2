"""Check whether a replanned job loses progress by a restart."""

from __future__ import annotations

from shadowprice.core.policy import JobState, View


def restarts(view: View, state: JobState) -> bool:
    """Return whether a restart costs a job progress; copies of a bag never restart."""
    job = state.job
    counts_restart = view.cluster.restart_first or state.started is not None
    return counts_restart and bool(job.restart) and job.bag is None
