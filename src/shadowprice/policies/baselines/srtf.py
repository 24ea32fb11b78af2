"""Shortest remaining time first, which knows how long every job still takes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, View
from shadowprice.policies.baselines.parameters import SrtfParameters
from shadowprice.policies.baselines.ranked import Ranked
from shadowprice.policies.baselines.service import gpus_of_worker

Integers = NDArray[np.int64]


class Srtf(Ranked[SrtfParameters]):
    """Jobs run in order of the slots that they still take at their fixed width, or of the service.

    Parameters
    ----------
    context : PolicyContext
        The cluster and the seed.
    parameters : SrtfParameters
        What was set.
    """

    def __init__(self, context: PolicyContext, parameters: SrtfParameters) -> None:
        super().__init__(context, parameters)
        self._by_service = parameters.by == "service"
        self._columns["gain"] = np.zeros(0, dtype=np.int64)
        self._columns["width"] = np.zeros(0, dtype=np.int64)

    def _note(self, job: Job, row: int) -> None:
        workers = int(self._columns["workers"][row])
        self._columns["gain"][row] = job.gain(workers)
        self._columns["width"][row] = workers * gpus_of_worker(job, self._cluster)

    def _order(self, view: View, rows: Integers) -> Integers:
        if not self._changed:
            # Those that run only come nearer to their end, ahead of those that wait for them.
            return self._ran_in
        states = view.open_jobs
        left = np.array([states[name].remaining for name in self._table.rows], dtype=np.int64)
        slots = -(-left // self._columns["gain"][rows])
        key = slots * self._columns["width"][rows] if self._by_service else slots
        return rows[np.argsort(key, kind="stable")]


def build(context: PolicyContext, parameters: SrtfParameters) -> Srtf:
    """Build the policy, as the registry asks."""
    return Srtf(context, parameters)
