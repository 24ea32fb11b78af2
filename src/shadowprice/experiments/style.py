"""Common style of all figures, with colours for colour-blind readers and for print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PALETTE: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
"""Okabe and Ito's colours, without yellow."""

POLICY_COLOURS: Final[Mapping[str, str]] = {
    "oasis": PALETTE[0],
    "pdors": PALETTE[1],
    "astraea": PALETTE[2],
    "fifo": PALETTE[6],
    "drf": PALETTE[4],
    "rrh": PALETTE[3],
    "dorm": PALETTE[5],
}
"""Colour of each policy in all figures."""

STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "savefig.facecolor": "white",
}
"""matplotlib settings shared by all figures."""
