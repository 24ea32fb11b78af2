"""Servers of the live service, their prices and timespan, and what an observed scheduler does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from shadowprice.cli import live
from shadowprice.cli.console import Output, print_json, print_line, print_note, stdout
from shadowprice.cli.live import ServerOption, YesOption, connect
from shadowprice.cli.options import OutputOption
from shadowprice.cli.plain_job import absolute_moment
from shadowprice.core.wording import pluralize

if TYPE_CHECKING:
    from shadowprice.client import Server
    from shadowprice.rest import ComparedJob, Comparison, Timespan


ServersArgument = Annotated[
    list[str],
    typer.Argument(
        help="Names of the servers.",
        metavar="SERVER...",
        autocompletion=live.complete_live(lambda client: (item.name for item in client.servers())),
    ),
]


def _state(server: Server) -> str:
    if server.state == "drained" and server.jobs:
        return "draining"
    if server.state != "up":
        return server.state
    return "mixed" if server.jobs else "idle"


def nodes(
    each: Annotated[
        bool, typer.Option("--each", "-N", help="Print one line per server, with its jobs.")
    ] = False,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """List the servers of the live service in groups of equal servers, as sinfo does.

    [bold]Examples[/bold]
        shadowprice nodes
        shadowprice nodes --each
    """
    with live.connect(server) as client:
        servers = client.servers()
    if output == "json":
        print_json([item.record for item in servers])
    elif each:
        rows = [
            (
                item.name,
                item.role,
                _state(item),
                live.format_resources(item.capacity),
                " ".join(
                    f"{entry.job or 'others'}({entry.workers}+{entry.ps})" for entry in item.jobs
                ),
            )
            for item in servers
        ]
        live.print_table(["SERVER", "ROLE", "STATE", "CAPACITY", "JOBS(WORKERS+PS)"], rows)
    else:
        groups: dict[tuple[str, str, str], list[Server]] = {}
        for item in servers:
            key = item.role, _state(item), live.format_resources(item.capacity)
            groups.setdefault(key, []).append(item)
        grouped = [
            (
                role,
                len(members),
                state,
                capacity,
                live.format_servers([item.name for item in members]),
            )
            for (role, state, capacity), members in groups.items()
        ]
        live.print_table(
            ["ROLE", "SERVERS", "STATE", "CAPACITY", "NAMES"], grouped, right=["SERVERS"]
        )


def _print_changes(changes: Iterable[Server], output: Output) -> None:
    columns = ("SERVER", "STATE")
    live.print_changes(changes, output, columns, lambda server: (server.name, _state(server)))


def drain(
    servers: ServersArgument,
    yes: YesOption = False,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Stop placing work on servers; running jobs move at the end of their slot (operators).

    [bold]Example[/bold]
        shadowprice drain gpu-3
    """
    with live.connect(server) as client:
        busy = [item for item in client.servers() if item.name in set(servers) and item.jobs]
        jobs = sum(len(item.jobs) for item in busy)
        if busy and not live.confirm(f"{pluralize(jobs, 'running job')} will move; drain?", yes):
            raise typer.Exit(1)
        _print_changes(map(client.drain, servers), output)


def cordon(
    servers: ServersArgument, server: ServerOption = None, output: OutputOption = "table"
) -> None:
    """Stop placing work on servers; running jobs stay there until they end (operators).

    A job that runs there keeps its placement, so it isn't rescaled. If it fails, it is retried
    elsewhere.

    [bold]Example[/bold]
        shadowprice cordon gpu-3
    """
    with live.connect(server) as client:
        _print_changes(map(client.cordon, servers), output)


def uncordon(
    servers: ServersArgument, server: ServerOption = None, output: OutputOption = "table"
) -> None:
    """Return drained or cordoned servers to service (operators).

    [bold]Example[/bold]
        shadowprice uncordon gpu-3
    """
    with live.connect(server) as client:
        _print_changes(map(client.uncordon, servers), output)


def prices(
    slots: Annotated[int, typer.Option(min=1, max=1_000, help="Number of slots.")] = 12,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Show the prices and reserved shares of servers in the next slots.

    A price is for a server's whole capacity of a resource, in the unit of the jobs' utilities.

    [bold]Example[/bold]
        shadowprice prices --slots 24
    """
    with live.connect(server) as client:
        slot_prices = client.prices(slots)
    if output == "json":
        print_json([slot_entry.record for slot_entry in slot_prices])
        return
    columns = ["SLOT", "BEGINS"]
    if slot_prices:
        columns += [
            f"{kind} {resource}"
            for kind, entry in slot_prices[0].kinds.items()
            for resource in entry
        ]
    priced = False
    rows: list[tuple[object, ...]] = []
    for slot_entry in slot_prices:
        cells: list[str] = []
        for entry in slot_entry.kinds.values():
            for share in entry.values():
                used = share.get("used")
                text = "-" if used is None else f"{100 * used:.0f}%"
                if share.get("price") is not None:
                    priced = True
                    text = f"{live.format_number(share['price'])}  {text}"
                cells.append(text)
        rows.append((slot_entry.slot, live.format_time(slot_entry.begins), *cells))
    live.print_table(columns, rows, right=[*columns[2:], "SLOT"])
    if rows and not priced:
        print_note("the policy posts no prices: only reserved shares are shown")


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
    output: OutputOption = "table",
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
    if output == "json":
        print_json(timespan.record)
    else:
        print_line(end_line(timespan))


def end_line(timespan: Timespan) -> str:
    """Describe the end of the timespan in one line."""
    if timespan.ends is None:
        return "the timespan has no end"
    if timespan.ended:
        return f"the timespan ended at {live.format_time(timespan.ends)}: nothing runs"
    return f"the timespan ends at {live.format_time(timespan.ends)}, before slot {timespan.slot}"


def observed(
    days: Annotated[
        float,
        typer.Option(
            help="Length of the compared period, in days before now.", min=1e-6, max=3_660.0
        ),
    ] = 7.0,
    limit: Annotated[
        int, typer.Option(help="Maximum number of jobs to list, newest first.", min=0, max=10_000)
    ] = 20,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Compare the observed execution of jobs with the execution that the service simulated.

    Only jobs submitted to the observing service are compared, because the utility of other jobs is
    unknown. An ended job counts as completed unless it is known to have failed.

    [bold]Examples[/bold]
        shadowprice observed
        shadowprice observed --days 30 --limit 0 -o json
    """
    with connect(server) as client:
        comparison = client.comparison(days)
        jobs = list(islice(client.compared_jobs(), limit))
    if output == "json":
        print_json({**comparison.record, "compared": [job.record for job in jobs]})
        return
    sides = ["SIMULATED", "OBSERVED"]
    live.print_table(["", *sides], _comparison_rows(comparison), right=sides)
    for remark in _comparison_remarks(comparison):
        print_note(remark)
    if jobs:
        stdout().print()
        columns = ["JOB", "TENANT", sides[0], "DONE", "WORTH", sides[1], "DONE", "WORTH", "GAIN"]
        live.print_table(columns, map(_compared_row, jobs), right=["WORTH", "GAIN"])


def _comparison_rows(comparison: Comparison) -> list[Sequence[object]]:
    simulated, observed, both = comparison.simulated, comparison.observed, comparison.both
    promises, use = comparison.promises, comparison.utilization
    rows: list[Sequence[object]] = [
        (
            "utility earned",
            live.format_number(simulated.utility),
            live.format_number(observed.utility),
        ),
        (f"finished of {comparison.jobs}", simulated.finished, observed.finished),
        ("running now", simulated.running, observed.running),
        ("waiting now", simulated.waiting, observed.waiting),
        ("refused", simulated.refused, "-"),
        ("failed", simulated.failed, observed.failed),
    ]
    if both.jobs:
        means = (both.simulated_seconds, both.observed_seconds)
        took = [live.format_duration(timedelta(seconds=seconds or 0.0)) for seconds in means]
        rows.append((f"mean time of {both.jobs} that both finished", *took))
    if promises.jobs:
        rows.append((f"by the first promise, of {promises.jobs}", "-", promises.observed_in_time))
    if use.simulated:
        shares = [f"{100 * sum(side) / len(side):.0f}%" for side in (use.simulated, use.observed)]
        rows.append(("servers in use", *shares))
    return rows


def _comparison_remarks(comparison: Comparison) -> list[str]:
    observed, unmanaged = comparison.observed, comparison.unmanaged_jobs.count
    remarks = []
    if comparison.last_observation is None:
        remarks.append("nothing was observed yet: only the simulated execution is known")
    if observed.assumed_completed:
        remarks.append(
            f"{observed.assumed_completed} jobs ended with unknown exit status; "
            "counted as completed"
        )
    if unmanaged:
        remarks.append(
            f"{unmanaged} jobs ran without being submitted to this service; their utility is "
            "unknown, and the policy did not account for them"
        )
    if comparison.incomplete:
        remarks.append("the period has too many jobs; the oldest are left out")
    return remarks


def _compared_row(job: ComparedJob) -> Sequence[object]:
    simulated, observed = job.simulated, job.observed
    return (
        job.name,
        job.tenant,
        simulated.state,
        live.format_time(simulated.completion),
        live.format_number(simulated.utility),
        observed.state,
        live.format_time(observed.completion),
        live.format_number(observed.utility),
        live.format_number(job.gain),
    )
