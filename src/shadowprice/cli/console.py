"""Output of commands: consoles, tables, JSON, progress bars and the notice about compiling."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import typer
from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from shadowprice.core.wording import escape_controls, escape_json

if TYPE_CHECKING:
    from shadowprice.simulator.driver import ProgressCallback

_IN_ASCII: Final = (
    (re.compile(r"(?<=[ \d%])±(?= )"), "+-"),
    (re.compile(r"(?<=\d )µs\b"), "us"),
    (re.compile(r"…$"), "~"),  # the end of a cell that rich cut off
)
"""ASCII replacements of table symbols if stdout isn't Unicode. Patterns don't match in names."""

PIPE_WIDTH = 120  # width of text written to a file or a pipe, in columns
UNLIMITED_WIDTH: Final = 1_000_000  # width in which every table fits, in columns


NOTE_SECONDS: Final = 10.0
"""Seconds between two progress notes if stderr isn't a terminal."""


Output = Literal["table", "json"]  # format of a result
Listing = Literal["table", "csv", "json"]  # format of rows


class SafeConsole(Console):
    """Console that shows text literally: no markup, no control characters.

    Names, labels and messages come from files and could otherwise control the terminal. For styled
    text, commands use `SafeText`.
    """

    def on_broken_pipe(self) -> None:
        """Raise the `BrokenPipeError` of stdout; for stderr, stop printing.

        Rich's own method would replace stdout and end the command in both cases.
        """
        if not self.stderr:
            raise  # noqa: PLE0704  # called where the error is handled
        self.quiet = True

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text with control characters escaped, without markup."""
        text = to_encodable(escape_controls(text, lines=True), self.encoding)
        return super().render_str(text, **{**options, "emoji": False, "markup": False})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable with unsafe text escaped."""
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                text = to_encodable(escape_controls(segment.text, lines=True), self.encoding)
                yield Segment(text, segment.style)


class SafeText(Text):
    """Table text that is escaped before rich measures its width."""

    def __init__(self, text: str = "", style: str = "", **options: Any) -> None:
        super().__init__(to_encodable(escape_controls(text), sys.stdout.encoding), style, **options)


def to_encodable(text: str, encoding: str | None) -> str:
    """Replace table symbols by ASCII if the encoding isn't Unicode."""
    if text.isascii() or (encoding or "").lower().startswith("utf"):
        return text
    for sign, ascii_ in _IN_ASCII:
        text = sign.sub(ascii_, text)
    return text


def stdout() -> Console:
    """Return the console for results; a pipe gets a fixed width and no colours."""
    return SafeConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def stderr() -> Console:
    """Return the console for progress and notes."""
    return SafeConsole(stderr=True, highlight=False)


def print_line(text: str) -> None:
    """Print a line of text on stdout, never wrapped."""
    stdout().print(text, soft_wrap=True)


def print_text(text: str) -> None:
    """Print text unchanged; on a terminal, escape characters that would control the terminal."""
    sys.stdout.write(escape_controls(text, lines=True) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_note(text: str) -> None:
    """Print a line of text on stderr, never wrapped."""
    stderr().print(text, soft_wrap=True)


def make_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[str | Text]],
    *,
    left: Container[int] = (0,),
    fold: Container[int] = (),
    title: str | None = None,
) -> Table:
    """Return a table without lines, below a title if there is one.

    Columns at the positions ``left`` are left-aligned, the others right-aligned. Long words are
    folded in columns at the positions ``fold``, and cut off in others.
    """
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=title is not None,
    )
    for index, name in enumerate(columns):
        justify: JustifyMethod = "left" if index in left else "right"
        overflow: OverflowMethod = "fold" if index in fold else "ellipsis"
        table.add_column(SafeText(name), justify=justify, overflow=overflow)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else SafeText(cell) for cell in row))
    return table


def rows_console() -> Console:
    """Return the console for rows. Without a terminal, each row is one line for grep and awk."""
    console = stdout()
    if not sys.stdout.isatty():
        console.width = UNLIMITED_WIDTH
    return console


def print_more(limit: int, maximum: int) -> None:
    """Print a note that there are more rows than ``--limit``."""
    hint = f"; --limit {min(2 * limit, maximum)} shows more" if limit < maximum else ""
    print_note(f"and more{hint}")


def print_csv(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows as CSV, with the columns in ``names``; a missing value is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row.get(name) for name in names] for row in rows)
    print_text(text.getvalue())


_result_streams: Final[list[TextIO]] = []
"""The real stdout of a command with JSON output; empty unless `reserve_stdout` was called."""


def reserve_stdout(context: typer.Context, output: Output) -> Output:
    """Reserve stdout for the result of a JSON command; the callback of ``--output``.

    Prints of policies and libraries would break the JSON, so they go to stderr.
    """
    if output == "json":
        context.with_resource(_reserved_stdout())
    return output


@contextmanager
def _reserved_stdout() -> Iterator[None]:
    _result_streams.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _result_streams.pop()


def print_result(text: str) -> None:
    """Print a line of a command's result on stdout, at once."""
    print(text, file=_result_streams[-1] if _result_streams else None, flush=True)


def print_json(record: Mapping[str, object] | list[dict[str, object]]) -> None:
    """Print a record as JSON."""
    print_result(escape_json(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)))


def print_json_line(record: Mapping[str, object]) -> None:
    """Print a record as one line of JSON."""
    print_result(escape_json(json.dumps(record, ensure_ascii=False)))


def periodic_note() -> Callable[[Callable[[], str]], None]:
    """Return a function that prints a text on stderr, at most every `NOTE_SECONDS`."""
    printed = time.monotonic()

    def note(text: Callable[[], str]) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= NOTE_SECONDS:
            printed = now
            print_note(text())

    return note


@contextmanager
def progress_bar(label: str, quiet: bool, unit: str = "jobs") -> Iterator[ProgressCallback | None]:
    """Show progress: a bar on a terminal, otherwise a line at intervals; yield None if quiet."""
    console = stderr()
    if quiet:
        yield None
        return
    if not console.is_terminal:
        note = periodic_note()

        def print_progress(done: int, total: int, slot: int | None = None, /) -> None:
            where = "" if slot is None else f", slot {slot:,}"
            note(lambda: f"{label}{where}: {done:,} of {total:,} {unit}")

        yield print_progress
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit, markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)

        def show(done: int, total: int, slot: int | None = None, /) -> None:
            description = label if slot is None else f"{label}, slot {slot:,}"
            bar.update(task, completed=done, total=total, description=description)

        yield show


def announce_compiling(quiet: bool) -> None:
    """Print a notice before the first kernel is compiled, unless quiet."""
    # Importing the compiler takes as long as a small run, so it isn't imported for the notice. With
    # ``quiet`` it has to be, because it announces itself by default.
    if quiet or "shadowprice.kernels.jit" in sys.modules:
        from shadowprice.kernels.jit import announcer, print_on_stderr

        announcer.print_line = None if quiet else print_on_stderr
