"""An execution model with stragglers, for runs in which plans fall short."""

from __future__ import annotations

import numpy as np

from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement


class StragglerExecution:
    """Removes a random share of every slot's progress, `mean_loss` in [0, 1) on average.

    The loss of a job in a slot depends on no other job.
    """

    def __init__(self, mean_loss: float, seed: int) -> None:
        self.mean_loss = mean_loss
        self.seed = seed

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the declared gain less a Beta-distributed loss."""
        full = job.gain(placement.total_workers, colocated=placement.colocated, moved=moved)
        if not self.mean_loss:
            return full
        key = [self.seed, slot, *job.name.encode()]
        rng = np.random.default_rng(key)
        kept = 1.0 - rng.beta(2.0, 2.0 * (1.0 - self.mean_loss) / self.mean_loss)
        # Random rounding keeps the mean: a job of one worker-slot has to progress.
        return min(full, int(full * kept + rng.random()))
