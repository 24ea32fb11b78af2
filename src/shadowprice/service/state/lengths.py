"""Lengths and waits of jobs, predicted from those of similar jobs that have finished.

The history has the length of every job that ended successfully, and its wait for the first start. A
job without a stated time gets the prediction of `core.length_history`, at most its ``walltime``.
Without a history, its length is the ``walltime``. Progress that the job reports keeps its meaning,
because its steps are unchanged. Once its speed is measured, its length isn't predicted any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.job_keys import name_of_key
from shadowprice.core.length_history import (
    DEFAULT_SECONDS,
    GROWTH,
    JobKind,
    LengthHistory,
    LengthPrediction,
    kind_of_job,
    length_of_progress,
    name_stem,
    with_length,
)
from shadowprice.core.schedule import Placement
from shadowprice.core.utility import Deadline
from shadowprice.engine.job_record import JobRecord
from shadowprice.service.clock import SECOND
from shadowprice.service.state.job_views import JobView, State


class ServiceLengths:
    """Lengths and waits in seconds of the jobs that have finished, and predictions from them."""

    def __init__(self, finished: Iterable[JobView] = ()) -> None:
        self._history = LengthHistory(DEFAULT_SECONDS)
        self._waits = LengthHistory(0)
        for view in finished:
            self.follow(view)

    def follow(self, view: JobView) -> None:
        """Record the length and the wait of a job that has finished."""
        if view.length is not None and view.state is State.FINISHED:
            seconds, *resources = view.length
            kind = JobKind(view.tenant, name_stem(view.name), *resources)
            self._history.add(kind, seconds)
            if view.first_start is not None:
                # Another machine's clock may be behind.
                self._waits.add(kind, max(0, view.first_start - view.arrived) / SECOND)

    def predict(self, job: Job, cluster: Cluster, attained: float = 0.0) -> LengthPrediction:
        """Return the predicted length in seconds of a job that has run for ``attained`` seconds."""
        kind = kind_of_job(job, cluster, name_of_key(job.name))
        prediction = self._history.predict(kind, attained)
        slot_seconds = float(cluster.slot_seconds)
        if job.walltime is not None:
            limit = job.walltime * slot_seconds
            if prediction.length > limit or not prediction.jobs:
                # The job won't run beyond its limit, whatever similar jobs did.
                return LengthPrediction(max(limit, attained), prediction.jobs, 1.0)
        elif not prediction.jobs:
            # The default says nothing about this job, so a planner must not refuse it for its
            # horizon or deadline.
            slots = float(cluster.horizon)
            if isinstance(job.utility, Deadline):
                slots = min(slots, max(1.0, job.utility.by))
            longest = max(slots * slot_seconds, GROWTH * attained)
            return LengthPrediction(min(prediction.length, longest))
        return prediction

    def predict_wait(self, job: Job, cluster: Cluster, waited: float) -> LengthPrediction | None:
        """Predict the whole wait of a job that has waited so far, in seconds.

        Return None if no similar job waited longer, or too few have finished.
        """
        kind = kind_of_job(job, cluster, name_of_key(job.name))
        prediction = self._waits.predict(kind, waited)
        return prediction if prediction.jobs else None

    def extend(
        self, record: JobRecord, cluster: Cluster, progress: int
    ) -> tuple[Job, LengthPrediction]:
        """Return a running job that has done all its predicted work, with more work."""
        slot_seconds = float(cluster.slot_seconds)
        attained = length_of_progress(record.job, progress) * slot_seconds
        prediction = self.predict(record.job, cluster, attained)
        longer = with_length(record.job, prediction.length / slot_seconds)
        if longer.required <= progress:  # at most a unit longer, or the walltime is reached
            longer = replace(longer, required=progress + 1)
        return longer, prediction


def measured_length(
    view: JobView, record: JobRecord, placement: Placement, cluster: Cluster, ended: int
) -> tuple[float, int, int, int] | None:
    """Return `JobView.length` of a job that ended; None if its newest start wasn't observed.

    All its run time counts at the speed of its newest placement. The result is the time that the
    job would take with its fastest worker count.
    """
    if view.running_since is None or view.started != record.generation:
        return None
    newest = max(0, ended - view.running_since) / SECOND
    seconds = newest + record.earlier_slots * float(cluster.slot_seconds)
    gain = record.job.gain(placement.total_workers, colocated=placement.colocated)
    seconds *= length_of_progress(record.job, gain)
    kind = kind_of_job(record.job, cluster)
    return seconds, kind.gpus, kind.min_workers, kind.max_workers
