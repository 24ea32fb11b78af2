"""Running means of the times that a job's processes measure."""

from __future__ import annotations

import math

import pytest

from shadowprice.training.servers.measuring import RunningMean, TrafficMeter


def test_a_running_mean_recovers_from_values_that_are_not_finite() -> None:
    mean = RunningMean()
    for value in (1.0, 3.0, math.inf):
        mean.add(value)
    assert mean.value == math.inf
    for value in (math.nan, 4.0, 6.0):
        mean.add(value)
    assert mean.value == 5.0


def test_overlapping_transfers_count_the_time_in_which_any_is_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("shadowprice.training.servers.measuring.time.monotonic", lambda: now)
    meter = TrafficMeter()
    assert meter.bandwidth() == 0.0
    # Each transfer starts before the previous one ends, so one is always active.
    meter.__enter__()
    for transfers in range(1, 4):
        now += 5.0
        meter.__enter__()
        now += 5.0
        meter.add_bytes(50)
        meter.__exit__()
        assert meter.bandwidth() == 8.0 * 50 * transfers / (10.0 * transfers)
    meter.__exit__()
    now += 60.0  # idle time doesn't count
    assert (meter.bytes, meter.seconds) == (150, 30.0)
