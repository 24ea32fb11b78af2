"""Open jobs appraised together, one more at a time: what RRH asks of every arrival."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.order import stable_order
from shadowprice.kernels.reactive.risk_reward import (
    Candidates,
    admission,
    appraisal,
    foresee,
    join,
    leave,
    reckon,
)

Integers = NDArray[np.int64]


class Crowd:
    """Open jobs of one slot, with what their appraisal needs kept sorted.

    A job that joins costs time linear in the jobs there are, without sorting or utilities.

    Parameters
    ----------
    slot : int
        The slot; in another one everything is worth something else.
    jobs : Candidates
        The jobs by table row.
    rows : ndarray of int64, shape (jobs,)
        Rows of the open jobs, in order of arrival.
    """

    def __init__(self, slot: int, jobs: Candidates, rows: Integers) -> None:
        self.slot = slot
        self.count = len(rows)
        size = max(64, 2 * self.count)
        self._rows = np.zeros(size, dtype=np.int64)
        self._rows[: self.count] = rows
        self._made = appraisal(size)
        for j in range(self.count):
            foresee(j, rows[j], slot, jobs, self._made)
        for order, values in (
            (self._made.order, self._made.expiry),
            (self._made.by_delay, self._made.delay),
        ):
            order[: self.count] = stable_order(values[: self.count])

    def join(self, row: int, jobs: Candidates) -> None:
        """Let one more job be appraised with the others."""
        if self.count == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
            larger = appraisal(len(self._rows))
            for new, old in zip(larger, self._made, strict=True):
                new[: self.count] = old
            self._made = larger
        j = self.count
        self._rows[j] = row
        foresee(j, row, self.slot, jobs, self._made)
        join(j, self._made.expiry, self._made.order)
        join(j, self._made.delay, self._made.by_delay)
        self.count += 1

    def leave(self) -> None:
        """Let the job that joined last leave."""
        self.count -= 1
        leave(self.count, self._made.order)
        leave(self.count, self._made.by_delay)

    def admission(self, jobs: Candidates, alpha: float, discount: float) -> tuple[float, float]:
        """Return what the job that joined last costs the others, and its wait."""
        rows = self._rows[: self.count]
        reckon(self.count, rows, jobs, alpha, discount, self._made)
        cost, wait = admission(self.count - 1, rows, jobs, self._made)
        return cost, wait
