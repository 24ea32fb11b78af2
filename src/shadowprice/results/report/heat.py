"""Heat maps over servers and slots, with one byte for each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.results.report.charts import Floats, chart

MAX_CELLS: Final = 150_000
"""Maximum number of cells of a heat map; above it, neighbouring slots are merged."""


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
    """Return a heat map of a quantity (``what``); ``title`` is that of the line chart of one row.

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
    result = np.where(share > 0, np.maximum(np.rint(share * 255), 1), 0)  # show small values
    return np.asarray(result, dtype=np.uint8)
