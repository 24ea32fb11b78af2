"""Statements that are sent with every batch: put into words once, and not each time anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.sql.dml import Insert, Update


class Prepared:
    """A statement whose rows are given as they are stored: whole numbers and text.

    Parameters
    ----------
    statement : Insert or Update
        What is sent; the values of an update are bound parameters.
    """

    def __init__(self, statement: Insert | Update) -> None:
        self._statement = statement
        self._known: dict[tuple[str, ...], tuple[str, list[str] | None]] = {}

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute it for every row; all rows have the columns of the first."""
        dialect = connection.dialect
        key = (dialect.name, *rows[0])
        known = self._known.get(key)
        if known is None:
            columns = list(rows[0]) if isinstance(self._statement, Insert) else None
            made: Any = self._statement.compile(dialect=dialect, column_keys=columns)
            known = self._known[key] = str(made), made.positiontup
        text, order = known
        if order is None:
            connection.exec_driver_sql(text, [dict(row) for row in rows])
        else:
            connection.exec_driver_sql(text, [tuple([row[name] for name in order]) for row in rows])
