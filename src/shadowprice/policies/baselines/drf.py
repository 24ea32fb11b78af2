"""DRF, the default of YARN and Mesos (OASiS, section V, (ii))."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from shadowprice.core.events import Decision
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, PolicyContext, View
from shadowprice.kernels.reactive.dominant_share import fill
from shadowprice.policies.baselines.parameters import DrfParameters
from shadowprice.policies.reactive.base import Tabled


class Drf(Tabled[DrfParameters]):
    """All jobs are admitted; numbers of workers are max-min fair in dominant shares.

    A job's dominant share is the largest share that its workers and parameter servers take of any
    resource of the cluster. Whenever a job arrived or left, or a server was lost or came back, the
    shares are filled anew, worker by worker, at the beginning of the slot.

    Parameters
    ----------
    context : PolicyContext
        The cluster.
    parameters : DrfParameters
        What was set.

    Notes
    -----
    One filling a slot, however many events it had: ``O(jobs + grants (log jobs + servers))``, with
    at most as many grants as the cluster has places. Jobs keep their places where their number
    allows it, so that what the engine has to do follows from what changed.
    """

    capabilities: ClassVar = Capabilities(elastic=True, wakes_every_slot=True, quotes=True)

    def _wanted(self, job: Job) -> int:
        return int(job.worker_counts[0])

    def _enter(self, job: Job, workers: int) -> int:
        del workers  # it is granted as many as is fair
        return self._table.add(job)

    def _begin(self, view: View) -> Iterator[Decision]:
        del view  # the policy keeps its own books
        if not self._changed:
            return
        self._changed = False
        table = self._table
        rows = table.in_order()
        change = np.zeros(len(rows), dtype=np.int64)
        capacity = self._cluster.capacity.copy()
        fill(capacity, table.total(), rows, table.places, table.widths, self._cursors, change)
        yield from table.rearrange(rows, change)


def build(context: PolicyContext, parameters: DrfParameters) -> Drf:
    """Build the policy, as the registry asks."""
    return Drf(context, parameters)
