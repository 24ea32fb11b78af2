"""``shadowprice until``: the end of the live service's timespan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shadowprice.cli.console import Output, print_json, print_line
from shadowprice.cli.live import ServerOption, connect, when
from shadowprice.cli.options import OutputOption
from shadowprice.cli.plain_job import absolute_moment

if TYPE_CHECKING:
    from shadowprice.rest.ops import Timespan

NONE = "none"  # argument that removes the end


def until(
    moment: Annotated[
        str | None,
        typer.Argument(
            help="End of the timespan: 18:00, 2026-11-23T18:00, 6h, '20 slots', or none to "
            "remove it; shows the end if omitted.",
            metavar="[TIME]",
        ),
    ] = None,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show, set or remove the end of the timespan, after which no job runs (operators).

    Plans stop at the end. At the end, running jobs are stopped with their grace period, and wait
    until the end is moved or removed.

    [bold]Examples[/bold]
        shadowprice until 18:00
        shadowprice until none
    """
    with connect(server) as client:
        if moment is None:
            timespan = client.timespan()
        else:
            end = None if moment == NONE else absolute_moment(moment, "TIME")
            timespan = client.change_timespan(end)
    if output is Output.JSON:
        print_json(timespan.record)
    else:
        print_line(end_line(timespan))


def end_line(timespan: Timespan) -> str:
    """Describe the end of the timespan in one line."""
    if timespan.ends is None:
        return "the timespan has no end"
    if timespan.ended:
        return f"the timespan ended at {when(timespan.ends)}: nothing runs"
    return f"the timespan ends at {when(timespan.ends)}, before slot {timespan.slot}"
