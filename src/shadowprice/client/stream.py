"""Server-sent events, read as their specification says. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from shadowprice.rest.jobs import Event

LONGEST: Final = 8 << 20
"""Characters of one event, at most."""


@dataclass(slots=True)
class Decoder:
    """Takes lines, and yields events.

    Attributes
    ----------
    last : int or None
        Number to resume from.
    """

    last: int | None = None
    _number: int | None = None
    _kind: str = ""
    _data: list[str] = field(default_factory=list)
    _size: int = 0

    def take(self, line: str) -> Iterator[Event]:
        """Yield the event that a line ends, if it does.

        Raises
        ------
        ValueError
            If what comes is no stream of this service.
        """
        if not line:
            if self._data:
                record = json.loads("\n".join(self._data))
                if not isinstance(record, dict):
                    raise ValueError("an event's data is no object")
                if self._number is None:  # for the moment only: all of it is data
                    record = {"kind": self._kind, "data": record}
                else:
                    self.last = self._number
                yield Event.model_validate({"kind": self._kind, **record, "id": self._number})
            self._number, self._kind, self._size = None, "", 0
            self._data.clear()
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._size += len(value)
                if self._size > LONGEST:
                    raise ValueError("an event is longer than any should be")
                self._data.append(value)
            case "event":
                self._kind = value
            case "id" if value.isascii() and value.isdigit():
                self._number = int(value)

    def broken(self) -> None:
        """Forget what was not finished when a stream broke off."""
        self._number, self._kind, self._size = None, "", 0
        self._data.clear()


def pauses() -> Iterator[float]:
    """Yield seconds to wait before each next attempt: short at first, then half a minute."""
    pause = 0.5
    while True:
        yield pause
        pause = min(2 * pause, 30.0)
