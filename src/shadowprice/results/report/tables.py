"""Tables that can be filtered, sorted and turned over, and that still read without a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from shadowprice.results.report.scales import number

MOST_ROWS: Final = 4000
"""Most rows that a page carries."""

PAGE: Final = 25
"""Rows shown at once."""

Cell = str | float | int | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Parameters
    ----------
    heading : str
        What it holds.
    numeric : bool
        Numbers: set to the right and sorted as numbers.
    """

    heading: str
    numeric: bool = False


def data_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    total: int | None = None,
    remark: str = "",
) -> str:
    """Return a table.

    Parameters
    ----------
    columns : sequence of Column
        The columns.
    rows : sequence of rows
        At most `MOST_ROWS` of them are taken.
    total : int, optional
        How many there are in all, where ``rows`` is a choice.
    remark : str
        What the choice is.
    """
    taken = [[_kept(cell) for cell in row] for row in rows[:MOST_ROWS]]
    heads = "".join(
        f'<th{" class=num" if column.numeric else ""} tabindex="0">{escape(column.heading)}</th>'
        for column in columns
    )
    body = "".join(_row(columns, row) for row in taken[:PAGE])
    in_all = total if total is not None else len(rows)
    left_out = ""
    if in_all > len(taken):
        left_out = f'<p class="remark">{len(taken):,} of {in_all:,} are shown: {escape(remark)}</p>'
    if len(taken) < 6:
        static = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        return f"<div class=table>{static}</div>{left_out}"
    data = json.dumps(taken, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return (
        '<div class="table live"><div class="tools">'
        '<input type="search" placeholder="Filter" aria-label="Filter rows">'
        '<span class="count"></span><span class="pager"></span></div>'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        f'<script type="application/json">{data}</script></div>{left_out}'
    )


def _kept(cell: Cell) -> Cell:
    return float(f"{cell:.6g}") if isinstance(cell, float) else cell


def _row(columns: Sequence[Column], row: Sequence[Cell]) -> str:
    cells = []
    for column, cell in zip(columns, row, strict=True):
        if column.numeric:
            text = "" if cell is None else number(float(cell))
            cells.append(f"<td class=num>{text}</td>")
        else:
            cells.append(f"<td>{escape('' if cell is None else str(cell))}</td>")
    return f"<tr>{''.join(cells)}</tr>"
