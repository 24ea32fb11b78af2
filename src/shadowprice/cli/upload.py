"""Sends the files of a directory to a service that doesn't see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shadowprice.cli.console import periodic_note, print_note, stderr

if TYPE_CHECKING:
    from shadowprice.client import Client
    from shadowprice.rest import UploadLimits
    from shadowprice.uploads.packing import Selection

_MAX_NAMED: Final = 5


def send_directory(
    client: Client,
    directory: Path,
    limits: UploadLimits,
    tenant: str | None,
    *,
    quiet: bool,
    dry_run: bool,
) -> str | None:
    """Send the files of a directory, unless the service has them; return their digest.

    With ``dry_run``, only print what would be sent, and return None. Raises `InputError` if the
    files exceed a limit, can't be read or change meanwhile.
    """
    from shadowprice.uploads.packing import select_files, shown_bytes, temporary_archive

    selection = select_files(directory, max_bytes=limits.max_bytes, max_entries=limits.max_entries)
    count = len(selection.files)
    what = f"{count:,} {'entry' if count == 1 else 'entries'} of {directory}"
    size = shown_bytes(selection.size)
    if not quiet:
        _print_left_out(selection)
    if dry_run:
        print_note(f"would send {what} ({size})")
        return None
    sent: list[int] = []
    with temporary_archive(selection) as archive, _progress(what, archive.size, quiet) as show:

        def on_sent(done: int) -> None:
            sent[:] = [done]
            show(done)

        client.upload(archive, tenant=tenant, sent=on_sent)
        digest = archive.digest
    if not quiet:
        text = f"sent {what} ({size})" if sent else f"the service has the {what} ({size})"
        print_note(f"{text}; what the job writes there isn't copied back")
    return digest


def _print_left_out(selection: Selection) -> None:
    """Name the links that lead outside, and special files."""
    names = selection.left_out
    if names:
        more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
        listed = f"{', '.join(names[:_MAX_NAMED])}{more}"
        text = f"left out links to outside and special files: {listed}"
        print_note(text)


@contextmanager
def _progress(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show the progress of sending: a bar on a terminal, otherwise a line now and then."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = stderr()
    if not quiet and console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("sending files", total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    note = periodic_note()

    def print_progress(done: int) -> None:
        if not quiet:
            note(lambda: f"sending {what}: {100 * done // total} %")

    yield print_progress
