"""What processes write, kept within bounds. Standard library only.

A log is a row of segments, ``worker-0.000000000000.log``, each named after the place of its first
byte; of a row only the last two are kept. Bytes that could not be written (a full disk) have no
place and are told of by a line.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shadowprice.executors.generations import disk

TAIL_BYTES: Final = 16_384
TAIL_LINES: Final = 40
"""What torchrun says of a script that it does not find is 34, the first of which names it."""
LINE_CHARACTERS: Final = 300
_SEGMENT: Final = re.compile(r"((?:worker|ps)-\d+)\.(\d+)\.log")
_LOST: Final = b"\n[some output is missing here: it could not be written]\n"


class LogWriter:
    """Keeps what one process writes.

    Parameters
    ----------
    directory : Path
        Where.
    name : str
        The process.
    limit : int
        Most bytes kept; two segments of half of it.
    secrets : sequence of str
        What is never written, but starred out.
    """

    def __init__(self, directory: Path, name: str, limit: int, secrets: Sequence[str]) -> None:
        self._directory = directory
        self._name = name
        self._segment = max(1, limit // 2)
        self._secrets = [secret.encode() for secret in secrets if secret]
        self._held = b""
        self._place = 0
        self._used = 0
        self._kept: list[Path] = []
        self._descriptor = -1
        self._lossy = False
        self._recent = bytearray()
        self._open()

    def feed(self, content: bytes) -> None:
        """Take what was read from the process."""
        content = self._held + content
        for secret in self._secrets:
            content = content.replace(secret, b"***")
        # A secret may go on in what is read next: its beginning waits for that.
        waiting = max((_overlap(content, secret) for secret in self._secrets), default=0)
        cut = len(content) - waiting
        self._held = content[cut:]
        self._keep(content[:cut])

    def close(self) -> None:
        """Write what was held back, and end."""
        self._keep(self._held)
        self._held = b""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def tail(self) -> list[str]:
        """Return the last lines."""
        lines = self._recent.decode("utf-8", "replace").splitlines()
        shown = [line.rstrip()[-LINE_CHARACTERS:] for line in lines if line.strip()]
        return shown[-TAIL_LINES:]

    def _keep(self, content: bytes) -> None:
        self._recent += content
        del self._recent[:-TAIL_BYTES]
        while content:
            room = self._segment - self._used
            if room <= 0 or self._descriptor < 0:
                self._open()
                room = self._segment
            if self._descriptor < 0 or not self._write(content[:room]):
                return
            content = content[room:]

    def _write(self, piece: bytes) -> bool:
        """Write a piece; whether all of it could be."""
        try:
            if self._lossy:
                self._append(_LOST)
                self._lossy = False
            self._append(piece)
        except OSError:
            self._lossy = True
            return False
        return True

    def _append(self, piece: bytes) -> None:
        while piece:
            done = os.write(self._descriptor, piece)
            self._place += done
            self._used += done
            piece = piece[done:]

    def _open(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        path = self._directory / f"{self._name}.{self._place:015d}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError:
            self._lossy = True
            return
        self._used = 0
        if path not in self._kept:
            self._kept.append(path)
        for old in self._kept[:-2]:
            with contextlib.suppress(OSError):
                old.unlink()
        del self._kept[:-2]


def _overlap(content: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of a content begin a secret."""
    for length in range(min(len(secret) - 1, len(content)), 0, -1):
        if content.endswith(secret[:length]):
            return length
    return 0


def names(directory: Path) -> list[str]:
    """Return the processes that have a log."""
    try:
        entries = disk.names(directory)
    except FileNotFoundError:
        return []
    return sorted({match[1] for match in map(_SEGMENT.fullmatch, entries) if match})


def read(
    directory: Path, name: str, start: int | None, most: int, *, complete: bool
) -> tuple[int, int, str]:
    """Return a piece of a log: its beginning, its end and its text.

    Parameters
    ----------
    directory, name
        Which log.
    start : int or None
        First byte wanted; None for the last ``most``.
    most : int
        Most bytes wanted.
    complete : bool
        Whether nothing will be written any more: an unfinished character is then cut, not awaited.
    """
    for _ in range(3):  # a segment may go while it is read
        try:
            return _read(directory, name, start, most, complete=complete)
        except FileNotFoundError:
            continue
    return (start or 0, start or 0, "")


def _read(
    directory: Path, name: str, start: int | None, most: int, *, complete: bool
) -> tuple[int, int, str]:
    segments = sorted(
        (int(match[2]), directory / match[0])
        for match in map(_SEGMENT.fullmatch, disk.names(directory))
        if match and match[1] == name
    )
    sized = [(place, path, path.stat().st_size) for place, path in segments]
    if not sized:
        return (start or 0, start or 0, "")
    first, last = sized[0][0], sized[-1][0] + sized[-1][2]
    wanted = max(first, last - most if start is None else min(start, last))
    end = min(last, wanted + most)
    content = b""
    for place, path, size in sized:
        if place < end and place + size > wanted:
            with path.open("rb") as stream:
                stream.seek(max(0, wanted - place))
                content += stream.read(end - max(wanted, place))
    if start is None or wanted > start:  # begin with a whole character
        skipped = next((at for at in range(min(4, len(content))) if content[at] & 0xC0 != 0x80), 0)
        wanted, content = wanted + skipped, content[skipped:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content, final=complete and wanted + len(content) == last)
    pending = len(decoder.getstate()[0])
    return wanted, wanted + len(content) - pending, text
