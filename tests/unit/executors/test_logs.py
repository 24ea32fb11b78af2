"""Logs of processes, read in parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadowprice.executors.generations import logs


@pytest.mark.parametrize("max_bytes", [1, 2, 3, 4, 5, 100])
@pytest.mark.parametrize("complete", [False, True])
def test_reader_gets_past_every_character(tmp_path: Path, max_bytes: int, complete: bool) -> None:
    written = "a\u00e9\u20ac\U0001f600z".encode() + b"\xf0\xf0\x80-\xff."
    writer = logs.LogWriter(tmp_path, "worker-0", 10_000, ())
    writer.feed(written)
    writer.close()
    start, text = 0, ""
    while start < len(written):
        begin, end, piece = logs.read(tmp_path, "worker-0", start, max_bytes, complete=complete)
        assert begin == start
        assert start < end <= start + max(max_bytes, logs.MAX_CHARACTER_BYTES)
        start, text = end, text + piece
    assert text == written.decode("utf-8", "replace")
