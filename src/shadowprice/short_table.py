"""Short tables, which represent results and records at a Python prompt and in a notebook.

Both the REST models and the API use this module, so it only imports the standard library.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import Final

MAX_ROWS: Final = 20  # maximum number of rows that are shown
MAX_FIELDS: Final = 60  # maximum number of fields of a record that are shown, one per row
MAX_COLUMNS: Final = 10  # maximum number of columns that are shown
MAX_CELL_CHARS: Final = 60  # maximum number of characters of a cell or heading


@dataclass(frozen=True, slots=True)
class ShortTable:
    """A heading over rows of text."""

    title: str  # one line above the table
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]  # cells of the first rows, at least of those that are shown
    total: int  # number of all rows, which may be more than in ``rows``
    numeric: Collection[int] = ()  # positions of right-aligned columns
    max_rows: int = MAX_ROWS  # limit of the rows that are shown
    row_noun: str = "row"  # for the remark on rows that are left out

    @property
    def remark(self) -> str:
        """Number of rows and columns that are left out; empty if everything is shown."""
        omitted = (
            (self.total - min(len(self.rows), self.max_rows), self.row_noun),
            (len(self.columns) - MAX_COLUMNS, "column"),
        )
        parts = [f"{n:,} more {noun}{'s' if n > 1 else ''}" for n, noun in omitted if n > 0]
        return " and ".join(parts)

    def text(self) -> str:
        """Return lines of aligned text. Unprintable characters are escaped."""
        lines = [_printable(self.title)]
        rows = [self.columns, *self.rows[: self.max_rows]] if self.total else []
        cells = [[_cell(cell) for cell in row[:MAX_COLUMNS]] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            aligned = (
                cell.rjust(width) if index in self.numeric else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join(aligned).rstrip())
        if self.remark:
            lines.append(f"and {self.remark}")
        return "\n".join(lines)

    def html(self) -> str:
        """Return an HTML table in which all text is escaped."""
        parts = [f"<p>{escape(_printable(self.title))}</p>"]
        if self.total:
            head = self._html_row("th", self.columns)
            body = "".join(self._html_row("td", row) for row in self.rows[: self.max_rows])
            parts.append(f"<table><thead>{head}</thead><tbody>{body}</tbody></table>")
        if self.remark:
            parts.append(f"<p>and {self.remark}</p>")
        return f"<div>{''.join(parts)}</div>"

    def _html_row(self, tag: str, row: Sequence[str]) -> str:
        cells = (
            f'<{tag} style="text-align: {"right" if index in self.numeric else "left"}">'
            f"{escape(_cell(cell))}</{tag}>"
            for index, cell in enumerate(row[:MAX_COLUMNS])
        )
        return f"<tr>{''.join(cells)}</tr>"


class ShownAsTable:
    """Mixin: show an object as its short table."""

    __slots__ = ()

    def short_table(self) -> ShortTable:
        """Return the table that represents the object."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.short_table().text()

    def _repr_html_(self) -> str:
        return self.short_table().html()


def table_of_records(
    title: str, records: Sequence[Iterable[tuple[str | None, object]]]
) -> ShortTable:
    """Return a table with a row for each record of (field, value); empty fields are left out."""
    shown = [
        {str(name): value for name, value in record if value not in (None, (), [], {}, "")}
        for record in islice(records, MAX_ROWS)
    ]
    columns = list(dict.fromkeys(name for record in shown for name in record))
    rows = [[format_value(record.get(name)) for name in columns] for record in shown]
    numeric = {
        index
        for index, name in enumerate(columns)
        if all(isinstance(record.get(name, 0), int | float) for record in shown)
    }
    return ShortTable(title, columns, rows, len(records), numeric)


def format_value(value: object) -> str:
    """Return a value as text for a cell; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:,.6g}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple | set | frozenset):
        values = list(islice(value, MAX_ROWS))
        return ", ".join(format_value(item) for item in values)
    if isinstance(value, dict):
        pairs = islice(value.items(), MAX_ROWS)
        return ", ".join(f"{key}={format_value(item)}" for key, item in pairs)
    return str(value)


def _cell(text: str) -> str:
    shown = _printable(text[: MAX_CELL_CHARS + 1])
    return shown if len(shown) <= MAX_CELL_CHARS else f"{shown[: MAX_CELL_CHARS - 1]}…"


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
