"""``shadowprice at``: running and waiting jobs in one slot of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shadowprice.cli.console import Output, SafeText, make_table, print_json, print_line, stdout
from shadowprice.cli.options import OutputOption, RunArgument

if TYPE_CHECKING:
    from shadowprice.results.slot_snapshot import SlotSnapshot

MAX_SHOWN_JOBS = 40  # limit of jobs shown of each state without ``--all``


def at(
    run: RunArgument,
    slot: Annotated[
        str, typer.Argument(help="Slot number, or time since the start such as 2h.", metavar="SLOT")
    ],
    servers: Annotated[
        bool,
        typer.Option("--servers", help="List every server instead of groups of equal servers."),
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help=f"Show every job instead of the first {MAX_SHOWN_JOBS}.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one slot of a run: utilization of servers, running jobs and waiting jobs.

    [bold]Examples[/bold]
        shadowprice at run 12
        shadowprice at run 2h --servers
    """
    from shadowprice.results.listing import parse_slot
    from shadowprice.results.run_directory import read_info
    from shadowprice.results.slot_snapshot import read_slot_snapshot

    seconds = read_info(run)["cluster"]["slot_seconds"]
    moment = read_slot_snapshot(run, parse_slot(slot, seconds, "SLOT"))
    if output is Output.JSON:
        print_json(moment.record())
    else:
        _print(moment, servers=servers, maximum=None if all_ else MAX_SHOWN_JOBS)


def _print(moment: SlotSnapshot, *, servers: bool, maximum: int | None) -> None:
    from shadowprice.core.amounts import format_seconds

    console = stdout()
    counts = {
        state: len(moment.jobs.filter(moment.jobs["state"] == state))
        for state in ("running", "paused", "waiting")
    }
    summary = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    start = format_seconds(moment.slot * moment.info["cluster"]["slot_seconds"])
    print_line(
        f"slot {moment.slot} of {moment.info['policy']}, {start} from the start: "
        f"{summary or 'no open job'}"
    )
    console.print(_servers(moment, every=servers))
    if len(moment.jobs):
        console.print(_jobs(moment, maximum))


def _servers(moment: SlotSnapshot, *, every: bool) -> Table:
    from shadowprice.results.server_names import compress_names

    resources = [name for name, (_, total) in moment.usage.items() if total]
    columns = ["servers", "state", "count", "jobs", "workers", "ps", *resources]
    rows = []
    keys = ["server"] if every else ["group", "role", "state"]
    for _, members in moment.servers.group_by(keys, maintain_order=True):
        state = members["state"][0]
        cells = [
            compress_names(members["server"].to_list()),
            state,
            f"{len(members):,}",
            *(f"{members[name].sum():,}" for name in ("jobs", "workers", "ps")),
            *(_usage_text(moment, members, resource) for resource in resources),
        ]
        rows.append([SafeText(cell, _STYLES[state]) for cell in cells])
    return make_table(columns, rows, left=(0, 1), fold=range(len(columns)))


_STYLES = {"lost": "red", "idle": "dim", "mixed": "", "full": "bold"}


def _usage_text(moment: SlotSnapshot, part: object, resource: str) -> str:
    import polars as pl

    from shadowprice.core.amounts import Dimension, format_amount

    assert isinstance(part, pl.DataFrame)
    kind = moment.info["cluster"]["resources"][resource]
    if kind == Dimension.COUNT.value:
        used, total = (float(part[f"{side}_{resource}"].sum()) for side in ("used", "total"))
        return f"{used:g}/{total:g}" if total else "-"
    used, total = (int(part[f"{side}_{resource}"].sum()) for side in ("used", "total"))
    return f"{used / total:.0%} of {format_amount(total, Dimension(kind))}" if total else "-"


def _jobs(moment: SlotSnapshot, maximum: int | None) -> Table:
    table = make_table((), ())
    tenants = moment.jobs["tenant"].null_count() < len(moment.jobs)
    names = ["job", *(["tenant"] if tenants else []), "state", "since", "ran", "workers", "ps"]
    for name in names:
        right = name in {"since", "ran", "workers", "ps"}
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "job")
    table.add_column("servers (reason)", overflow="fold")
    shown: dict[str, int] = {}
    for row in moment.jobs.iter_rows(named=True):
        shown[row["state"]] = shown.get(row["state"], 0) + 1
        if maximum is not None and shown[row["state"]] > maximum:
            continue
        location = row["servers"] or f"({row['reason']})"
        cells = [row["job"], *([row["tenant"] or "-"] if tenants else []), row["state"]]
        cells += [f"{row[name]:,}" for name in ("since", "ran", "workers", "ps")]
        style = "" if row["state"] == "running" else "dim"
        table.add_row(*(SafeText(cell, style) for cell in [*cells, location]))
    for state, count in shown.items():
        if maximum is not None and count > maximum:
            table.add_row(
                SafeText(f"and {count - maximum:,} more {state} (--all shows them)", "dim")
            )
    return table
