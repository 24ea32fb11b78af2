"""Logs of processes, of bounded size. Standard library only.

A log is a sequence of segments, ``worker-0.000000000000000.log``, each named after the offset of
its first byte. Only the last two segments are kept. Bytes that couldn't be written (full disk)
don't count in offsets; a line in the log marks their loss.
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
TAIL_LINES: Final = 40  # torchrun prints 34 if it doesn't find a script, and the first names it
LINE_CHARACTERS: Final = 300  # maximum length of a line in a tail
MAX_CHARACTER_BYTES: Final = 4  # of UTF-8
_SEGMENT: Final = re.compile(r"((?:worker|ps)-\d+)\.(\d+)\.log")
_LOST_MARKER: Final = b"\n[some output is missing here: it could not be written]\n"


class LogWriter:
    """Writes the log of one process, with ``secrets`` replaced by ``***``.

    ``limit`` is the maximum size of its two segments together, in bytes.
    """

    def __init__(self, directory: Path, name: str, limit: int, secrets: Sequence[str]) -> None:
        self._directory = directory
        self._name = name
        self._segment_bytes = max(1, limit // 2)
        self._secrets = [secret.encode() for secret in secrets if secret]
        self._withheld = b""
        self._offset = 0  # bytes written to all segments
        self._used = 0  # bytes written to the current segment
        self._segments: list[Path] = []
        self._descriptor = -1
        self._lost_output = False
        self._recent = bytearray()  # for `tail`
        self._open()

    def feed(self, content: bytes) -> None:
        """Write output of the process."""
        content = self._withheld + content
        for secret in self._secrets:
            content = content.replace(secret, b"***")
        # A secret may continue in the next read, so hold its beginning back.
        overlap = max((_overlap(content, secret) for secret in self._secrets), default=0)
        cut = len(content) - overlap
        self._withheld = content[cut:]
        self._write_all(content[:cut])

    def close(self) -> None:
        """Write the bytes held back, and close the segment."""
        self._write_all(self._withheld)
        self._withheld = b""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def tail(self) -> list[str]:
        """Return the last lines."""
        lines = self._recent.decode("utf-8", "replace").splitlines()
        shown = [line.rstrip()[-LINE_CHARACTERS:] for line in lines if line.strip()]
        return shown[-TAIL_LINES:]

    def _write_all(self, content: bytes) -> None:
        """Write bytes across segments; drop the rest after an error."""
        self._recent += content
        del self._recent[:-TAIL_BYTES]
        while content:
            free = self._segment_bytes - self._used
            if free <= 0 or self._descriptor < 0:
                self._open()
                free = self._segment_bytes
            if self._descriptor < 0 or not self._try_write(content[:free]):
                return
            content = content[free:]

    def _try_write(self, piece: bytes) -> bool:
        try:
            if self._lost_output:
                self._append(_LOST_MARKER)
                self._lost_output = False
            self._append(piece)
        except OSError:
            self._lost_output = True
            return False
        return True

    def _append(self, piece: bytes) -> None:
        while piece:
            written = os.write(self._descriptor, piece)
            self._offset += written
            self._used += written
            piece = piece[written:]

    def _open(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        path = self._directory / f"{self._name}.{self._offset:015d}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError:
            self._lost_output = True
            return
        self._used = 0
        if path not in self._segments:
            self._segments.append(path)
        for old in self._segments[:-2]:
            with contextlib.suppress(OSError):
                old.unlink()
        del self._segments[:-2]


def _overlap(content: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of ``content`` may begin a secret."""
    for length in range(min(len(secret) - 1, len(content)), 0, -1):
        if content.endswith(secret[:length]):
            return length
    return 0


def names(directory: Path) -> list[str]:
    """Return the processes that have a log."""
    try:
        entries = disk.list_names(directory)
    except FileNotFoundError:
        return []
    return sorted({match[1] for match in map(_SEGMENT.fullmatch, entries) if match})


def read(
    directory: Path, name: str, start: int | None, max_bytes: int, *, complete: bool
) -> tuple[int, int, str]:
    """Return a piece of a log: start offset, end offset and text.

    ``start`` is the offset of the first byte; None for the last ``max_bytes`` bytes. A character
    longer than ``max_bytes`` is returned whole. An incomplete character at the log's end is left
    for the next read, or replaced if the log is ``complete``.
    """
    for _ in range(3):  # a segment may be rotated away meanwhile
        try:
            return _read(directory, name, start, max_bytes, complete=complete)
        except FileNotFoundError:
            continue
    return (start or 0, start or 0, "")


def _read(
    directory: Path, name: str, start: int | None, max_bytes: int, *, complete: bool
) -> tuple[int, int, str]:
    segments = sorted(
        (int(match[2]), directory / match[0])
        for match in map(_SEGMENT.fullmatch, disk.list_names(directory))
        if match and match[1] == name
    )
    sizes = [(offset, path, path.stat().st_size) for offset, path in segments]
    if not sizes:
        return (start or 0, start or 0, "")
    first, last = sizes[0][0], sizes[-1][0] + sizes[-1][2]
    begin = max(first, last - max_bytes if start is None else min(start, last))
    end = min(last, begin + max_bytes)
    content = b""
    for offset, path, size in sizes:
        if offset < end and offset + size > begin:
            with path.open("rb") as stream:
                stream.seek(max(0, begin - offset))
                content += stream.read(end - max(begin, offset))
    if start is None or begin > start:  # skip the rest of a cut character
        skipped = next(
            (
                index
                for index in range(min(MAX_CHARACTER_BYTES, len(content)))
                if content[index] & 0xC0 != 0x80  # not a continuation byte of UTF-8
            ),
            0,
        )
        begin, content = begin + skipped, content[skipped:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content, final=complete and begin + len(content) == last)
    pending = len(decoder.getstate()[0])
    if pending and pending == len(content) and end < last:  # all bytes belong to one character
        return _read(directory, name, begin, MAX_CHARACTER_BYTES, complete=complete)
    return begin, begin + len(content) - pending, text
