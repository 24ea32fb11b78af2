"""A policy of one file, for every command with a policy: ``-p ./policy.py:FirstFit``."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.events import Decision, JobsArrived, Place, PolicyEvent, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import View, unavailable_server_rows
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement
from shadowprice.policies.base import BasePolicy, Parameters


class FirstFitParameters(Parameters):
    """Parameters of `FirstFit`, for ``--set``."""

    workers: Literal["min", "max"] = Field("min", description="Number of workers of a job.")


class FirstFit(BasePolicy):
    """Places the workers of each job on the first server that they fit on; other jobs wait."""

    Parameters = FirstFitParameters
    parameters: FirstFitParameters

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Queue or reject new jobs, then place queued jobs in order of arrival."""
        if isinstance(event, JobsArrived):
            for job in event.jobs:
                if self._placement(job, view.cluster, view.cluster.capacity) is None:
                    reason = "no server has room for its workers, even if empty"
                    yield Reject(job.name, Refusal(RefusalReason.NEVER_FITS, reason))
                else:
                    yield Queue(job.name)
        for name, state in list(view.open_jobs.items()):
            if state.placement is None:
                free = view.ledger.capacity - view.ledger.used[0]
                free[unavailable_server_rows(view)] = -1
                placement = self._placement(state.job, view.cluster, free)
                if placement is not None:
                    yield Place(name, placement)

    def _placement(self, job: Job, cluster: Cluster, free: Amounts) -> Placement | None:
        workers = int(job.worker_counts[0 if self.parameters.workers == "min" else -1])
        request, ps = workers * job.worker, job.ps_needed(workers)
        hosts = np.flatnonzero(cluster.hosts_workers & (free >= request).all(axis=1))
        if not len(hosts):
            return None
        entries = [(int(hosts[0]), workers, 0)]
        if job.ps is not None:
            remaining = free.copy()
            remaining[hosts[0]] -= request
            hosts = np.flatnonzero(cluster.hosts_ps & (remaining >= ps * job.ps).all(axis=1))
            entries += [(int(row), 0, ps) for row in hosts[:1]]
        return Placement.of(entries) if job.ps is None or len(hosts) else None
