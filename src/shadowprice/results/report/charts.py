"""Charts as SVG that follow the page's theme, written without a plotting library.

Colours are CSS classes (``c0`` to ``c7``), so one drawing serves light, dark and print. Line charts
carry their numbers in a ``data-chart`` attribute, from which the page's script shows tooltips.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.results.report.scales import Scale, number, tick_text, ticks

Floats = NDArray[np.float64]

POINTS: Final = 600
"""Most points of a line."""

LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 36


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One line of a chart.

    Parameters
    ----------
    name : str
        What the legend calls it.
    values : ndarray of float64
        One a position of the x axis; NaN leaves a gap.
    colour : int
        Number of its colour.
    """

    name: str
    values: Floats
    colour: int = 0


def thin(values: Floats, most: int = POINTS, *, last: bool = False) -> tuple[Floats, Floats]:
    """Return positions and values of at most so many points: means of neighbours, or the last.

    Parameters
    ----------
    values : ndarray of float64
        One a slot.
    most : int
        Points wanted.
    last : bool
        Keep the last value of each group instead of the mean (sums over time).

    Returns
    -------
    (ndarray of float64, ndarray of float64)
        Position of each group's first (or last) value, and the group's value.
    """
    size = -(-len(values) // most) if len(values) else 1
    starts = np.arange(0, len(values), size)
    if last:
        ends = np.minimum(starts + size, len(values)) - 1
        return ends.astype(np.float64), values[ends]
    finite = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        sums = np.add.reduceat(np.where(finite, values, 0.0), starts) if len(values) else values
        counts = np.add.reduceat(finite, starts) if len(values) else values
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return starts.astype(np.float64), np.asarray(means, dtype=np.float64)


def line_chart(
    xs: Floats,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    width: int = 1060,
    height: int = 280,
    fill: bool = False,
    y_high: float | None = None,
    percent: bool = False,
    legend: bool | None = None,
    steps: bool = False,
) -> str:
    """Return a chart of lines over a shared x axis.

    Parameters
    ----------
    xs : ndarray of float64
        Positions, ascending.
    series : sequence of Series
        The lines.
    x_label, y_label : str
        What the axes count.
    width, height : int
        Pixels of the drawing, which scales to its column.
    fill : bool
        Fill the area below the lines.
    y_high : float, optional
        Top of the y axis; else the largest value.
    percent : bool
        Values are shares.
    legend : bool, optional
        Whether to name the lines; by default where there are several.
    steps : bool
        Values hold until the next position.
    """
    finite = [s.values[np.isfinite(s.values)] for s in series]
    top = max((float(values.max()) for values in finite if len(values)), default=1.0)
    low = min((float(values.min()) for values in finite if len(values)), default=0.0)
    y_ticks = ticks(min(low, 0.0), y_high or top or 1.0, 5)
    high = y_high or max(top, y_ticks[-1]) or 1.0
    first = float(xs[0]) if len(xs) else 0.0
    x = Scale(first, max(_end(xs, steps=steps), first + 1), LEFT, width - RIGHT)
    y = Scale(min(low, 0.0), high, height - BOTTOM, TOP)
    parts = [_axes(x, y, y_ticks, x_label, y_label, width, height, percent=percent)]
    for one in series:
        path = _path(xs, one.values, x, y, steps=steps)
        if fill and path:
            parts.append(_area(xs, one.values, x, y, one.colour, steps=steps))
        parts.append(f'<path class="line s{one.colour}" d="{path}"/>')
    data = {
        "left": LEFT,
        "right": width - RIGHT,
        "top": TOP,
        "bottom": height - BOTTOM,
        "width": width,
        "label": x_label,
        "percent": percent,
        "end": x.high,
        "xs": _rounded(xs),
        "series": [{"name": s.name, "c": s.colour, "values": _rounded(s.values)} for s in series],
    }
    drawing = (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(y_label)} over {escape(x_label)}" '
        f'data-chart="{escape(json.dumps(data, separators=(",", ":")))}">{"".join(parts)}</svg>'
    )
    named = legend if legend is not None else len(series) > 1
    return (legend_row([(s.name, s.colour) for s in series]) if named else "") + drawing


def legend_row(entries: Sequence[tuple[str, int]]) -> str:
    """Return a row of names with their colours."""
    items = "".join(f'<span><i class="c{c}"></i>{escape(name)}</span>' for name, c in entries)
    return f'<div class="legend">{items}</div>'


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """One row of a box plot.

    Parameters
    ----------
    label : str
        What the values are of.
    values : ndarray of float64
        All of them.
    colour : int
        Number of its colour.
    """

    label: str
    values: Floats
    colour: int = 0


def box_plot(boxes: Sequence[Box], *, x_label: str, zero: str, width: int = 1060) -> str:
    """Return horizontal boxes: median, quartiles, whiskers at 5 % and 95 %, and the jobs as dots.

    Parameters
    ----------
    boxes : sequence of Box
        Rows, from the top.
    x_label : str
        What the axis counts.
    zero : str
        What the line at 0 means.
    width : int
        Pixels.
    """
    row, left = 46, 190
    height = TOP + 14 + row * len(boxes) + BOTTOM
    shown = [np.percentile(box.values, (1, 99)) for box in boxes if len(box.values)]
    low = min([float(edge[0]) for edge in shown] + [0.0])
    high = max([float(edge[1]) for edge in shown] + [1.0])
    pad = 0.04 * (high - low)
    x = Scale(low - pad, high + pad, left, width - RIGHT)
    base = height - BOTTOM
    parts = [_x_axis(x, base, TOP + 14, x_label, width)]
    at_zero = x(0.0)
    parts.append(_line("mark", at_zero, at_zero, TOP, base))
    parts.append(f'<text class="note" x="{at_zero + 5:.1f}" y="{TOP + 6}">{escape(zero)}</text>')
    for at, box in enumerate(boxes):
        parts.append(_box(box, x, TOP + 14 + row * at + row / 2, left))
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(x_label)}">{"".join(parts)}</svg>'
    )


def _box(box: Box, x: Scale, middle: float, left: int) -> str:
    label = (
        f'<text class="row" x="{left - 12}" y="{middle - 1:.1f}" text-anchor="end">'
        f"{escape(box.label)}</text>"
        f'<text class="note" x="{left - 12}" y="{middle + 13:.1f}" text-anchor="end">'
        f"{len(box.values):,} job{'s' if len(box.values) != 1 else ''}</text>"
    )
    if not len(box.values):
        return label
    p5, p25, p50, p75, p95 = (float(v) for v in np.percentile(box.values, (5, 25, 50, 75, 95)))
    parts = [label, f'<g class="s{box.colour}"><title>']
    parts.append(
        f"{escape(box.label)}: median {number(p50)}, half between {number(p25)} and {number(p75)}, "
        f"nine in ten between {number(p5)} and {number(p95)}</title>"
    )
    if len(box.values) <= 300:
        # Spread by the golden ratio: even, and the same in every rendering.
        for at, value in enumerate(box.values.tolist()):
            offset = ((at * 0.6180339887) % 1.0 - 0.5) * 26
            parts.append(f'<circle cx="{x(value):.1f}" cy="{middle + offset:.1f}" r="2"/>')
    parts.append(
        f'<path class="whisker" d="M{x(p5):.1f} {middle:.1f}H{x(p25):.1f}'
        f"M{x(p75):.1f} {middle:.1f}H{x(p95):.1f}M{x(p5):.1f} {middle - 5:.1f}v10"
        f'M{x(p95):.1f} {middle - 5:.1f}v10"/>'
    )
    wide = max(x(p75) - x(p25), 1.5)
    parts.append(
        f'<rect class="box" x="{x(p25):.1f}" y="{middle - 10:.1f}" width="{wide:.1f}" height="20" '
        'rx="3"/>'
    )
    parts.append(f'<path class="median" d="M{x(p50):.1f} {middle - 10:.1f}v20"/></g>')
    return "".join(parts)


def bars(rows: Sequence[tuple[str, float, str, int]], *, width: int = 520) -> str:
    """Return horizontal bars from 0.

    Parameters
    ----------
    rows : sequence of (label, value, text, colour)
        From the top; ``text`` stands behind the bar.
    width : int
        Pixels.
    """
    row, left, right = 30, 130, 90
    top = max((value for _, value, _, _ in rows), default=1.0) or 1.0
    x = Scale(0.0, top, left, width - right)
    parts = []
    for at, (label, value, text, colour) in enumerate(rows):
        y = at * row + 5
        long = max(x(max(value, 0.0)) - left, 1.0)
        parts.append(
            f'<text class="row" x="{left - 10}" y="{y + 14}" text-anchor="end">'
            f"{escape(label)}</text>"
            f'<rect class="f{colour}" x="{left}" y="{y}" width="{long:.1f}" height="20" rx="3"/>'
            f'<text class="value" x="{left + long + 8:.1f}" y="{y + 14}">{escape(text)}</text>'
        )
    return (
        f'<svg class="chart" viewBox="0 0 {width} {row * len(rows) + 6}" role="img">'
        f"{''.join(parts)}</svg>"
    )


def share_bar(parts: Sequence[tuple[str, float, str, int]]) -> str:
    """Return one bar divided by shares.

    Parameters
    ----------
    parts : sequence of (label, value, text, colour)
        What it is divided into; parts of nothing are left out.
    """
    total = sum(value for _, value, _, _ in parts)
    if not total:
        return ""
    cells = "".join(
        f'<div class="c{colour}" style="flex:{value / total:.6f}" '
        f'title="{escape(label)}: {escape(text)}"></div>'
        for label, value, text, colour in parts
        if value
    )
    names = "".join(
        f'<span><i class="c{colour}"></i>{escape(label)} <b>{escape(text)}</b></span>'
        for label, value, text, colour in parts
        if value
    )
    return f'<div class="share">{cells}</div><div class="legend">{names}</div>'


def _axes(
    x: Scale,
    y: Scale,
    y_ticks: Sequence[float],
    x_label: str,
    y_label: str,
    width: int,
    height: int,
    *,
    percent: bool,
) -> str:
    parts = []
    for value in y_ticks:
        at = y(value)
        text = f"{value * 100:g}%" if percent else tick_text(value)
        parts.append(_line("grid", LEFT, width - RIGHT, at, at))
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'
        )
    middle = (TOP + height - BOTTOM) / 2
    parts.append(
        f'<text class="axis" transform="translate(14 {middle:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    parts.append(_x_axis(x, height - BOTTOM, None, x_label, width))
    return "".join(parts)


def _x_axis(x: Scale, base: float, top: float | None, label: str, width: int) -> str:
    parts = [_line("base", x.start, x.end, base, base)]
    for value in ticks(x.low, x.high, max(int((x.end - x.start) / 110), 2)):
        at = x(value)
        if top is not None:
            parts.append(_line("grid", at, at, top, base))
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{base + 16}" text-anchor="middle">'
            f"{tick_text(value)}</text>"
        )
    parts.append(
        f'<text class="axis" x="{width - RIGHT}" y="{base + 31}" text-anchor="end">'
        f"{escape(label)}</text>"
    )
    return "".join(parts)


def _line(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _end(xs: Floats, *, steps: bool) -> float:
    """Return where the axis ends: a step's last value holds as long as the one before it."""
    if not len(xs):
        return 1.0
    return float(xs[-1] + (xs[-1] - xs[-2] if len(xs) > 1 else 1.0) * steps)


def _path(xs: Floats, values: Floats, x: Scale, y: Scale, *, steps: bool) -> str:
    parts: list[str] = []
    pen = False
    ends = np.append(xs[1:], _end(xs, steps=steps)).tolist()
    for position, end, value in zip(xs.tolist(), ends, values.tolist(), strict=True):
        if not np.isfinite(value):
            pen = False
            continue
        here = f"{x(position):.1f} {y(value):.1f}"
        if steps:
            parts.append(f"V{y(value):.1f}" if pen else f"M{here}")
            parts.append(f"H{x(end):.1f}")
        else:
            parts.append(f"L{here}" if pen else f"M{here}")
        pen = True
    return "".join(parts)


def _area(xs: Floats, values: Floats, x: Scale, y: Scale, colour: int, *, steps: bool) -> str:
    known = np.where(np.isfinite(values), values, 0.0)
    line = _path(xs, known, x, y, steps=steps).replace("M", "L", 1)
    base = y(max(y.low, 0.0))
    start, end = x(float(xs[0])), x(_end(xs, steps=steps))
    return f'<path class="area f{colour}" d="M{start:.1f} {base:.1f}{line}L{end:.1f} {base:.1f}Z"/>'


def _rounded(values: Floats) -> list[float | int | None]:
    return [_short(value) for value in values.tolist()]


def _short(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.5g}")
