"""How much memory the processes of a generation take."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

from shadowprice.executors.supervision.children import marked


def by_role(execution: str) -> dict[str, int]:
    """Return the bytes that the largest process of each role takes now, what it started included.

    Memory that processes share is divided among them (the proportional set of Linux).

    Parameters
    ----------
    execution : str
        The mark that a generation's processes carry in their environment.
    """
    taken: Counter[tuple[str, str]] = Counter()
    for process in marked(execution):
        with contextlib.suppress(OSError, ValueError, IndexError):
            told = dict(
                line.partition(b"=")[::2]
                for line in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            )
            content = Path(f"/proc/{process}/smaps_rollup").read_bytes()
            kibibytes = int(content.partition(b"\nPss:")[2].split()[0])
            role = told.get(b"SHADOWPRICE_ROLE", b"worker").decode()
            rank = told.get(b"SHADOWPRICE_RANK", b"0").decode()
            taken[role, rank] += kibibytes * 1024
    largest: dict[str, int] = {}
    for (role, _), size in taken.items():
        largest[role] = max(largest.get(role, 0), size)
    return largest
