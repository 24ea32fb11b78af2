"""Heat maps over servers and slots, as images inside the page.

The image is a palette PNG written here: value 0 is transparent and the rest grows more opaque, so
one image reads well on a light and on a dark page, and the page's script reads values back from
the opacity alone.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.results.report.scales import Scale, number, tick_text, ticks

Floats = NDArray[np.float64]
Colour = tuple[int, int, int]

LOAD: Final[tuple[Colour, Colour]] = ((108, 178, 235), (29, 88, 196))
PRICE: Final[tuple[Colour, Colour]] = ((246, 190, 92), (196, 32, 92))

FAINTEST: Final = 26
"""Opacity of the smallest value above 0, of 255."""

LEFT, RIGHT, BOTTOM = 128, 14, 36


def heat_map(
    values: Floats,
    *,
    first_slot: int,
    slots_per_bin: int,
    slots: int,
    names: Sequence[str],
    servers_per_row: int,
    ramp: tuple[Colour, Colour],
    low: float,
    high: float,
    log: bool,
    what: str,
    width: int = 1060,
) -> str:
    """Return a heat map with axes and a colour bar.

    Parameters
    ----------
    values : ndarray of float64, shape (rows, bins)
        Rows from the top; NaN and values at or below ``low`` (when ``log``) are transparent.
    first_slot, slots_per_bin, slots : int
        What the bins cover.
    names : sequence of str
        All servers' names, in order.
    servers_per_row : int
        Servers that a row averages over.
    ramp : pair of colours
        Faintest and strongest.
    low, high : float
        Values at both ends of the ramp.
    log : bool
        Whether the ramp is logarithmic.
    what : str
        What the values are.
    width : int
        Pixels.
    """
    rows, bins = values.shape
    tall = int(np.clip(rows * 18, 54, 380))
    height = tall + BOTTOM + 8
    x = Scale(first_slot, first_slot + slots, LEFT, width - RIGHT)
    image = _png(_levels(values, low, high, log=log), _palette(ramp))
    smooth = bins > 1000 or rows > tall
    data = {
        "first": first_slot,
        "bin": slots_per_bin,
        "rows": [names[row * servers_per_row] for row in range(rows)],
        "low": low,
        "high": high,
        "log": log,
        "faintest": FAINTEST,
        "what": what,
        "group": servers_per_row,
    }
    wide = width - RIGHT - LEFT
    covered = bins * slots_per_bin / max(slots, 1) * wide
    drawn = (
        f'<svg x="{LEFT}" y="4" width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}">'
        f'<image class="{"smooth" if smooth else "crisp"}" width="{covered:.1f}" height="{tall}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{image}"/></svg>'
    )
    parts = [
        f'<rect class="panel" x="{LEFT}" y="4" width="{wide}" height="{tall}"/>',
        drawn,
        *_rows(names, rows, servers_per_row, tall),
    ]
    parts += [
        f'<text class="tick" x="{x(value):.1f}" y="{tall + 20}" text-anchor="middle">'
        f"{tick_text(value)}</text>"
        for value in ticks(x.low, x.high, 9)
    ]
    parts.append(
        f'<text class="axis" x="{width - RIGHT}" y="{tall + 36}" text-anchor="end">slot</text>'
    )
    drawing = (
        f'<svg class="chart heat" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(what)} over servers and slots" '
        f'data-box="{LEFT},4,{covered:.1f},{tall}" '
        f'data-heat="{escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False))}">'
        f"{''.join(parts)}</svg>"
    )
    return _colour_bar(ramp, low, high, what, log=log) + drawing


def _levels(values: Floats, low: float, high: float, *, log: bool) -> NDArray[np.uint8]:
    with np.errstate(divide="ignore", invalid="ignore"):
        if log:
            share = (np.log(values) - np.log(low)) / (np.log(high) - np.log(low))
            share = np.where(values > 0, np.maximum(share, 1 / 255), 0.0)
        else:
            share = (values - low) / (high - low)
    share = np.where(np.isfinite(share), np.clip(share, 0.0, 1.0), 0.0)
    levels = np.where(share > 0, np.maximum(np.rint(share * 255), 1), 0)  # a little is not nothing
    return np.asarray(levels, dtype=np.uint8)


def opacity(level: int) -> int:
    """Return the opacity of a level; the page's script inverts it."""
    return 0 if level == 0 else FAINTEST + round((255 - FAINTEST) * level / 255)


def _palette(ramp: tuple[Colour, Colour]) -> tuple[bytes, bytes]:
    colours, opacities = bytearray(), bytearray()
    for level in range(256):
        share = level / 255
        colours += bytes(round(a + (b - a) * share) for a, b in zip(ramp[0], ramp[1], strict=True))
        opacities.append(opacity(level))
    return bytes(colours), bytes(opacities)


def _png(levels: NDArray[np.uint8], palette: tuple[bytes, bytes]) -> str:
    """Return a palette PNG in base64 (PNG specification, colour type 3 with tRNS)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    rows, columns = levels.shape
    lines = np.zeros((rows, columns + 1), dtype=np.uint8)  # each line begins with filter type 0
    lines[:, 1:] = levels
    header = struct.pack(">IIBBBBB", max(columns, 1), max(rows, 1), 8, 3, 0, 0, 0)
    body = lines.tobytes() if levels.size else b"\0\0"
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"PLTE", palette[0])
        + chunk(b"tRNS", palette[1])
        + chunk(b"IDAT", zlib.compress(body, 9))
        + chunk(b"IEND", b"")
    )
    return base64.b64encode(data).decode()


def _rows(names: Sequence[str], rows: int, per_row: int, tall: int) -> list[str]:
    """Return the labels beside the rows: one a server where they fit, else one a family."""
    high = tall / max(rows, 1)
    if high >= 12:
        return [_label(names[row * per_row], 4 + (row + 0.5) * high) for row in range(rows)]
    parts = []
    families = [name.rstrip("0123456789").rstrip("-") for name in names]
    begin = 0
    for at in range(1, len(names) + 1):
        if at == len(names) or families[at] != families[begin]:
            top, end = 4 + begin / per_row * high, 4 + at / per_row * high
            if end - top >= 12:
                text = families[begin] if at - begin == 1 else f"{families[begin]} ({at - begin:,})"
                parts.append(_label(text, (top + end) / 2))
            if begin:
                parts.append(
                    f'<line class="base" x1="{LEFT - 6}" x2="{LEFT}" '
                    f'y1="{top:.1f}" y2="{top:.1f}"/>'
                )
            begin = at
    return parts


def _label(text: str, middle: float) -> str:
    shown = text if len(text) <= 18 else f"{text[:17]}…"
    return (
        f'<text class="tick" x="{LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">'
        f"{escape(shown)}</text>"
    )


def _colour_bar(
    ramp: tuple[Colour, Colour], low: float, high: float, what: str, *, log: bool
) -> str:
    stops = ", ".join(
        f"rgba({', '.join(str(round(a + (b - a) * s)) for a, b in zip(*ramp, strict=True))}, "
        f"{opacity(max(1, round(255 * s))) / 255:.2f})"
        for s in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    scale = ", logarithmic" if log else ""
    least = f"{number(low)} or less" if log else number(low)
    return (
        f'<div class="legend"><span>{escape(what)}{scale}</span><span>{least}'
        f'<em class="ramp" style="background:linear-gradient(90deg, {stops})"></em>'
        f"{number(high)}</span></div>"
    )
