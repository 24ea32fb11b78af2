"""Counts of `trace info`, on traces small enough to count by hand."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shadowprice.traces.arrivals import fano_factor, hourly_counts
from shadowprice.traces.records import ImportTally, Trace, build_trace
from shadowprice.traces.statistics import describe


def held(gpus: Sequence[float], duration: Sequence[float | None]) -> Trace:
    count = len(gpus)
    columns = {
        "job": [f"j{index}" for index in range(count)],
        "submit": [0.0] * count,
        "gpus": gpus,
    }
    frame = pl.DataFrame(columns | {"duration": duration})
    return build_trace("test", frame, Path("test"), ImportTally(), absolute=False)


def submitted(hours: Sequence[float], *, absolute: bool = False) -> Trace:
    count = len(hours)
    frame = pl.DataFrame(
        {
            "job": [f"j{index}" for index in range(count)],
            "submit": [3600.0 * hour for hour in hours],
            "duration": [60.0] * count,
            "gpus": [1.0] * count,
        }
    )
    return build_trace("test", frame, Path("test"), ImportTally(), absolute=absolute)


def test_only_hours_between_the_first_and_the_last_submission_are_counted():
    at = np.array([0.5, 1.0, 1.9, 3.2, 3.3, 3.4, 4.0, 4.1]) * 3600
    assert hourly_counts(at).tolist() == [2, 0, 3]
    assert hourly_counts(at - 3600, offset=3600).tolist() == [2, 0, 3]
    assert hourly_counts(at[1:]).tolist() == [2, 0, 3]  # the first hour begins with a job: whole
    assert hourly_counts(np.array([1900.0, 3500.0])).tolist() == []
    assert hourly_counts(np.array([10.0])).tolist() == []


def test_a_trace_that_ends_within_an_hour_is_as_bursty_as_one_that_fills_it():
    rng = np.random.default_rng(0)
    fanos = []
    for _ in range(40):
        hours = np.sort(rng.uniform(0, 30.2, 3000))
        result = describe(submitted(hours.tolist()))
        assert result.hourly_mean == pytest.approx(3000 / (hours[-1] - hours[0]))
        fanos.append(result.hourly_fano)
    # 30 whole hours each: with the twelve minutes at the end it is 3.0.
    assert np.mean(fanos) == pytest.approx(1, abs=0.15)


def test_hours_are_those_of_the_clock_where_it_is_known():
    hours = [0.9, 1.1, 1.2, 2.5, 3.5]
    result = describe(submitted([400_000 + hour for hour in hours], absolute=True))
    assert result.start == datetime(2015, 8, 19, 16, 54)
    counts = np.array([2, 1])
    assert (result.hourly_peak, result.hourly_fano) == (2, fano_factor(counts))
    assert result.hourly_mean == pytest.approx(5 / 2.6)


@pytest.mark.parametrize("hours", [[0.0, 0.5], [0.0, 1.5], [0.7, 9.8]])
def test_hourly_figures_need_two_whole_hours(hours):
    result = describe(submitted([1000.0 + hour for hour in hours], absolute=True))
    assert (result.hourly_peak, result.hourly_fano) == (None, None)
    assert result.hourly_mean == pytest.approx(2 / (hours[1] - hours[0]))


def test_submissions_at_one_moment_have_no_rate():
    result = describe(submitted([0.0, 0.0]))
    assert (result.hourly_mean, result.hourly_peak, result.hourly_fano) == (None, None, None)


def test_gpu_time_is_that_of_jobs_whose_duration_is_known():
    result = describe(held([1.0, 2.0, 4.0, 8.0], [3600.0, 1800.0, None, None]))
    assert (result.timed, result.gpu_hours, result.multi_gpu_share) == (2, 2.0, 0.5)
    assert result.multi_gpu_jobs == 0.75
    result = describe(held([0.0], [60.0]))
    assert (result.gpu_hours, result.multi_gpu_share) == (0.0, None)


def test_without_durations_gpu_time_is_unknown():
    result = describe(held([1.0, 2.0], [None, None]))
    assert (result.timed, result.gpu_hours, result.multi_gpu_share) == (0, None, None)
    assert result.multi_gpu_jobs == 0.5
