"""``shadowprice jobs``: filter and sort the jobs of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from shadowprice.cli import console
from shadowprice.cli.completion import complete_column, complete_value
from shadowprice.cli.console import UNLIMITED_WIDTH, Listing
from shadowprice.cli.options import RunArgument, output_option

if TYPE_CHECKING:
    import polars as pl

_filter_option: Final = partial(typer.Option, rich_help_panel="Filters")
DEFAULT_MAX_JOBS = 50  # default limit of jobs in a table
COLUMN_DROP_ORDER: Final = ("worker_slots", "value", "class", "start", "late", "arrival", "tenant")
"""Columns that a narrow terminal omits, in this order."""


def _patterns(flag: str, what: str, column: str) -> Any:
    return _filter_option(
        flag,
        help=f"Comma-separated {what}; patterns such as 'res*' are valid.",
        autocompletion=complete_value(column),
    )


def _range(flag: str, what: str) -> Any:
    return _filter_option(
        flag,
        help=f"{what}, as slots or times: 10..50, 10.. or ..2h.",
        metavar="FROM..TO",
    )


def jobs(
    run: RunArgument,
    job: Annotated[str | None, _patterns("--job", "job names", "job")] = None,
    tenant: Annotated[str | None, _patterns("--tenant", "tenants", "tenant")] = None,
    class_: Annotated[str | None, _patterns("--class", "classes", "class")] = None,
    outcome: Annotated[
        str | None,
        _filter_option(
            help="Comma-separated outcomes: finished, refused, dropped, cancelled, running, "
            "waiting, 'not arrived'.",
            autocompletion=complete_value("outcome"),
        ),
    ] = None,
    reason: Annotated[
        str | None, _patterns("--reason", "reason codes of refusals", "reason")
    ] = None,
    arrived: Annotated[str | None, _range("--arrived", "Range of the arrival")] = None,
    started: Annotated[str | None, _range("--started", "Range of the first slot run")] = None,
    completed: Annotated[str | None, _range("--completed", "Range of the completion")] = None,
    late: Annotated[
        bool | None,
        _filter_option(
            "--late/--in-time", help="Jobs that completed after their target, or by it."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        output_option(help="Comma-separated columns, or all.", autocompletion=complete_column),
    ] = None,
    sort: Annotated[
        str | None,
        output_option(
            help="Comma-separated columns to sort by; -utility sorts in descending order.",
            autocompletion=complete_column,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        output_option(
            min=0, help=f"Maximum number of jobs; {DEFAULT_MAX_JOBS} by default in a table."
        ),
    ] = None,
    output: Annotated[
        Listing, output_option("--output", "-o", help="Output format.")
    ] = Listing.TABLE,
) -> None:
    """List the jobs of a run with their requests, run times and utilities.

    [bold]Examples[/bold]
        shadowprice jobs run --outcome refused --sort -value
        shadowprice jobs run --tenant vision --arrived 10..50 -o csv
    """
    from shadowprice.results.listing import (
        DEFAULT_COLUMNS,
        JobFilter,
        SlotRange,
        select_columns,
        sort_jobs,
    )
    from shadowprice.results.run_directory import read_info, read_table

    seconds = read_info(run)["cluster"]["slot_seconds"]
    table = read_table(run, "jobs")

    def span(flag: str, text: str | None) -> SlotRange | None:
        return None if text is None else SlotRange.parse(text, seconds, flag)

    chosen = JobFilter(
        job=_split_list(job),
        tenant=_split_list(tenant),
        class_=_split_list(class_),
        reason=_split_list(reason),
        outcome=_split_list(outcome),
        arrived=span("--arrived", arrived),
        started=span("--started", started),
        completed=span("--completed", completed),
        late=late,
    ).apply(table)
    requested = [*dict.fromkeys(_split_list(columns))]  # remove duplicates
    names = select_columns(table, requested or [c for c in DEFAULT_COLUMNS if c in table.columns])
    rows = sort_jobs(chosen, _split_list(sort))
    if limit is None and output is Listing.TABLE:
        limit = DEFAULT_MAX_JOBS
    shown = rows.select(names) if limit is None else rows.select(names).head(limit)
    if output is Listing.CSV:
        console.print_text(shown.write_csv())
    elif output is Listing.JSON:
        console.print_json(shown.to_dicts())
    else:
        if len(shown) or not len(rows):
            _print(shown, () if requested else COLUMN_DROP_ORDER)
        if len(shown) < len(rows):
            console.print_note(f"{len(rows) - len(shown):,} more; --limit {len(rows)} shows all")


def _split_list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _print(frame: pl.DataFrame, spared: Sequence[str]) -> None:
    """Print jobs as a table; omit columns of ``spared`` until it fits the terminal."""
    if frame.is_empty():
        console.print_note("no jobs match the filters")
        return
    screen = console.rows_console()
    names = [name for name in frame.columns if frame[name].null_count() < len(frame)]
    unconstrained = screen.options.update_width(UNLIMITED_WIDTH)
    omitted: list[str] = []
    table = _table(frame.select(names))
    for name in spared:
        if screen.measure(table, options=unconstrained).maximum <= screen.width:
            break
        if name in names:
            names.remove(name)
            omitted.append(name)
            table = _table(frame.select(names))
    screen.print(table)
    if omitted:
        listed = ", ".join(sorted(omitted, key=frame.columns.index))
        console.print_note(f"no room for {listed}; a wider terminal, --columns or -o csv has them")


def _table(frame: pl.DataFrame) -> Table:
    left = [index for index, dtype in enumerate(frame.dtypes) if not dtype.is_numeric()]
    rows = (map(_cell, row) for row in frame.iter_rows())
    return console.make_table(frame.columns, rows, left=left, fold=range(frame.width))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
