"""Tables that can be filtered, sorted and turned over, and that still read without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.results.report.embed import data_script, text
from shadowprice.results.report.scales import number

MOST_ROWS: Final = 1000
"""Most rows that a table of a page carries."""

PAGE: Final = 10
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
    minor : bool
        Left out on narrow screens.
    link : bool
        Names jobs, which open their stories.
    slot : bool
        Holds slots, whose moments are told.
    long : bool
        Holds sentences, which are folded to two lines.
    """

    heading: str
    numeric: bool = False
    minor: bool = False
    link: bool = False
    slot: bool = False
    long: bool = False

    @property
    def classes(self) -> str:
        """The ``class`` attribute of its cells."""
        given = {"num": self.numeric, "minor": self.minor, "long": self.long}
        names = " ".join(name for name, on in given.items() if on)
        return f' class="{names}"' if names else ""

    def record(self) -> dict[str, Any]:
        """Return it as the page's script takes it."""
        flags = {name: getattr(self, name) for name in ("numeric", "minor", "link", "slot", "long")}
        return {"heading": self.heading} | {name: True for name, on in flags.items() if on}


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
        f'<th{column.classes} scope="col">{text(column.heading)}</th>' for column in columns
    )
    body = "".join(_row(columns, row) for row in taken[:PAGE])
    static = (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    in_all = total if total is not None else len(rows)
    left_out = ""
    if in_all > len(taken):
        left_out = f'<p class="remark">{len(taken):,} of {in_all:,} are shown: {text(remark)}</p>'
    links = next((at for at, column in enumerate(columns, 1) if column.link), 0)
    if len(taken) < 6 and not links:
        return f'<div class="table">{static}</div>{left_out}'
    data = {
        "columns": [column.record() for column in columns],
        "rows": taken,
        "size": PAGE,
        "links": links,
    }
    return f'<div class="table" data-table>{static}{data_script(data)}</div>{left_out}'


def _kept(cell: Cell) -> Cell:
    if isinstance(cell, float):
        if not math.isfinite(cell):
            return None
        short = float(f"{cell:.6g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return cell


def _row(columns: Sequence[Column], row: Sequence[Cell]) -> str:
    cells = []
    for column, cell in zip(columns, row, strict=True):
        if column.numeric:
            told = "" if cell is None else number(float(cell))
        else:
            told = text("" if cell is None else str(cell))
        cells.append(f"<td{column.classes}>{told}</td>")
    return f"<tr>{''.join(cells)}</tr>"
