"""Tables that can be filtered, sorted and paged, and that are readable without a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.results.report.inline_assets import data_script, round_number, text
from shadowprice.results.report.number_format import format_number

MAX_ROWS: Final = 1000  # maximum number of rows of a table in a page
PAGE: Final = 10  # rows shown at a time
Cell = str | float | int | None
HtmlCell = str | tuple[str, str]  # HTML, possibly with a class


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table."""

    heading: str
    numeric: bool = False  # right-aligned and sorted as numbers
    minor: bool = False  # omitted on narrow screens
    link: bool = False  # job names, which link to the job histories
    slot: bool = False  # slots; the page also shows their times
    long: bool = False  # sentences, truncated to two lines

    @property
    def classes(self) -> str:
        """The ``class`` attribute of its cells."""
        given = {"num": self.numeric, "minor": self.minor, "long": self.long}
        names = " ".join(name for name, is_set in given.items() if is_set)
        return f' class="{names}"' if names else ""

    def record(self) -> dict[str, Any]:
        """Return the column as plain values for the page's script."""
        flags = {name: getattr(self, name) for name in ("numeric", "minor", "link", "slot", "long")}
        return {"heading": self.heading} | {name: True for name, is_set in flags.items() if is_set}


def data_table(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[Cell]],
    *,
    total: int | None = None,
    remark: str = "",
) -> str:
    """Return a table with at most `MAX_ROWS` rows.

    ``total`` is the number of all rows if ``rows`` is a selection, which ``remark`` describes.
    """
    shown = [
        [round_number(cell) if isinstance(cell, float) else cell for cell in row]
        for row in rows[:MAX_ROWS]
    ]
    heads = "".join(
        f'<th{column.classes} scope="col">{text(column.heading)}</th>' for column in columns
    )
    body = "".join(_row(columns, row) for row in shown[:PAGE])
    static = (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    in_all = total if total is not None else len(rows)
    omitted = ""
    if in_all > len(shown):
        omitted = f'<p class="remark">{len(shown):,} of {in_all:,} are shown: {text(remark)}</p>'
    # Position of the column with links, from 1 on; 0 for none.
    links = next((index for index, column in enumerate(columns, 1) if column.link), 0)
    if len(shown) < 6 and not links:  # nothing to filter, sort, page or link
        return f'<div class="table">{static}</div>{omitted}'
    data = {
        "columns": [column.record() for column in columns],
        "rows": shown,
        "size": PAGE,
        "links": links,
    }
    return f'<div class="table" data-table>{static}{data_script(data)}</div>{omitted}'


def _row(columns: Sequence[TableColumn], row: Sequence[Cell]) -> str:
    cells = []
    for column, cell in zip(columns, row, strict=True):
        if column.numeric:
            content = "" if cell is None else format_number(float(cell))
        else:
            content = text("" if cell is None else str(cell))
        cells.append(f"<td{column.classes}>{content}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def fixed_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[HtmlCell]],
    *,
    labels: int = 1,
    classes: str = "table metrics",
) -> str:
    """Return a table that can't be sorted: first ``labels`` columns of text, then numbers."""

    def cells(tag: str, row: Sequence[HtmlCell]) -> str:
        parts = []
        for index, cell in enumerate(row):
            html, style = cell if isinstance(cell, tuple) else (cell, "")
            names = f"{'' if index < labels else 'num'} {style}".strip()
            parts.append(
                f'<{tag} class="{names}">{html}</{tag}>' if names else f"<{tag}>{html}</{tag}>"
            )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    return (
        f'<div class="{classes}"><div class="scroll" tabindex="0"><table>'
        f"<thead>{cells('th', heads)}</thead><tbody>{body}</tbody></table></div></div>"
    )
