"""Statements that are sent again and again: put into words once, and not each time anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult, Select
from sqlalchemy.sql.dml import Insert, Update


class Prepared:
    """A statement whose rows are given as they are stored: whole numbers and text.

    Parameters
    ----------
    statement : Insert, Update or Select
        What is sent; the values of all but an insertion are bound parameters.
    """

    def __init__(self, statement: Insert | Update | Select[Any]) -> None:
        self._statement = statement
        self._known: dict[tuple[str, ...], tuple[str, list[str] | None]] = {}

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute it for every row; all rows have the columns of the first."""
        text, order = self._worded(connection, rows[0])
        if order is None:
            connection.exec_driver_sql(text, [dict(row) for row in rows])
        else:
            connection.exec_driver_sql(text, [tuple([row[name] for name in order]) for row in rows])

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> CursorResult[Any]:
        """Return what it finds with these values."""
        text, order = self._worded(connection, values)
        if order is None:
            return connection.exec_driver_sql(text, dict(values))
        return connection.exec_driver_sql(text, tuple([values[name] for name in order]))

    def _worded(
        self, connection: Connection, row: Mapping[str, Any]
    ) -> tuple[str, list[str] | None]:
        """Return its words, and the order of its values where they are told by that."""
        dialect = connection.dialect
        key = (dialect.name, *row)
        known = self._known.get(key)
        if known is None:
            columns = list(row) if isinstance(self._statement, Insert) else None
            made: Any = self._statement.compile(dialect=dialect, column_keys=columns)
            known = self._known[key] = str(made), made.positiontup
        return known
