"""``shadowprice logs``, ``events``, ``top``: live output of the service."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowprice.cli import live
from shadowprice.cli.commands.queue import COLUMNS, OPEN, squeue_rows
from shadowprice.cli.console import (
    SafeText,
    print_json,
    print_json_line,
    print_result,
    print_text,
    stdout,
)
from shadowprice.cli.live import FAILOVER_SECONDS, JobArgument, ServerOption
from shadowprice.cli.options import OutputOption
from shadowprice.core.job_keys import qualified_name
from shadowprice.core.wording import escape_controls, join_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shadowprice.client import Client
    from shadowprice.rest import Event, LogChunk


def logs(
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")
    ] = False,
    process: Annotated[
        str, typer.Option(help="Process of the job, such as worker-1 or ps-0.")
    ] = "worker-0",
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation", "-g", min=1, help="Generation of the job; by default the latest."
        ),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Print the output from the beginning instead of the end only."),
    ] = False,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Print the output of a process of a job.

    With `-o json`, each line has a piece of the output and its position.

    [bold]Examples[/bold]
        shadowprice logs resnet50-a -f
        shadowprice logs resnet50-a --process ps-0 --generation 2 --all
    """

    def write(piece: LogChunk) -> None:
        if output == "json":
            print_json_line(piece.record)
        else:
            print_text(piece.text)

    with live.connect(server) as client:
        job = f"id:{client.job(job).id}"  # another job may get the name meanwhile
        if follow:  # the service has answered once, so wait through a failover
            client.retry = FAILOVER_SECONDS
        if follow and generation is None:
            for piece in client.follow_logs(job, process=process, start=0 if whole else None):
                write(piece)
            return
        piece = client.logs(job, process=process, generation=generation)
        generation, end = piece.generation, piece.end
        if whole:
            piece = client.logs(job, process=process, generation=generation, start=0)
        while True:
            if piece.text:
                write(piece)
            # Without --follow, stop where the output ended when the command began.
            if (not follow and (piece.end >= end or not piece.text)) or (
                piece.complete and not piece.text
            ):
                return
            if not piece.text:
                time.sleep(1.0)
            piece = client.logs(job, process=process, generation=generation, start=piece.end)


def _is_about(event: Event, reference: str) -> bool:
    """Return whether an event is about the job that ``reference`` names.

    A reference is NAME, TENANT/NAME, /NAME (no tenant), id:ID or ID. Separators in a tenant or name
    may be escaped, as in `qualified_name`, if the tenant or the slash is given.
    """
    if event.job is None:
        return False
    escaped = f"{'' if event.tenant else '/'}{qualified_name(event.tenant, event.job)}"
    names = (event.job, f"{event.tenant or ''}/{event.job}", escaped, f"id:{event.job_id}")
    return reference in names or reference == str(event.job_id)


def events(
    after: Annotated[
        int | None,
        typer.Option(min=0, help="Start after the event with this number instead of now."),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Job whose events are printed.")] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Number of events after which to stop.")
    ] = None,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Stream the events of the live service until interrupted; reconnect if needed.

    [bold]Examples[/bold]
        shadowprice events
        shadowprice events --after 0 -o json | head -100
    """
    printed = 0
    with live.connect(server) as client:
        for event in client.events(after):
            if event.id is None or (job is not None and not _is_about(event, job)):
                continue
            if output == "json":
                print_json_line(event.record)
            else:
                print_result(escape_controls(_event_line(event)))
            printed += 1
            if count is not None and printed >= count:
                return


def _event_line(event: Event) -> str:
    data = {key: value for key, value in event.data.items() if value is not None}
    subject = f"{event.job}  " if event.job else ""
    text = f"{event.kind:<10} {subject}{live.with_local_times(_format_data(data))}"
    return f"{live.format_time(event.at):<9} {text}".rstrip()


def _format_data(data: dict[str, Any]) -> str:
    reason = data.pop("reason", None)
    parts = [f"{key}={_format_value(value)}" for key, value in data.items()]
    if reason:
        message = reason.get("message", "") if isinstance(reason, dict) else reason
        parts.append(join_lines(str(message)))
    return " ".join(parts)


def _format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def top(
    interval: Annotated[
        float, typer.Option(min=0.5, max=3_600, help="Refresh interval in seconds.")
    ] = 2.0,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print the screen once; the default if stdout isn't a terminal."
        ),
    ] = False,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Show the live service on one screen: running jobs, promises and waiting jobs.

    Ctrl-C exits.

    [bold]Example[/bold]
        shadowprice top
    """
    from rich.live import Live

    console = stdout()
    with live.connect(server) as client:
        if output == "json":
            service, jobs, servers = client.service(), client.jobs(*OPEN), client.servers()
            record = {
                "service": service.record,
                "jobs": [job.record for job in jobs],
                "servers": [server_record.record for server_record in servers],
            }
            print_json(record)
            return
        # A dumb terminal can't redraw its screen, and rich would print nothing.
        if once or not console.is_terminal or console.is_dumb_terminal:
            console.print(_render_screen(client, 1_000))
            return
        with Live(_render_screen(client, console.height), console=console, screen=True) as screen:
            client.retry = FAILOVER_SECONDS  # it has answered once, so wait through a failover
            while True:
                time.sleep(interval)
                screen.update(_render_screen(client, console.height), refresh=True)


def _render_screen(client: Client, height: int) -> RenderableType:
    from rich.console import Group

    service, servers = client.service(), client.servers()
    limit = max(3, height - 6)
    running = list(islice(client.jobs("running", "resizing"), limit))
    remaining = max(2, limit - len(running))
    waiting = list(islice(client.jobs("admitted", "standby", "pending"), remaining))
    busy = sum(bool(server.jobs) for server in servers)
    # A cordoned server is unavailable, but may still run jobs.
    idle = sum(server.state == "up" and not server.jobs for server in servers)
    unavailable = sum(server.state != "up" for server in servers)
    head = (
        f"{client.address.url}  policy {service.policy}  slot "
        f"{'-' if service.slot is None else service.slot} of {service.slot_seconds:g} s  "
        f"servers {busy} busy, {idle} idle, {unavailable} away  "
        f"{datetime.now(UTC).astimezone():%H:%M:%S}"
    )
    rows = squeue_rows([*running, *waiting], datetime.now(UTC))
    table = live.make_plain_table(COLUMNS, rows[:limit], right=["TIME", "WORKERS", "PS", "DONE"])
    foot = SafeText("" if rows else "nothing runs, nothing waits", "dim")
    return Group(SafeText(head, "bold"), table, foot)
