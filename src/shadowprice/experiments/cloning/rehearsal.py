"""Tasks that only sleep, to compare the times of a bag with predictions.

The processes of the bag import this module, so it imports little.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

from shadowprice.training.bag import current


class Durations(Protocol):
    """Distribution of durations in seconds, such as those of ``shadowprice.distributions``."""

    def inverse_survival(self, probability: float) -> SupportsFloat:
        """Return the time that a task exceeds with a probability in (0, 1]."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A task that sleeps for a random time.

    Every copy draws its own time from ``distribution``. ``seed`` makes the draws of bags differ.
    """

    distribution: Durations
    seed: int


def wait(task: Wait) -> float:
    """Sleep for a time drawn for this copy of the task; return the time in seconds."""
    attempt = current()
    uniform = random.Random(f"{task.seed}/{attempt.task}/{attempt.copy}").random()
    seconds = float(task.distribution.inverse_survival(1.0 - uniform))
    time.sleep(seconds)
    return seconds
