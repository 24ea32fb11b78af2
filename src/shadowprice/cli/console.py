"""What the commands share: consoles, progress, and the line about compiling."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from shadowprice.core.wording import escaped, json_safe

if TYPE_CHECKING:
    from shadowprice.simulator.driver import RunProgress

_BOLD: Final = re.compile(r"\[/?bold\]")
# What rich takes for a tag, but for bold, with the backslashes before it.
_FOREIGN_TAG: Final = re.compile(r"(\\*)(\[(?!/?bold\])[a-z#/@][^\[]*?\])")

_IN_ASCII: Final = (
    (re.compile(r"(?<=[ \d%])±(?= )"), "+-"),
    (re.compile(r"(?<=\d )µs\b"), "us"),
    (re.compile(r"…$"), "~"),  # where rich cuts something short
)
"""What tables say instead where the output is not in Unicode; names stay as they are."""

PIPE_WIDTH = 120
"""Columns of tables that go to a file or a pipe."""


class Output(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class Listing(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class SafeConsole(Console):
    """A console that shows names as they are: no markup but bold, no control characters.

    Names, labels and messages come from files; a terminal must not obey what stands in them.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text with control characters escaped and foreign brackets left as they are."""
        text = speakable(escaped(text, lines=True), self.encoding)
        options["emoji"] = False
        if options.get("markup") is False or not _BOLD.search(text):
            return super().render_str(text, **{**options, "markup": False})
        return super().render_str(_FOREIGN_TAG.sub(r"\1\1\\\2", text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, made safe wherever its text came from."""
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                text = speakable(escaped(segment.text, lines=True), self.encoding)
                yield Segment(text, segment.style)


class SafeText(Text):
    """A text of a table, escaped before its width is measured."""

    def __init__(self, text: str = "", style: str = "", **options: Any) -> None:
        super().__init__(speakable(escaped(text), sys.stdout.encoding), style, **options)


def speakable(text: str, encoding: str | None) -> str:
    """Return a text with the signs of tables in ASCII where the output is not in Unicode."""
    if text.isascii() or (encoding or "").lower().startswith("utf"):
        return text
    for sign, ascii_ in _IN_ASCII:
        text = sign.sub(ascii_, text)
    return text


def stdout() -> Console:
    """Return the console for results; a pipe gets a fixed width and no colours."""
    return SafeConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def stderr() -> Console:
    """Return the console for progress and remarks."""
    return SafeConsole(stderr=True, highlight=False)


def print_json(record: Mapping[str, object] | list[dict[str, object]]) -> None:
    """Print a record for programs."""
    print(json_safe(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)))


@contextmanager
def progress_bar(label: str, quiet: bool, unit: str = "jobs") -> Iterator[RunProgress | None]:
    """Show jobs arriving, and the slot that a run is in, on a terminal only."""
    console = stderr()
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)

        def show(done: int, total: int, slot: int | None = None, /) -> None:
            at = label if slot is None else f"{label}, slot {slot:,}"
            bar.update(task, completed=done, total=total, description=at)

        yield show


def mention_compiling(quiet: bool) -> None:
    """Print a line when kernels are compiled from here on, unless quiet."""
    # Importing the compiler takes as long as a small run, and not every policy has kernels.
    if quiet or "shadowprice.kernels.jit" in sys.modules:
        from shadowprice.kernels.jit import announcer, say_on_stderr

        announcer.say = None if quiet else say_on_stderr
