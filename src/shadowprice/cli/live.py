"""Parts that commands of the live service share: the connection, formats, and tables."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from shadowprice.cli.console import Output, SafeText, make_table, print_json, rows_console, stdout
from shadowprice.cli.program import PROGRAM, called_program
from shadowprice.core import wording
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import escape_controls

if TYPE_CHECKING:
    from shadowprice.client import Client, Job
    from shadowprice.rest import PredictedLength


FAILOVER_SECONDS: Final = 15.0
"""Retry timeout of commands that keep running, in seconds. A failover takes about ten."""

STYLES: Final = {
    **dict.fromkeys(("running", "resizing", "finished"), "green"),
    **dict.fromkeys(("up", "idle", "mixed", "allocated"), "green"),
    **dict.fromkeys(("refused", "failed", "lost"), "red"),
    **dict.fromkeys(("cancelled", "standby", "pending"), "yellow"),
    **dict.fromkeys(("cordoned", "drained", "draining"), "yellow"),
}
"""Colours of job and server states."""


def _complete_server(incomplete: str) -> list[str]:
    try:
        from shadowprice.client.endpoints import SavedEndpoints

        return [name for name in SavedEndpoints.load().endpoints if name.startswith(incomplete)]
    except Exception:  # completion must not print to the shell
        return []


def complete_live(
    read_names: Callable[[Client], Iterable[str]],
) -> Callable[[typer.Context, str], list[str]]:
    """Return a completer of names at the service. It offers none if the service is slow."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            from shadowprice.client import Client

            with Client(ctx.params.get("server")) as client:
                client.hurry()
                return [name for name in read_names(client) if name.startswith(incomplete)][:200]
        except Exception:  # completion must not print to the shell
            return []

    return complete


complete_live_job: Final = complete_live(
    lambda client: (job.name for job in client.page_of_jobs(limit=500).entries)
)
"""Completer of names of open jobs."""


ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        help="Live service: a name saved by `login`, or a URL; by default "
        "$SHADOWPRICE_SERVER, then the last login.",
        metavar="NAME|URL",
        rich_help_panel="Connection",
        autocompletion=_complete_server,
        show_default=False,
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")]
JobArgument = Annotated[
    str, typer.Argument(help="Name of the job.", metavar="JOB", autocompletion=complete_live_job)
]


@contextmanager
def connect(server: str | None) -> Iterator[Client]:
    """Yield a client; raise its errors about the call as `InputError`, with hints."""
    from shadowprice.client import Client, ServiceError

    with Client(server) as client:
        try:
            yield client
        except ServiceError as error:
            if error.code == "unauthenticated":
                url = client.address.url
                message = "a token is needed" if client.address.token is None else str(error)
                login = f"run {PROGRAM} login {shlex.quote(url)}, or "
                if called_program.get() != PROGRAM:  # the plugin of kubectl doesn't use logins
                    login = ""
                hint = f"{login}set SHADOWPRICE_SERVER and SHADOWPRICE_TOKEN"
                raise InputError(Fault(url, message, hint)) from error
            if error.faults:
                faults = [
                    replace(fault, location=fault.location.removeprefix("body."))
                    for fault in error.faults
                ]
                raise InputError(faults) from error
            if error.code == "not-found":
                message, _, hint = str(error).partition("; ")
                # The service's hints name its REST API.
                if message.startswith("unknown job"):
                    hint = f"{called_program.get()} queue lists open jobs"
                elif hint.startswith("GET /v1/servers"):
                    hint = f"{called_program.get()} nodes lists them"
                raise InputError(Fault("", message, hint)) from error
            raise


def make_plain_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()
) -> Table:
    """Return a plain table; columns named in ``right`` are right-aligned."""
    texts = (["-" if value in (None, "") else str(value) for value in row] for row in rows)
    cells = ([SafeText(text, STYLES.get(text, "")) for text in row] for row in texts)
    left = [index for index, name in enumerate(columns) if name not in right]
    return make_table(columns, cells, left=left, fold=range(len(columns)))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()
) -> None:
    """Print a plain table."""
    rows_console().print(make_plain_table(columns, rows, right=right))


def print_facts(rows: Iterable[tuple[str, object]]) -> None:
    """Print name-value pairs; skip empty values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value not in (None, ""):
            table.add_row(name, SafeText(str(value), STYLES.get(str(value), "")))
    stdout().print(table)


def format_time(moment: datetime | None, now: datetime | None = None) -> str:
    """Format a time in local time; the date is only included if it isn't today."""
    if moment is None:
        return "-"
    local = moment.astimezone()
    today = (now or datetime.now(UTC)).astimezone().date()
    if local.date() == today:
        return local.strftime("%H:%M:%S")
    return local.strftime("%b %d %H:%M" if local.year == today.year else "%Y-%m-%d %H:%M")


_MOMENT: Final = re.compile(
    r"(?P<option>--by |--set by=)?"
    r"\b(?P<moment>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|\+00:00))"
)
"""A time in the service's texts, or an option with a time as its value."""


def with_local_times(text: str) -> str:
    """Replace the UTC times in a text of the service by local times.

    The values of options stay in a form that commands accept.
    """

    def local(match: re.Match[str]) -> str:
        moment = datetime.fromisoformat(match["moment"])
        if match["option"] is None:
            return format_time(moment)
        zoned = moment.astimezone()
        clock = zoned.replace(tzinfo=None)
        # In the hour that is repeated at the end of summer time, the offset is needed.
        is_repeated = clock.replace(fold=0).astimezone() != clock.replace(fold=1).astimezone()
        return match["option"] + (zoned if is_repeated else clock).isoformat()

    return _MOMENT.sub(local, text)


def format_duration(length: timedelta) -> str:
    """Format a duration like squeue: 2-03:04:05, 3:04:05 or 4:05."""
    seconds = max(0, int(length.total_seconds()))
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def format_expected(
    moment: datetime | None, predicted: PredictedLength | None, now: datetime | None = None
) -> str:
    """Format the expected completion of a job; ``~`` if it follows from a predicted length."""
    mark = "" if moment is None or predicted is None else "~"
    return f"{mark}{format_time(moment, now)}"


def format_progress(job: Job) -> str:
    """Format the progress of a job."""
    return f"{100 * job.progress / job.required:.0f}%" if job.required else "-"


def format_number(value: float | None) -> str:
    """Format a utility or a price."""
    return "-" if value is None else wording.format_number(value)


def format_servers(names: Sequence[str]) -> str:
    """Format server names as Slurm does: net-0,gpu-[0-3,7]."""
    from shadowprice.results.server_names import merge_numbered_names

    merged, single = merge_numbered_names(names)
    return ",".join([*single, *merged])


def format_resources(record: Any) -> str:
    """Format the resources of a server or a worker."""
    return " ".join(f"{name}={value}" for name, value in dict(record).items())


def confirm(question: str, yes: bool) -> bool:
    """Ask the user for confirmation on a terminal; return True without one or with --yes."""
    if yes or not sys.stdin.isatty():
        return True
    with redirect_stdout(sys.stderr):  # the result may go to a file
        return typer.confirm(escape_controls(question))


def print_changes(
    changes: Iterable[Any],
    output: Output,
    columns: Sequence[str],
    row: Callable[[Any], Sequence[object]],
) -> None:
    """Make changes one by one, and print the changed records, even if a later change fails.

    ``changes`` makes a change when its next element is requested. ``row`` returns the cells of a
    record.
    """
    changed: list[Any] = []

    def print_changed() -> None:
        if output == "json":
            print_json([item.record for item in changed])
        elif changed:
            print_table(columns, map(row, changed))

    try:
        changed.extend(changes)
    except BaseException:
        if changed:
            print_changed()
        raise
    print_changed()
