"""Commands that read a run directory: ``jobs``, ``at``, ``diff``, ``report`` and ``journal``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from shadowprice.cli import console, options
from shadowprice.cli.completion import complete_column, complete_value
from shadowprice.cli.console import UNLIMITED_WIDTH, Listing, SafeText
from shadowprice.cli.options import ListingOption, OutputOption, PlainOutputOption, RunArgument
from shadowprice.core.amounts import Dimension, format_amount, format_seconds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import pluralize
from shadowprice.results.output_paths import check_output_file, is_page
from shadowprice.results.report.number_format import format_number

if TYPE_CHECKING:
    import polars as pl

    from shadowprice.results.difference import RunDiff
    from shadowprice.results.slot_snapshot import SlotSnapshot


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
        flag, help=f"{what}, as slots or times: 10..50, 10.. or ..2h.", metavar="FROM..TO"
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
    started: Annotated[str | None, _range("--started", "Range of the start")] = None,
    completed: Annotated[str | None, _range("--completed", "Range of the completion")] = None,
    late: Annotated[
        bool | None,
        _filter_option(
            "--late/--in-time", help="Jobs that completed after their target, or by it."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        options.output_option(
            help="Comma-separated columns, or all.", autocompletion=complete_column
        ),
    ] = None,
    sort: Annotated[
        str | None,
        options.output_option(
            help="Comma-separated columns to sort by; -utility sorts in descending order.",
            autocompletion=complete_column,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        options.output_option(
            min=0, help=f"Maximum number of jobs; {DEFAULT_MAX_JOBS} by default in a table."
        ),
    ] = None,
    output: Annotated[
        Listing, options.output_option("--output", "-o", help="Output format.")
    ] = "table",
) -> None:
    """List the jobs of a run with their requests, run times and utilities.

    [bold]Examples[/bold]
        shadowprice jobs run --outcome refused --sort -value
        shadowprice jobs run --tenant vision --arrived 10..50 -o csv
    """
    from shadowprice.results import listing
    from shadowprice.results.run_directory import read_info, read_table

    seconds = read_info(run)["cluster"]["slot_seconds"]
    table = read_table(run, "jobs")

    def span(flag: str, text: str | None) -> listing.SlotRange | None:
        return None if text is None else listing.SlotRange.parse(text, seconds, flag)

    texts = {"job": job, "tenant": tenant, "class": class_, "reason": reason}
    chosen = listing.filter_jobs(
        table,
        {column: _split_list(text) for column, text in texts.items()},
        {
            "arrival": span("--arrived", arrived),
            "start": span("--started", started),
            "completion": span("--completed", completed),
        },
        _split_list(outcome),
        late,
    )
    requested = [*dict.fromkeys(_split_list(columns))]  # remove duplicates
    default = [name for name in listing.DEFAULT_COLUMNS if name in table.columns]
    names = listing.select_columns(table, requested or default)
    rows = listing.sort_jobs(chosen, _split_list(sort))
    if limit is None and output == "table":
        limit = DEFAULT_MAX_JOBS
    shown = rows.select(names) if limit is None else rows.select(names).head(limit)
    if output == "csv":
        console.print_text(shown.write_csv())
    elif output == "json":
        console.print_json(shown.to_dicts())
    else:
        if len(shown) or not len(rows):
            _print_jobs(shown, () if requested else COLUMN_DROP_ORDER)
        if len(shown) < len(rows):
            console.print_note(f"{len(rows) - len(shown):,} more; --limit {len(rows)} shows all")


def _split_list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _print_jobs(frame: pl.DataFrame, drop_order: Sequence[str]) -> None:
    """Print jobs as a table; omit columns in ``drop_order`` until it fits the terminal."""
    if frame.is_empty():
        console.print_note("no jobs match the filters")
        return
    screen = console.rows_console()
    names = [name for name in frame.columns if frame[name].null_count() < len(frame)]
    unconstrained = screen.options.update_width(UNLIMITED_WIDTH)
    omitted: list[str] = []
    table = _jobs_table(frame.select(names))
    for name in drop_order:
        if screen.measure(table, options=unconstrained).maximum <= screen.width:
            break
        if name in names:
            names.remove(name)
            omitted.append(name)
            table = _jobs_table(frame.select(names))
    screen.print(table)
    if omitted:
        listed = ", ".join(sorted(omitted, key=frame.columns.index))
        console.print_note(f"no room for {listed}; a wider terminal, --columns or -o csv has them")


def _jobs_table(frame: pl.DataFrame) -> Table:
    left = [index for index, dtype in enumerate(frame.dtypes) if not dtype.is_numeric()]
    rows = (map(_cell, row) for row in frame.iter_rows())
    return console.make_table(frame.columns, rows, left=left, fold=range(frame.width))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


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
    output: OutputOption = "table",
) -> None:
    """Show one slot of a run: utilization of servers, running jobs and waiting jobs.

    [bold]Examples[/bold]
        shadowprice at run 12
        shadowprice at run 2h --servers
    """
    from shadowprice.results.listing import parse_slot
    from shadowprice.results.run_directory import read_run
    from shadowprice.results.slot_snapshot import slot_snapshot_of

    loaded = read_run(run)
    number = parse_slot(slot, loaded.info["cluster"]["slot_seconds"], "SLOT")
    snapshot = slot_snapshot_of(loaded, number, str(run))
    if output == "json":
        console.print_json(snapshot.record())
    else:
        _print_slot(snapshot, servers=servers, maximum=None if all_ else MAX_SHOWN_JOBS)


def _print_slot(snapshot: SlotSnapshot, *, servers: bool, maximum: int | None) -> None:
    screen = console.stdout()
    counts = {
        state: len(snapshot.jobs.filter(snapshot.jobs["state"] == state))
        for state in ("running", "paused", "waiting")
    }
    summary = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    start = format_seconds(snapshot.slot * snapshot.info["cluster"]["slot_seconds"])
    console.print_line(
        f"slot {snapshot.slot} of {snapshot.info['policy']}, {start} from the start: "
        f"{summary or 'no open job'}"
    )
    screen.print(_servers_of_slot(snapshot, ungrouped=servers))
    if len(snapshot.jobs):
        screen.print(_jobs_of_slot(snapshot, maximum))


def _servers_of_slot(snapshot: SlotSnapshot, *, ungrouped: bool) -> Table:
    from shadowprice.results.server_names import compress_names

    resources = [name for name, (_, total) in snapshot.usage.items() if total]
    columns = ["servers", "state", "count", "jobs", "workers", "ps", *resources]
    rows = []
    keys = ["server"] if ungrouped else ["group", "role", "state"]
    for _, members in snapshot.servers.group_by(keys, maintain_order=True):
        state = members["state"][0]
        cells = [
            compress_names(members["server"].to_list()),
            state,
            f"{len(members):,}",
            *(f"{members[name].sum():,}" for name in ("jobs", "workers", "ps")),
            *(_usage_text(snapshot, members, resource) for resource in resources),
        ]
        rows.append([SafeText(cell, _SERVER_STYLES[state]) for cell in cells])
    return console.make_table(columns, rows, left=(0, 1), fold=range(len(columns)))


_SERVER_STYLES = {"lost": "red", "idle": "dim", "mixed": "", "full": "bold"}


def _usage_text(snapshot: SlotSnapshot, servers: object, resource: str) -> str:
    """Format the used and total capacity of some servers; - if they lack the resource."""
    import polars as pl

    assert isinstance(servers, pl.DataFrame)
    kind = snapshot.info["cluster"]["resources"][resource]
    if kind == Dimension.COUNT.value:
        used, total = (float(servers[f"{side}_{resource}"].sum()) for side in ("used", "total"))
        return f"{used:g}/{total:g}" if total else "-"
    used, total = (int(servers[f"{side}_{resource}"].sum()) for side in ("used", "total"))
    return f"{used / total:.0%} of {format_amount(total, Dimension(kind))}" if total else "-"


def _jobs_of_slot(snapshot: SlotSnapshot, maximum: int | None) -> Table:
    table = console.make_table((), ())
    tenants = snapshot.jobs["tenant"].null_count() < len(snapshot.jobs)
    names = ["job", *(["tenant"] if tenants else []), "state", "since", "ran", "workers", "ps"]
    for name in names:
        right = name in {"since", "ran", "workers", "ps"}
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "job")
    table.add_column("servers (reason)", overflow="fold")
    shown: dict[str, int] = {}
    for row in snapshot.jobs.iter_rows(named=True):
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


DEFAULT_MAX_CHANGED = 20  # default limit of jobs shown


def diff(
    first: RunArgument,
    second: Annotated[Path, typer.Argument(help="Run directory to compare with.", metavar="RUN")],
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of jobs in the table.")
    ] = DEFAULT_MAX_CHANGED,
    output: ListingOption = "table",
) -> None:
    """Compare two runs of a workload job by job, largest change of utility first.

    A gain is the utility of the second run minus that of the first.

    [bold]Example[/bold]
        shadowprice diff compared/oasis compared/fifo
    """
    from shadowprice.results.difference import diff_runs
    from shadowprice.results.run_directory import read_run

    result = diff_runs(read_run(first), read_run(second))
    if output == "json":
        console.print_json(result.record())
        return
    for remark in result.remarks:
        console.print_note(f"note: {remark}")
    if output == "csv":
        console.print_text(result.jobs.write_csv())
        return
    _print_diff(result, limit)


def _print_diff(result: RunDiff, limit: int) -> None:
    screen = console.stdout()
    names = [result.first["policy"], result.second["policy"]]
    if names[0] == names[1]:
        names = [f"{names[0]} (first)", f"{names[1]} (second)"]
    totals = [info["summary"]["total_utility"] for info in (result.first, result.second)]
    better = len(result.jobs.filter(result.jobs["gain"] > 0))
    worse = len(result.jobs.filter(result.jobs["gain"] < 0))
    console.print_line(
        f"{names[1]} earned {format_number(totals[1])}, {names[0]} {format_number(totals[0])}: "
        f"{_format_gain(totals[1] - totals[0])}; {pluralize(better, 'job')} earned more, "
        f"{worse:,} less, {len(result.jobs) - better - worse:,} the same at another time"
    )
    if result.times is not None and result.times.jobs:
        console.print_line(result.times.waiting_text())
    if result.jobs.is_empty():
        return
    screen.print()
    rows = [
        (row["outcome_a"], row["outcome_b"], f"{row['jobs']:,}", _format_gain(row["gain"]))
        for row in result.outcomes.iter_rows(named=True)
    ]
    screen.print(console.make_table([*names, "jobs", "gain"], rows, left=(0, 1)))
    screen.print()
    screen.print(_changed_jobs(result, names, limit))
    if len(result.jobs) > limit:
        console.print_note(
            f"{len(result.jobs) - limit:,} more; --limit {len(result.jobs)} shows all"
        )


def _format_gain(value: float) -> str:
    return f"{'' if value < 0 else '+'}{format_number(value)}"


def _changed_jobs(result: RunDiff, names: list[str], limit: int) -> Table:
    rows = []
    for row in result.jobs.head(limit).iter_rows(named=True):
        cells = [row["job"]]
        for side in ("a", "b"):
            done = row[f"completion_{side}"]
            when = row[f"outcome_{side}"] if done is None else f"slot {done}"
            cells.append(f"{format_number(row[f'utility_{side}'])}, {when}")
        rows.append([*cells, _format_gain(row["gain"]), row["why"]])
    return console.make_table(["job", *names, "gain", "why"], rows, left=(0, 4), fold=(0, 4))


def report(
    run: RunArgument,
    to: Annotated[
        Path | None, typer.Option(help="Output file.", show_default="RUN/report.html")
    ] = None,
    output: PlainOutputOption = "table",
) -> None:
    """Rebuild the HTML page of a run from its files.

    [bold]Example[/bold]
        shadowprice report run
    """
    from shadowprice.results.report.page import write_report
    from shadowprice.results.run_directory import REPORT, read_run

    path = to or run / REPORT
    # The run's own page is replaced unconditionally, also a page of another version.
    is_own_page = path.parent.resolve() == run.resolve() and path.name == REPORT
    if is_own_page:
        loaded = read_run(run)  # first, so that a directory without a run is reported
        check_output_file(path, lambda _: True)
    else:
        check_output_file(path, is_page)
        loaded = read_run(run)
    write_report(loaded, path)
    if output == "json":
        console.print_json({"page": str(path)})
    else:
        console.print_line(f"see {path}")


def journal(
    path: Annotated[
        Path, typer.Argument(help="Journal file, or run directory with a journal.", metavar="PATH")
    ],
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check", help="Replay the journal and compare the state with its digests."
        ),
    ] = True,
    events: Annotated[
        int, typer.Option("--events", "-n", min=0, help="Number of latest events to show.")
    ] = 0,
    output: PlainOutputOption = "table",
) -> None:
    """Show the content of a journal, and check it.

    The check replays every event with its recorded decisions, without the policy, and compares the
    state with every digest in the journal.

    [bold]Examples[/bold]
        shadowprice journal run
        shadowprice journal run/journal.jsonl --events 20 --no-check
    """
    from shadowprice.results.run_directory import JOURNAL

    file = path / JOURNAL if path.is_dir() else path
    if file != path and not file.exists():
        raise InputError(Fault(str(path), "has no journal", "simulate --journal writes one"))
    summary = _read_journal(file, check=check, events=events)
    if output == "json":
        console.print_json(summary)
        return
    for line in _journal_lines(summary):
        console.print_line(line)


def _read_journal(path: Path, *, check: bool, events: int) -> dict[str, Any]:
    from shadowprice.engine.engine import Entry
    from shadowprice.engine.journal import JournalReader, replay_item

    notices: list[str] = []

    def notice(text: str) -> None:
        notices.append(text)
        console.print_note(f"note: {text}")

    reader = JournalReader(path, notice)
    header = reader.header
    engine = header.engine() if check else None
    kinds: Counter[str] = Counter()
    decisions: Counter[str] = Counter()
    digests, slots = 0, [-1, -1]
    last: deque[dict[str, Any]] = deque(maxlen=events)
    for item in reader:
        if not isinstance(item, Entry):
            digests += 1
            if engine is not None:
                replay_item(engine, item, path)
            continue
        if engine is not None:
            replay_item(engine, item, path)
            engine.state.collect()
        kinds[item.event.tag] += 1
        for consultation in item.consultations:
            decisions.update(decision.tag for decision in consultation)
        slots = [item.event.slot if slots[0] < 0 else slots[0], item.event.slot]
        last.append(_entry_record(item))
    return {
        "path": str(path),
        "policy": header.policy,
        "servers": header.cluster.servers,
        "until": header.until,
        "versions": dict(header.versions),
        "events": kinds.total(),
        "first_slot": slots[0] if kinds else None,
        "last_slot": slots[1] if kinds else None,
        "by_kind": dict(sorted(kinds.items())),
        "decisions": dict(sorted(decisions.items())),
        "digests": digests,
        "checked": check,
        "state_digest": None if engine is None else engine.state_digest(),
        "notices": notices,
        "last": list(last),
    }


def _entry_record(entry: Any) -> dict[str, Any]:
    event = entry.event
    subject = getattr(event, "job", None) or getattr(event, "server", None)
    if hasattr(event, "jobs"):
        subject = ", ".join(str(job.name) for job in event.jobs)
    return {
        "n": entry.sequence,
        "event": event.tag,
        "slot": event.slot,
        "about": getattr(subject, "name", subject),
        "decisions": [
            f"{decision.tag} {decision.job}"
            for consultation in entry.consultations
            for decision in consultation
        ],
    }


def _journal_lines(record: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    policy, servers = record["policy"], record["servers"]
    lines = [
        f"{record['path']}: journal of {policy} on {servers} servers ({versions})",
        f"{record['events']} events, slots {record['first_slot']} to {record['last_slot']}"
        if record["events"]
        else "no events",
    ]
    for title, counts in (("events", record["by_kind"]), ("decisions", record["decisions"])):
        if counts:
            lines.append(
                f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.items())
            )
    for entry in record["last"]:
        subject = f" {entry['about']}" if entry["about"] else ""
        decisions = "".join(f"; {text}" for text in entry["decisions"])
        event = f"{entry['event']}{subject}{decisions}"
        lines.append(f"{entry['n']:>8}  slot {entry['slot']:>6}  {event}")
    if record["checked"]:
        lines.append(
            f"replayed without the policy; {record['digests']} digests agree; "
            f"state {record['state_digest'][:16]}"
        )
    else:
        lines.append("not checked")
    return lines
