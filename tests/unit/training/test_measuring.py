"""Running means of the times that a job's processes measure."""

from __future__ import annotations

import math

from shadowprice.training.servers.measuring import RunningMean


def test_a_running_mean_recovers_from_values_that_are_not_finite() -> None:
    mean = RunningMean()
    for value in (1.0, 3.0, math.inf):
        mean.add(value)
    assert mean.value == math.inf
    for value in (math.nan, 4.0, 6.0):
        mean.add(value)
    assert mean.value == 5.0
