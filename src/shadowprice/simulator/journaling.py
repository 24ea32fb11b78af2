"""Journal of a simulation, written while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shadowprice.core.events import Command, DriverEvent
from shadowprice.engine import Engine
from shadowprice.engine.journal import Header, JournalWriter
from shadowprice.results.observer import Observer


class JournalObserver(Observer):
    """Observer that appends every event with its decisions to a new journal file."""

    def __init__(self, path: Path, policy: str) -> None:
        self._path = path
        self._policy = policy
        self._engine: Engine | None = None
        self._writer: JournalWriter | None = None

    def on_start(self, engine: Engine) -> None:
        """Write the header."""
        self._engine = engine
        self._writer = JournalWriter(self._path, Header.of(engine, self._policy))

    def on_event(self, _event: DriverEvent, _commands: Sequence[Command]) -> None:
        """Append an event."""
        assert self._engine is not None
        assert self._engine.last is not None
        assert self._writer is not None
        self._writer.add(self._engine.last, self._engine)

    def on_finish(self, engine: Engine) -> None:
        """Append the digest of the final state."""
        if self._writer is not None:
            self._writer.mark(engine)

    def __enter__(self) -> JournalObserver:
        return self

    def __exit__(self, *_details: object) -> None:
        if self._writer is not None:
            self._writer.close()
