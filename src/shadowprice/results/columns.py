"""Columns of tables with their types, in one line."""

from __future__ import annotations

import polars as pl


def typed_columns(names: str) -> dict[str, pl.DataType]:
    """Return columns by name, in order; ``name`` is text.

    ``name:i`` is an integer of 64 bits, ``name:s`` one of 32, and ``name:f`` a float.
    """
    kinds = {"": pl.String(), "i": pl.Int64(), "s": pl.Int32(), "f": pl.Float64()}
    return {name: kinds[kind] for name, _, kind in (word.partition(":") for word in names.split())}
