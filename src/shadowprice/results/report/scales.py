"""Axes: round ticks, and numbers as a reader wants them."""

from __future__ import annotations

import math
from dataclasses import dataclass


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers across a range: multiples of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(at * step, 12) for at in range(first, last + 1)]


def number(value: float) -> str:
    """Write a number for a person: thousands apart, two digits where they tell something."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    size = abs(value)
    if size < 1e-12:
        return "0"
    if size >= 1e15 or size < 1e-3:
        return f"{value:.2g}"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def span(seconds: float) -> str:
    """Write a span of time for a person: three digits in the largest unit that fits."""
    units = (
        ("d", 86_400.0),
        ("h", 3600.0),
        ("min", 60.0),
        ("s", 1.0),
        ("ms", 1e-3),
        ("µs", 1e-6),
        ("ns", 1e-9),
    )
    for unit, length in units:
        if seconds >= length * (1 - 1e-9):
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def tick_text(value: float) -> str:
    """Write a tick: short, with k, M and G."""
    size = abs(value)
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if size >= factor:
            scale = 1e3 if unit == "k" else factor
            return f"{value / scale:g}{unit}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:g}"


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map of values onto pixels.

    Parameters
    ----------
    low, high : float
        Values at both ends.
    start, end : float
        Pixels at both ends.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return self.start + share * (self.end - self.start)
