"""Expected saving of a further copy of a running task, for the rule by saving in live use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shadowprice.cloning.waves import GRID, tabulate_distributions
from shadowprice.distributions.parametric import Distribution
from shadowprice.kernels.cloning.saving import Gains, Tasks, assess


class CopySavings:
    """Savings of copies of running tasks while no task waits.

    ``distributions`` are those of the tasks; ``max_copies`` limits the copies of a task that run at
    once; ``machine_price`` is the flowtime in seconds that a machine second costs, so that idle
    machines don't copy for nearly nothing.
    """

    def __init__(
        self,
        distributions: Sequence[Distribution],
        *,
        max_copies: int = 3,
        machine_price: float = 0.1,
    ) -> None:
        distinct = {id(distribution): distribution for distribution in distributions}
        positions = {key: position for position, key in enumerate(distinct)}
        self._distribution = np.array(
            [positions[id(distribution)] for distribution in distributions], dtype=np.int64
        )
        unique = tuple(distinct.values())
        self._distributions = tabulate_distributions(unique)
        self._max_copies = max_copies
        self._price = machine_price
        # Seconds between checks while no task ends.
        self.check_period = 0.25 * float(self._distributions.means[self._distribution].mean())

    def best(
        self, now: float, running: Sequence[int], begun: Sequence[Sequence[float]]
    ) -> int | None:
        """Return the task whose next copy saves most beyond its cost; None if none does.

        ``running`` are the indices of unfinished tasks, and ``begun`` the start times of each one's
        present copies. A task that may have no further copy is listed with the maximum number.
        """
        count = len(running)
        copies = np.array(
            [min(len(starts_of_task), self._max_copies) for starts_of_task in begun], dtype=np.int64
        )
        starts = np.full((count, self._max_copies), now)
        for row, starts_of_task in enumerate(begun):
            newest = sorted(starts_of_task)[-self._max_copies :]
            starts[row, : len(newest)] = newest
        gains = Gains(np.zeros(count), np.zeros(count))
        tasks = Tasks(
            self._distribution[np.asarray(running, dtype=np.int64)],
            np.ones(count),
            np.zeros(count, dtype=np.bool_),
            copies,
            starts,
        )
        assess(0, count, True, float(now), tasks, self._distributions, GRID, gains)
        gain = np.where(copies < self._max_copies, gains.saving - self._price * gains.extra, 0.0)
        index = int(np.argmax(gain)) if count else 0
        return running[index] if count and gain[index] > 0.0 else None
