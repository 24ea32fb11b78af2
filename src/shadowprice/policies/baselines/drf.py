"""DRF, the default scheduler of YARN and Mesos (OASiS, section V, scheme (ii))."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.events import Decision
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, PolicyContext, View
from shadowprice.kernels.reactive.dominant_share import fill
from shadowprice.policies.baselines import DrfParameters
from shadowprice.policies.reactive.base import TableReactivePolicy
from shadowprice.policies.reactive.table import build_widths, useful_counts


class DrfPolicy(TableReactivePolicy[DrfParameters]):
    """Admit all jobs; set worker counts by max-min fairness of dominant shares.

    A job's dominant share is its largest share of any cluster resource. Progressive filling runs
    in each slot before which jobs or servers changed, in ``O(jobs + grants (log jobs + servers))``.
    Jobs keep their placement if their new worker count allows it.
    """

    capabilities: ClassVar = Capabilities(
        elastic=True, wakes_every_slot=True, holds=True, quotes=True
    )

    def __init__(self, context: PolicyContext, parameters: DrfParameters) -> None:
        super().__init__(context, parameters)
        # By row: useful worker counts, and a key that jobs with equal demands and counts share.
        self._useful: dict[int, tuple[tuple[Integers, Integers], tuple[bytes, ...]]] = {}

    def _target_worker_count(self, job: Job) -> int:
        return int(job.worker_counts[0])

    def _enter(self, job: Job, workers: int) -> None:
        del workers  # progressive filling determines the number
        row, useful = self._table.add(job), useful_counts(job)
        demands = self._table.worker[row], self._table.ps[row]
        self._useful[row] = useful, tuple(part.tobytes() for part in (*demands, *useful))

    def _begin(self, view: View) -> Iterator[Decision]:
        if not self._changed:
            return
        self._changed = False
        table = self._table
        rows, capacity = self._movable(view, table.in_order())
        if not len(rows):
            return
        useful, keys = zip(*(self._useful[row] for row in rows.tolist()), strict=True)
        kinds: dict[tuple[bytes, ...], int] = {}
        widths = build_widths(rows, useful, [kinds.setdefault(key, len(kinds)) for key in keys])
        change = np.zeros(len(rows), dtype=np.int64)
        fill(capacity, table.total(), rows, table.places, widths, self._cursors, change)
        yield from table.rearrange(rows, change)
