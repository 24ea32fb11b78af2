"""Expansion of compressed name lists."""

from __future__ import annotations

import re
from collections.abc import Iterator


def expand_name_list(part: str) -> Iterator[str]:
    """Yield the names of one part of a compressed list."""
    match = re.fullmatch(r"(.*)-\[([\d,-]+)\]", part)
    if not match:
        yield part
        return
    for span in match[2].split(","):
        low, _, high = span.partition("-")
        for number in range(int(low), int(high or low) + 1):
            yield f"{match[1]}-{number}"
