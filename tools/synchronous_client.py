"""Generate the synchronous client from the asynchronous one; a test checks that it is current.

Run, from the root of a clone: ``python tools/synchronous_client.py``
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

CLIENT = Path(__file__).parents[1] / "src/shadowprice/client"
SOURCE, TARGET = CLIENT / "asynchronous.py", CLIENT / "synchronous.py"

_PASSAGES: Final = (
    (
        '"""The asynchronous client: the same methods, awaited."""',
        '"""The synchronous client: written by `tools/synchronous_client.py`."""',
    ),
    ("service, as `Client` does, without blocking.", "service."),
    ("import asyncio\n", ""),
    # An asynchronous generator has no `yield from`.
    ("for entry in page.entries:\n                yield entry", "yield from page.entries"),
)
"""Passages that differ by more than names."""

_NAMES: Final = {
    "AsyncClient": "Client",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aiter_lines": "iter_lines",
    "aread": "read",
    "aread_pieces": "read_pieces",
    "asyncio": "time",
}


def synchronous(text: str) -> str:
    """Convert the source of the asynchronous client to that of the synchronous one.

    Raises
    ------
    ValueError
        If a passage is missing, or the result still contains asynchronous code.
    """
    for there, instead in _PASSAGES:
        if there not in text:
            raise ValueError(f"{SOURCE.name} doesn't contain {there!r}")
        text = text.replace(there, instead)
    text = re.sub(r"\b(async|await) ", "", text)
    text = re.sub(r"\w+", lambda word: _NAMES.get(word[0], word[0]), text)
    if left := re.search(r"\b(async|await|asyncio|__a\w+__)\b", text):
        raise ValueError(f"{left[0]!r} has no synchronous counterpart")
    for words in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(TARGET), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(synchronous(SOURCE.read_text("utf-8")), "utf-8")
