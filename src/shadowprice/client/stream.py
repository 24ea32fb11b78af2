"""Parser of server-sent events. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from shadowprice import rest

MAX_EVENT_CHARS: Final = 8 << 20  # maximum characters of one event


@dataclass(slots=True)
class SseDecoder:
    """Parses lines into events; ``last`` is the number to resume after."""

    last: int | None = None
    _number: int | None = None
    _kind: str = ""
    _data: list[str] = field(default_factory=list)
    _size: int = 0

    def feed(self, line: str) -> Iterator[rest.Event]:
        """Yield an event if the line completes it; raise `ValueError` if the stream is foreign."""
        if not line:
            if self._data:
                record = json.loads("\n".join(self._data))
                if not isinstance(record, dict):
                    raise ValueError("an event's data is not an object")
                if self._number is None:  # the event isn't stored, so the record is its data
                    record = {"kind": self._kind, "data": record}
                else:
                    self.last = self._number
                yield rest.Event.model_validate({"kind": self._kind, **record, "id": self._number})
            elif self._number is not None:  # where the stream starts
                self.last = self._number
            self.discard()
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._size += len(value)
                if self._size > MAX_EVENT_CHARS:
                    raise ValueError("an event is longer than any should be")
                self._data.append(value)
            case "event":
                self._kind = value
            case "id" if value.isascii() and value.isdigit():
                self._number = int(value)

    def discard(self) -> None:
        """Discard an incomplete event, after the stream broke."""
        self._number, self._kind, self._size = None, "", 0
        self._data.clear()


def reconnect_delays() -> Iterator[float]:
    """Yield the backoff before each retry: 0.5 s, doubled up to 30 s."""
    delay = 0.5
    while True:
        yield delay
        delay = min(2 * delay, 30.0)
