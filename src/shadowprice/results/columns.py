"""Declares the columns of a table in one line, and splits tables into blocks of slots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray


def typed_columns(names: str) -> dict[str, pl.DataType]:
    """Return the types of columns by name, from names separated by spaces.

    ``name`` is text, ``name:i`` a 64-bit integer, ``name:s`` a 32-bit integer, ``name:f`` a float.
    """
    kinds = {"": pl.String(), "i": pl.Int64(), "s": pl.Int32(), "f": pl.Float64()}
    return {name: kinds[kind] for name, _, kind in (word.partition(":") for word in names.split())}


def slot_blocks(slots: NDArray[np.int64], maximum: int) -> Iterator[slice]:
    """Split ascending slots into slices of about ``maximum`` rows that never split a slot."""
    start = 0
    while start < len(slots):
        last = slots[min(start + maximum, len(slots)) - 1]
        end = int(np.searchsorted(slots, last, side="right"))
        yield slice(start, end)
        start = end
