"""Chunks of logs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shadowprice.executors.contract import LogChunk
from shadowprice.executors.generations import logs

MAX_CHUNK_BYTES: Final = 1 << 20  # maximum bytes of a chunk


def read_chunk(
    folder: Path, number: int, process: str, start: int | None, max_bytes: int, *, complete: bool
) -> LogChunk:
    """Return a chunk of a process's log in a generation's log folder; see `Executor.logs`.

    ``complete`` is true if the process has ended.
    """
    if process not in logs.names(folder):
        raise KeyError(f"{process} of generation {number}")
    max_bytes = max(1, min(max_bytes, MAX_CHUNK_BYTES))
    begin, end, text = logs.read(folder, process, start, max_bytes, complete=complete)
    _, last, _ = logs.read(folder, process, None, 1, complete=True)
    return LogChunk(number, process, begin, end, text, complete and end >= last)
