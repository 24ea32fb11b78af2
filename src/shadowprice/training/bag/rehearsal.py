"""Tasks that only wait: to rehearse a bag, and to hold its times against what was predicted."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from shadowprice.laws.distributions import Distribution
from shadowprice.training.bag.attempt import current


@dataclass(frozen=True, slots=True)
class Wait:
    """A task that lasts as long as a law draws it.

    Parameters
    ----------
    law : Distribution
        The law; every copy draws its own.
    seed : int
        Tells the luck of one bag from that of another.
    """

    law: Distribution
    seed: int


def wait(task: Wait) -> float:
    """Wait as long as is drawn for this copy of this task, and return how long that was to be."""
    attempt = current()
    drawn = random.Random(f"{task.seed}/{attempt.task}/{attempt.copy}").random()
    seconds = float(task.law.inverse_survival(1.0 - drawn))
    time.sleep(seconds)
    return seconds
