"""Descriptions of charts, which the page's script draws (``assets/charts.mjs``).

A description is plain data: the kind of chart and its values. It is embedded in the page where the
chart appears.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.results.report.inline_assets import data_script, round_number, round_numbers, text
from shadowprice.results.report.number_format import format_number

Floats = NDArray[np.float64]
COLOURS: Final = 8  # colours of series in ``page.css``; the last is grey, for secondary values
POINTS: Final = 600  # maximum number of points of a line
_AXIS_DIGITS: Final = 9  # digits of positions, so that bars and lines of charts meet
DOTS: Final = 300  # maximum number of values that a box plot also draws as dots

MAX_CELLS: Final = 150_000
"""Maximum number of cells of a heat map; above it, neighbouring slots are merged."""


def chart(description: Mapping[str, Any], *blocks: object) -> str:
    """Return the element of a chart; ``blocks`` are uint8 arrays that would be too long as JSON."""
    inside = "".join(data_script(block) for block in (description, *blocks))
    return f'<div class="chart" data-chart="{text(description["kind"])}">{inside}</div>'


def figure(title: str, body: str, remark: str = "") -> str:
    """Return a chart with its title and a caption; empty without a chart."""
    if not body:
        return ""
    caption = f"<figcaption>{text(remark)}</figcaption>" if remark else ""
    return f"<figure><h3>{text(title)}</h3>{body}{caption}</figure>"


def downsample(
    values: Floats, maximum: int = POINTS, *, last: bool = False
) -> tuple[NDArray[np.intp], Floats]:
    """Reduce one value per slot to at most ``maximum`` points, by mean or last value.

    Last values are for sums over time. Returns the position of each group's first (or last) value,
    and the group's value.
    """
    size = -(-len(values) // maximum) if len(values) else 1
    starts = np.arange(0, len(values), size)
    if last:
        ends = np.minimum(starts + size, len(values)) - 1
        return ends, values[ends]
    finite = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        sums = np.add.reduceat(np.where(finite, values, 0.0), starts) if len(values) else values
        counts = np.add.reduceat(finite, starts) if len(values) else values
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return starts, np.asarray(means, dtype=np.float64)


def line_chart(
    xs: Floats,
    lines: Sequence[tuple[str, Floats, int]],
    *,
    x_label: str,
    y_label: str,
    slots: bool = True,
    height: int = 260,
    y_high: float | None = None,
    steps: bool = False,
    **flags: bool,
) -> str:
    """Return a chart of lines over a shared x axis with ascending positions.

    ``lines`` are (name, values, colour), with a value for each position; NaN leaves a gap. If
    positions are ``slots``, the axis shows time, and all such charts zoom together. ``y_high`` is
    the top of the y axis, by default the maximum. With ``steps``, a value holds until the next
    position. Further flags: ``fill`` the area below the lines; ``percent``: values are fractions;
    show the ``legend`` even for a single line; ``prices``: job histories show an excerpt.
    """
    description: dict[str, Any] = {
        "kind": "slotLines" if slots else "lines",
        "slots": slots,
        "x": _axis(xs),
        "x_label": x_label,
        "y_label": y_label,
        "height": height,
        "series": [
            {"name": name, "colour": colour, "values": round_numbers(values)}
            for name, values, colour in lines
        ],
    }
    if steps and len(xs):
        step = xs[-1] - xs[-2] if len(xs) > 1 else 1.0
        description["end"] = round_number(xs[-1] + step, _AXIS_DIGITS)
    if y_high is not None:
        description["y_high"] = y_high
    description |= {name: True for name, given in {**flags, "steps": steps}.items() if given}
    if len(xs) > 1 and slots and xs[1] - xs[0] > 1:
        description["remark"] = f"A row stands for {format_number(float(xs[1] - xs[0]))} slots."
    return chart(description)


def _axis(xs: Floats) -> object:
    """Return positions, or only first, step and count if they are evenly spaced."""
    if len(xs) > 2 and (np.diff(xs) == xs[1] - xs[0]).all():
        return {
            "first": round_number(xs[0], _AXIS_DIGITS),
            "step": round_number(xs[1] - xs[0], _AXIS_DIGITS),
            "count": len(xs),
        }
    return round_numbers(xs, _AXIS_DIGITS)


def box_plot(rows: Sequence[tuple[str, Floats, int]], *, x_label: str, zero: str) -> str:
    """Return a horizontal box plot: median, quartiles, whiskers at 5 % and 95 %.

    ``rows`` are (name, values, colour). If a row has at most `DOTS` values, they are also drawn as
    dots. ``zero`` labels the line at 0. Empty without rows.
    """
    if not rows:
        return ""
    limits = [np.percentile(values, (1, 99)) for _, values, _ in rows if len(values)]
    drawn = []
    for name, values, colour in rows:
        row: dict[str, Any] = {"name": name, "count": len(values), "colour": colour}
        if len(values):
            row["five"] = round_numbers(np.percentile(values, (5, 25, 50, 75, 95)))
        row["dots"] = round_numbers(values if len(values) <= DOTS else values[:0])
        drawn.append(row)
    return chart(
        {
            "kind": "boxes",
            "rows": drawn,
            "x_label": x_label,
            "zero": zero,
            "low": min([float(limit[0]) for limit in limits] + [0.0]),
            "high": max([float(limit[1]) for limit in limits] + [1.0]),
        }
    )


def interval_plot(
    rows: Sequence[tuple[str, Floats, tuple[float, float, float], int]], *, x_label: str
) -> str:
    """Return intervals and dots of rows (name, values, (low, mean, high), colour)."""
    lows = [min(ends[0], float(values.min())) for _, values, ends, _ in rows]
    highs = [max(ends[2], float(values.max())) for _, values, ends, _ in rows]
    return chart(
        {
            "kind": "boxes",
            "intervals": True,
            "rows": [
                {
                    "name": name,
                    "count": len(values),
                    "colour": colour,
                    # Five numbers of a box plot: the box is the interval, without whiskers.
                    "five": round_numbers(np.array([low, low, mean, high, high])),
                    "dots": round_numbers(values),
                }
                for name, values, (low, mean, high), colour in rows
            ],
            "x_label": x_label,
            "zero": "",
            "low": min(lows, default=0.0),
            "high": max(highs, default=1.0),
        }
    )


def bars(rows: Sequence[tuple[str, float, str, int]], label: str) -> str:
    """Return horizontal bars of rows (name, value, text drawn after the bar, colour)."""
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    return chart(
        {
            "kind": "bars",
            "label": label,
            "names": list(columns[0]),
            "values": round_numbers(np.array(columns[1], dtype=np.float64)),
            "texts": list(columns[2]),
            "colours": list(columns[3]),
        }
    )


def share_bars(
    rows: Sequence[str], parts: Sequence[tuple[str, int, Sequence[float], Sequence[str]]]
) -> str:
    """Return stacked bars of shares; ``parts`` are (name, colour, values, texts) by row."""
    shown = [part for part in parts if any(part[2])]
    if not shown:
        return ""
    return chart(
        {
            "kind": "shares",
            "rows": list(rows),
            "parts": [
                {
                    "name": name,
                    "colour": colour,
                    "values": round_numbers(np.array(values, dtype=np.float64), 9),
                    "texts": list(texts),
                }
                for name, colour, values, texts in shown
            ],
        }
    )


# ---------------------------------------------------------------- heat maps


@dataclass(frozen=True, slots=True, eq=False)
class HeatGrid:
    """Values over groups of servers and bins of slots."""

    values: Floats  # shape (rows, bins), rows from the top; NaN for missing values
    first: int  # first slot
    per_bin: int  # slots in a bin
    slots: int  # total number
    names: Sequence[str]  # first server of each row
    per_row: int  # servers that a row averages over

    def fitted(self, maximum: int = MAX_CELLS) -> HeatGrid:
        """Return the grid with at most ``maximum`` cells, by averaging neighbouring bins."""
        grid = self
        while grid.values.size > maximum and grid.values.shape[1] > 1:
            grid = grid._halve_columns()
        return grid

    def _halve_columns(self) -> HeatGrid:
        odd = self.values.shape[1] % 2
        padded = np.pad(self.values, ((0, 0), (0, odd)), constant_values=np.nan)
        pairs = padded.reshape(len(padded), -1, 2)
        finite = np.isfinite(pairs)
        counts = finite.sum(axis=2)
        sums = np.where(finite, pairs, 0.0).sum(axis=2)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        return replace(self, values=np.asarray(means, dtype=np.float64), per_bin=self.per_bin * 2)


def heat_map(
    grid: HeatGrid, *, ramp: str, low: float, high: float, log: bool, what: str, title: str
) -> str:
    """Return a heat map of a quantity (``what``); ``title`` heads the line chart of a row.

    ``low`` and ``high`` are the values at both ends of the ``ramp`` of colours (``load`` or
    ``price``). NaN, and values at or below ``low`` (or 0 if ``log``), are left blank.
    """
    rows, bins = grid.values.shape
    description: dict[str, Any] = {
        "kind": "heat",
        "rows": rows,
        "bins": bins,
        "first": grid.first,
        "bin": grid.per_bin,
        "slots": grid.slots,
        "names": list(grid.names),
        "group": grid.per_row,
        "ramp": ramp,
        "low": low,
        "high": high,
        "log": log,
        "percent": ramp == "load",
        "what": what,
        "title": title,
    }
    return chart(description, levels(grid.values, low, high, log=log).ravel())


def levels(values: Floats, low: float, high: float, *, log: bool) -> NDArray[np.uint8]:
    """Scale values to levels from 1 to 255 between ``low`` and ``high``; 0 for missing values.

    The page's script inverts it: ``low + level / 255 (high - low)``, or ``low (high / low)**(level
    / 255)``.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if log:
            share = (np.log(values) - np.log(low)) / (np.log(high) - np.log(low))
            share = np.where(values > 0, np.maximum(share, 1 / 255), 0.0)
        else:
            share = (values - low) / (high - low)
    share = np.where(np.isfinite(share), np.clip(share, 0.0, 1.0), 0.0)
    # At least 1, so that small values are visible.
    result = np.where(share > 0, np.maximum(np.rint(share * 255), 1), 0)
    return np.asarray(result, dtype=np.uint8)
