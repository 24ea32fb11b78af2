"""Arrival times: uniform, Poisson, or bursty as in a real training cluster.

A Poisson process has a coefficient of variation (CV) of 1 between arrivals, and a Fano factor
(variance over mean) of 1 in hourly counts. The open Philly trace has 12.4 and 214. The bursty
process is a Cox process of batches, with parameters fitted to that trace:

- an hourly intensity, log-normal with variance 9.6 and mean 1, whose autocorrelation from one hour
  to the next is 0.48 (that of Philly's hourly counts), times a daily cycle;
- silent periods of about a day, which cause most of Philly's CV;
- batches of jobs (sweeps submitted together) of geometric size, seconds apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.errors import InputError

Floats = NDArray[np.float64]
Pattern = Literal["uniform", "poisson", "bursty"]
HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Burstiness:
    """Parameters of the bursty process; the defaults are fitted to the open Philly trace."""

    variance: float = 9.6  # variance of the hourly intensity, whose mean is 1
    persistence: float = 0.74
    """Correlation of the logarithm of the intensity from one hour to the next."""
    quiet: float = 0.12  # share of the time without arrivals, 0 to 1
    silence: float = 25.0  # mean length of a silent period in hours
    daily: float = 0.35
    """Amplitude of the daily cycle, 0 to 1; the peak is at 07:00 of a clock that starts at 0."""
    batch: float = 5.0  # mean number of jobs submitted together, at least 1
    spacing: float = 20.0  # mean seconds between the jobs of a batch

    def __post_init__(self) -> None:
        if not (
            self.variance >= 0
            and 0 <= self.persistence < 1
            and 0 <= self.daily < 1
            and 0 <= self.quiet < 1
            and self.silence >= 1
            and self.batch >= 1
            and self.spacing >= 0
        ):
            raise InputError(
                "bursty arrivals need variance and spacing >= 0, batch and silence >= 1, and "
                "persistence, quiet and daily in [0, 1)"
            )


def arrival_times(
    pattern: Pattern,
    count: int,
    span: float,
    rng: np.random.Generator,
    burstiness: Burstiness | None = None,
) -> Floats:
    """Draw exactly ``count`` ascending arrival times in [0, span) seconds.

    Uniform times are evenly spaced, the first at 0. Poisson times are independent and uniform: a
    Poisson process conditioned on its count. The module's docstring describes bursty times;
    ``burstiness`` has their parameters. Raises `InputError` if the pattern is unknown, or count or
    span are out of range.
    """
    if count < 1 or not span > 0:
        raise InputError("arrivals: expected at least one job and a span above 0")
    if pattern == "uniform":
        return np.arange(count, dtype=np.float64) * (span / count)
    if pattern == "poisson":
        return np.sort(rng.random(count) * span)
    if pattern == "bursty":
        return _bursty(count, span, rng, burstiness or Burstiness())
    raise InputError(f"unknown arrival pattern {pattern!r}; choose uniform, poisson or bursty")


def _bursty(count: int, span: float, rng: np.random.Generator, parameters: Burstiness) -> Floats:
    hours = int(np.ceil(span / HOUR))
    # A log-normal variable with mean 1 has the variance exp(sigma^2) - 1.
    sigma = np.sqrt(np.log1p(parameters.variance))
    level = _autoregressive(hours, parameters.persistence, rng)
    cycle = 1 + parameters.daily * np.cos(2 * np.pi * (np.arange(hours) - 7) / 24)
    # Silent hours keep a tiny intensity, so that a fully silent span still has arrivals.
    silence_factor = np.where(_draw_silent_hours(hours, parameters, rng), 1e-9, 1.0)
    # Its scale doesn't matter, because the number of arrivals is given.
    intensity = np.exp(sigma * level) * cycle * silence_factor
    # The span may end within the last hour.
    length = np.full(hours, HOUR)
    length[-1] = span - HOUR * (hours - 1)
    cumulative_intensity = np.cumsum(intensity * length)
    sizes: list[int] = []
    remaining = count
    while remaining:
        size = min(remaining, int(rng.geometric(1 / parameters.batch)))
        sizes.append(size)
        remaining -= size
    # Starts of batches by inverse transform: uniform in the cumulative intensity.
    starts = rng.random(len(sizes)) * cumulative_intensity[-1]
    hour = np.searchsorted(cumulative_intensity, starts, side="right")
    seconds_in_hour = (
        starts - np.where(hour > 0, cumulative_intensity[hour - 1], 0.0)
    ) / intensity[hour]
    firsts = hour * HOUR + seconds_in_hour
    batch = np.repeat(np.arange(len(sizes)), sizes)
    gaps = rng.exponential(parameters.spacing, count) if parameters.spacing else np.zeros(count)
    elapsed = np.cumsum(gaps)
    first_jobs = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    times = firsts[batch] + (elapsed - elapsed[first_jobs][batch])
    # Reflect times after the end of the span back into it.
    folded = np.where(times >= span, 2 * span - times, times)
    return np.asarray(np.sort(folded.clip(0, np.nextafter(span, 0))), dtype=np.float64)


def _autoregressive(count: int, persistence: float, rng: np.random.Generator) -> Floats:
    """Draw a stationary Gaussian AR(1) series of unit variance."""
    shocks = rng.standard_normal(count) * np.sqrt(1 - persistence**2)
    shocks[0] /= np.sqrt(1 - persistence**2)  # the first value has unit variance, too
    series = accumulate(shocks.tolist(), lambda previous, shock: shock + persistence * previous)
    return np.fromiter(series, dtype=np.float64, count=count)


def _draw_silent_hours(
    hours: int, parameters: Burstiness, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw the silent hours from a stationary two-state Markov chain."""
    quiet = parameters.quiet
    if not quiet:
        return np.zeros(hours, dtype=np.bool_)
    wake_probability = 1 / parameters.silence
    # The stationary share of silent hours is sleep / (sleep + wake) = quiet.
    sleep_probability = min(1.0, wake_probability * quiet / (1 - quiet))
    draws = rng.random(hours)
    silent = np.empty(hours, dtype=np.bool_)
    state = bool(draws[0] < quiet)
    for hour in range(hours):
        if hour:
            state = draws[hour] >= wake_probability if state else draws[hour] < sleep_probability
        silent[hour] = state
    return silent


def interarrival_cv(times: Floats) -> float:
    """Return the coefficient of variation of the times between arrivals (1 for Poisson)."""
    gaps = np.diff(np.sort(times))
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return float(gaps.std()) / mean if mean > 0 else float("nan")


def hourly_counts(times: Floats, offset: float = 0.0) -> NDArray[np.int64]:
    """Return the number of arrivals in each whole clock hour from the first arrival to the last.

    ``times`` are seconds, and time 0 is ``offset`` seconds after a full hour. Partial hours are
    dropped, because their counts don't measure the rate. The result is empty if there is no whole
    hour.
    """
    clock = (times + offset) / HOUR
    first, end = int(np.ceil(clock.min())), int(np.floor(clock.max()))
    hours = np.floor(clock).astype(np.int64) - first
    whole = hours[(hours >= 0) & (hours < end - first)]
    return np.bincount(whole, minlength=max(0, end - first))


def fano_factor(counts: NDArray[np.int64]) -> float:
    """Return the variance of counts over their mean (1 for Poisson)."""
    return float(counts.var() / counts.mean())
