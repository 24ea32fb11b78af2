"""Formatting of numbers and durations."""

from __future__ import annotations

import math


def format_number(value: float) -> str:
    """Format a number with thousands separators and about two significant decimals."""
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


def format_duration(seconds: float) -> str:
    """Format a duration with three digits in the largest unit that fits."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    units = {"d": 86_400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    for unit, length in units.items():
        # The rounded number decides: 59.99 s are 1 min, not 60 s.
        if float(f"{seconds / length:.3g}") >= 1:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
