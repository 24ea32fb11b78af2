"""A whole policy, to be ``first_server/__init__.py`` below ``src/shadowprice/policies``."""

from collections.abc import Iterator, Mapping

import numpy as np

from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.events import Decision, JobsArrived, Place, PolicyEvent, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, PolicyContext, View, servers_out
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Placement
from shadowprice.policies.registry import Parameters, PolicyInfo


class FirstServer:
    """Runs every job with its fewest workers, all on the first server that has room for them.

    Its parameter servers stand on the first that has room for those. Who finds no room waits.
    """

    capabilities = Capabilities()

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force."""
        return self._parameters.model_dump()

    def resume(self, view: View) -> None:
        """Begin anew on what the view shows: nothing is kept from one event to the next."""

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Answer jobs that arrive; place those that stand nowhere and find room."""
        if isinstance(event, JobsArrived):
            for job in event.jobs:
                if first_servers(job, view.cluster, view.cluster.capacity) is None:
                    why = "no server has room for its fewest workers, even empty"
                    yield Reject(job.name, Refusal(Reason.NEVER_FITS, why))
                else:
                    yield Queue(job.name)
        for name, state in list(view.open_jobs.items()):
            if state.placement is None:
                free = view.ledger.capacity - view.ledger.used[0]
                free[servers_out(view)] = -1  # not even what takes nothing that is counted
                placement = first_servers(state.job, view.cluster, free)
                if placement is not None:
                    yield Place(name, placement)


def first_servers(job: Job, cluster: Cluster, free: Amounts) -> Placement | None:
    """Return where a job runs with its fewest workers, None where there is no room."""
    workers = int(job.worker_counts[0])
    ps = job.ps_needed(workers)
    asked = workers * job.worker
    able = np.flatnonzero(cluster.hosts_workers & (free >= asked).all(axis=1))
    if not len(able):
        return None
    first = int(able[0])
    if job.ps is None:  # all-reduce
        return Placement.of([(first, workers, 0)])
    left = free.copy()
    left[first] -= asked
    able = np.flatnonzero(cluster.hosts_ps & (left >= ps * job.ps).all(axis=1))
    return Placement.of([(first, workers, 0), (int(able[0]), 0, ps)]) if len(able) else None


def build(context: PolicyContext, parameters: Parameters) -> FirstServer:
    """Build the policy, as the registry asks; the context tells what else one may know."""
    del context
    return FirstServer(parameters)


POLICIES = (
    PolicyInfo(
        name="first_server",
        summary="Every job with its fewest workers, on the first server that has room.",
        paper="the documentation's sample",
        parameters=Parameters,
        build="shadowprice.policies.first_server:build",
    ),
)
