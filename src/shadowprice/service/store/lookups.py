"""Lookups that many queries share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, select

from shadowprice.service.store import tables

ItemT = TypeVar("ItemT")

CHUNK: Final = 500  # maximum number of values in a condition, because SQLite limits parameters


def in_chunks(values: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
    """Yield values in chunks that a condition of a statement can hold."""
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def rows_among(
    connection: Connection, query: Select[Any], column: ColumnElement[Any], values: Sequence[Any]
) -> Iterator[Row[Any]]:
    """Yield the rows of a query in which a column has one of these values."""
    for chunk in in_chunks(values):
        yield from connection.execute(query.where(column.in_(chunk)))


def stored_value(connection: Connection, key: str) -> str | None:
    """Return the value of a key in the key-value table; None if it isn't set."""
    query = select(tables.meta.c.value).where(tables.meta.c.key == key)
    value: str | None = connection.execute(query).scalar()
    return value
