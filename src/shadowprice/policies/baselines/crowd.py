"""Open jobs appraised together, one more at a time: what RRH asks of every arrival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.kernels.order import stable_order
from shadowprice.kernels.reactive.risk_reward import admission, foresee, join, leave, reckon

Integers = NDArray[np.int64]


class Crowd:
    """Open jobs of one slot, with what their appraisal needs kept sorted.

    A job that joins costs time linear in the jobs there are, without sorting or utilities.

    Parameters
    ----------
    slot : int
        The slot; in another one everything is worth something else.
    columns : mapping
        The jobs by table row, as `Rrh` keeps them.
    rows : ndarray of int64, shape (jobs,)
        Rows of the open jobs, in order of arrival.
    """

    def __init__(self, slot: int, columns: Mapping[str, Any], rows: Integers) -> None:
        self.slot = slot
        self.count = len(rows)
        size = max(64, 2 * self.count)
        self._rows = np.zeros(size, dtype=np.int64)
        self._rows[: self.count] = rows
        self._order = np.zeros(size, dtype=np.int64)
        self._by_delay = np.zeros(size, dtype=np.int64)
        self._utility, self._decay = np.zeros(size), np.zeros(size)
        self._expiry, self._delay = np.zeros(size), np.zeros(size)
        self._reward = np.zeros(size)
        for j in range(self.count):
            self._foresee(j, columns)
        self._order[: self.count] = stable_order(self._expiry[: self.count])
        self._by_delay[: self.count] = stable_order(self._delay[: self.count])

    def join(self, row: int, columns: Mapping[str, Any]) -> None:
        """Let one more job be appraised with the others."""
        if self.count == len(self._rows):
            for name, value in list(vars(self).items()):
                if isinstance(value, np.ndarray):
                    setattr(self, name, np.concatenate((value, np.zeros_like(value))))
        j = self.count
        self._rows[j] = row
        self._foresee(j, columns)
        join(j, self._expiry, self._order)
        join(j, self._delay, self._by_delay)
        self.count += 1

    def leave(self) -> None:
        """Let the job that joined last leave."""
        self.count -= 1
        leave(self.count, self._order)
        leave(self.count, self._by_delay)

    def admission(
        self, columns: Mapping[str, Any], alpha: float, discount: float
    ) -> tuple[float, float, float]:
        """Return value, delay cost and wait of the job that joined last."""
        jobs, left = self.count, columns["slots_left"]
        reckon(
            jobs,
            self._rows,
            left,
            alpha,
            discount,
            self._utility,
            self._decay,
            self._expiry,
            self._delay,
            self._order,
            self._by_delay,
            self._reward,
        )
        value, cost, wait = admission(
            jobs - 1,
            self.slot,
            self._rows[:jobs],
            columns["family"],
            columns["parameters"],
            columns["arrival"],
            left,
            columns["share"],
            self._reward[:jobs],
            self._utility[:jobs],
            self._decay[:jobs],
            discount,
        )
        return value, cost, wait

    def _foresee(self, j: int, columns: Mapping[str, Any]) -> None:
        row = self._rows[j]
        foresee(
            j,
            row,
            self.slot,
            columns["family"],
            columns["parameters"],
            columns["arrival"],
            columns["slots_left"],
            self._utility,
            self._decay,
            self._expiry,
        )
        self._delay[j] = columns["share"][row] * columns["slots_left"][row]
