"""``shadowprice diff``: jobs with different results in two runs, and the reasons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shadowprice.cli import console
from shadowprice.cli.console import Listing
from shadowprice.cli.options import ListingOption, RunArgument

if TYPE_CHECKING:
    from shadowprice.results.difference import RunDiff

DEFAULT_MAX_JOBS = 20  # default limit of jobs shown


def diff(
    first: RunArgument,
    second: Annotated[Path, typer.Argument(help="Run directory to compare with.", metavar="RUN")],
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of jobs in the table.")
    ] = DEFAULT_MAX_JOBS,
    output: ListingOption = Listing.TABLE,
) -> None:
    """Compare two runs of a workload job by job, largest change of utility first.

    A gain is the utility of the second run minus that of the first.

    [bold]Example[/bold]
        shadowprice diff compared/oasis compared/fifo
    """
    from shadowprice.results.difference import diff_runs
    from shadowprice.results.run_directory import read_run

    result = diff_runs(read_run(first), read_run(second))
    if output is Listing.JSON:
        console.print_json(result.record())
        return
    for remark in result.remarks:
        console.print_note(f"note: {remark}")
    if output is Listing.CSV:
        console.print_text(result.jobs.write_csv())
        return
    _print(result, limit)


def _print(found: RunDiff, limit: int) -> None:
    from shadowprice.results.job_history_text import pluralize
    from shadowprice.results.report.number_format import format_number

    screen = console.stdout()
    names = [found.first["policy"], found.second["policy"]]
    if names[0] == names[1]:
        names = [f"{names[0]} (first)", f"{names[1]} (second)"]
    totals = [info["summary"]["total_utility"] for info in (found.first, found.second)]
    better = len(found.jobs.filter(found.jobs["gain"] > 0))
    worse = len(found.jobs.filter(found.jobs["gain"] < 0))
    console.print_line(
        f"{names[1]} earned {format_number(totals[1])}, {names[0]} {format_number(totals[0])}: "
        f"{_format_gain(totals[1] - totals[0])}; {pluralize(better, 'job')} earned more, "
        f"{worse:,} less, {len(found.jobs) - better - worse:,} the same at another time"
    )
    if found.times is not None and found.times.jobs:
        console.print_line(found.times.waiting_text())
    if found.jobs.is_empty():
        return
    screen.print()
    screen.print(_outcomes(found, names))
    screen.print()
    screen.print(_jobs(found, names, limit))
    if len(found.jobs) > limit:
        console.print_note(f"{len(found.jobs) - limit:,} more; --limit {len(found.jobs)} shows all")


def _format_gain(value: float) -> str:
    from shadowprice.results.report.number_format import format_number

    return f"{'' if value < 0 else '+'}{format_number(value)}"


def _outcomes(found: RunDiff, names: list[str]) -> Table:
    rows = [
        (row["outcome_a"], row["outcome_b"], f"{row['jobs']:,}", _format_gain(row["gain"]))
        for row in found.outcomes.iter_rows(named=True)
    ]
    return console.make_table([*names, "jobs", "gain"], rows, left=(0, 1))


def _jobs(found: RunDiff, names: list[str], limit: int) -> Table:
    from shadowprice.results.report.number_format import format_number

    rows = []
    for row in found.jobs.head(limit).iter_rows(named=True):
        cells = [row["job"]]
        for side in ("a", "b"):
            done = row[f"completion_{side}"]
            when = row[f"outcome_{side}"] if done is None else f"slot {done}"
            cells.append(f"{format_number(row[f'utility_{side}'])}, {when}")
        rows.append([*cells, _format_gain(row["gain"]), row["why"]])
    return console.make_table(["job", *names, "gain", "why"], rows, left=(0, 4), fold=(0, 4))
