"""Machines with stragglers, for runs in which plans fall short."""

from __future__ import annotations

import numpy as np

from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement


class StragglingExecution:
    """Slots lose a random part of their progress, as on machines with stragglers.

    Parameters
    ----------
    mean_loss : float
        Mean share of a slot's progress that is lost, in [0, 1).
    seed : int
        Seed; the loss of a job in a slot does not depend on any other job.
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
        # Rounded at random with the right mean: a job of one worker-slot must not stand still.
        return min(full, int(full * kept + rng.random()))
