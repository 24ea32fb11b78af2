"""Logs that are on this machine, by the piece."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shadowprice.executors.contract import LogChunk
from shadowprice.executors.generations import logs

MOST: Final = 1 << 20
"""Bytes of a piece, at most."""


def piece(
    folder: Path, number: int, process: str, start: int | None, most: int, *, complete: bool
) -> LogChunk:
    """Return a piece of a process's log; see `Executor.logs`.

    Parameters
    ----------
    folder : Path
        Where the logs of its generation are.
    number : int
        The generation.
    process : str
        The process.
    start : int or None
        First byte wanted; None for the last ``most``.
    most : int
        Most bytes wanted.
    complete : bool
        Whether nothing will be written any more.

    Raises
    ------
    KeyError
        If there is no such log.
    """
    if process not in logs.names(folder):
        raise KeyError(f"{process} of generation {number}")
    most = max(1, min(most, MOST))
    begin, end, text = logs.read(folder, process, start, most, complete=complete)
    _, last, _ = logs.read(folder, process, None, 1, complete=True)
    return LogChunk(number, process, begin, end, text, complete and end >= last)
