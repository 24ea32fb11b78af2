"""Writing the journal of a run as it happens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from shadowprice.core.events import Command, DriverEvent
from shadowprice.engine.journal import encode
from shadowprice.results.observer import Observer


class JournalWriter(Observer):
    """An observer that appends every event to a file, one line each.

    Parameters
    ----------
    path : Path
        The file; it is begun anew.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def took(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Append an event."""
        del commands
        self._file.write(encode(event) + "\n")

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
