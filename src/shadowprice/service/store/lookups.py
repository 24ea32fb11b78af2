"""Lookups and statements that many queries share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, CursorResult, Row, Select, select
from sqlalchemy.sql.dml import Insert, Update

from shadowprice.service.store import tables

ItemT = TypeVar("ItemT")

CHUNK: Final = 500  # maximum values in a condition, because SQLite limits bound parameters


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


class PreparedStatement:
    """A compiled statement whose values, integers and text, are bound parameters."""

    def __init__(self, statement: Insert | Update | Select[Any]) -> None:
        self._statement = statement
        self._known: dict[tuple[str, ...], tuple[str, list[str] | None]] = {}

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute the statement for each row; all rows have the columns of the first."""
        text, order = self._compile_text(connection, rows[0])
        if order is None:
            connection.exec_driver_sql(text, [dict(row) for row in rows])
        else:
            connection.exec_driver_sql(text, [tuple([row[name] for name in order]) for row in rows])

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> CursorResult[Any]:
        """Return the result of a query with these parameters."""
        text, order = self._compile_text(connection, values)
        if order is None:
            return connection.exec_driver_sql(text, dict(values))
        return connection.exec_driver_sql(text, tuple([values[name] for name in order]))

    def _compile_text(
        self, connection: Connection, row: Mapping[str, Any]
    ) -> tuple[str, list[str] | None]:
        """Return the SQL text, and the parameters' order if the dialect's are positional."""
        dialect = connection.dialect
        key = (dialect.name, *row)
        cached = self._known.get(key)
        if cached is None:
            columns = list(row) if isinstance(self._statement, Insert) else None
            compiled: Any = self._statement.compile(dialect=dialect, column_keys=columns)
            cached = self._known[key] = str(compiled), compiled.positiontup
        return cached
