"""Lookups that many queries share: the value of a key, and long lists of values in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from sqlalchemy import Connection, select

from shadowprice.service.store import tables

ItemT = TypeVar("ItemT")

CHUNK: Final = 500
"""Maximum number of values in a condition, because SQLite limits bound parameters."""


def in_chunks(values: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
    """Yield values in chunks that a condition of a statement can hold."""
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def stored_value(connection: Connection, key: str) -> str | None:
    """Return the value of a key in the key-value table; None if it isn't set."""
    query = select(tables.meta.c.value).where(tables.meta.c.key == key)
    value: str | None = connection.execute(query).scalar()
    return value
