"""Open jobs that RRH appraises together, to which each arrival is added in linear time."""

from __future__ import annotations

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.kernels.order import stable_order
from shadowprice.kernels.reactive.risk_reward import (
    Candidates,
    admission,
    insert_position,
    new_appraisal,
    remove_position,
    set_rewards,
    set_values,
)


class OpenJobAppraisal:
    """Open jobs of one slot, kept sorted by expiry and by delay for their appraisal.

    Adding a job takes time linear in the number of jobs, because nothing is sorted again and no
    other utility is evaluated. Appraisals depend on the slot, so another slot needs another object.
    ``rows`` are those of the open jobs in the table, in order of arrival.
    """

    def __init__(self, slot: int, jobs: Candidates, rows: Integers) -> None:
        self.slot = slot
        self.count = len(rows)
        size = max(64, 2 * self.count)
        self._rows = np.zeros(size, dtype=np.int64)
        self._rows[: self.count] = rows
        self._made = new_appraisal(size)
        for position in range(self.count):
            set_values(position, rows[position], slot, jobs, self._made)
        for order, values in (
            (self._made.order, self._made.expiry),
            (self._made.by_delay, self._made.delay),
        ):
            order[: self.count] = stable_order(values[: self.count])

    def add(self, row: int, jobs: Candidates) -> None:
        """Add the job in a table row to the appraisal."""
        if self.count == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
            larger = new_appraisal(len(self._rows))
            for new, old in zip(larger, self._made, strict=True):
                new[: self.count] = old
            self._made = larger
        position = self.count
        self._rows[position] = row
        set_values(position, row, self.slot, jobs, self._made)
        insert_position(position, self._made.expiry, self._made.order)
        insert_position(position, self._made.delay, self._made.by_delay)
        self.count += 1

    def remove_last(self) -> None:
        """Remove the job that was added last."""
        self.count -= 1
        remove_position(self.count, self._made.order)
        remove_position(self.count, self._made.by_delay)

    def admission(self, jobs: Candidates, alpha: float, discount: float) -> tuple[float, float]:
        """Return the delay cost that the newest job imposes on others, and its wait in slots."""
        rows = self._rows[: self.count]
        set_rewards(self.count, rows, jobs, alpha, discount, self._made)
        cost, wait = admission(self.count - 1, rows, jobs, self._made)
        return cost, wait
