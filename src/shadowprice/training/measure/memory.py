"""How much memory the processes of a generation take."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

from shadowprice.executors.supervision.children import marked


def by_role(execution: str) -> dict[str, int]:
    """Return the bytes that the largest process of each role needs now.

    That is what it takes with all that it started, memory that processes share divided among them
    (the proportional set of Linux); or what one of them maps privately, where that is more. Control
    groups hold a process to the former, limits (``RLIMIT_DATA``) to the latter.

    Parameters
    ----------
    execution : str
        The mark that a generation's processes carry in their environment.
    """
    taken: Counter[tuple[str, str]] = Counter()
    mapped: Counter[tuple[str, str]] = Counter()
    for process in marked(execution):
        with contextlib.suppress(OSError, ValueError, IndexError):
            told = dict(
                line.partition(b"=")[::2]
                for line in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            )
            role = told.get(b"SHADOWPRICE_ROLE", b"worker").decode()
            rank = told.get(b"SHADOWPRICE_RANK", b"0").decode()
            taken[role, rank] += _bytes(process, "smaps_rollup", b"Pss")
            private = _bytes(process, "status", b"VmData")
            mapped[role, rank] = max(mapped[role, rank], private)
    largest: dict[str, int] = {}
    for (role, rank), size in taken.items():
        largest[role] = max(largest.get(role, 0), size, mapped[role, rank])
    return largest


def _bytes(process: int, file: str, name: bytes) -> int:
    """Return a size that the kernel tells of a process in kibibytes, a line each."""
    content = Path(f"/proc/{process}/{file}").read_bytes()
    return int(content.partition(b"\n%b:" % name)[2].split()[0]) * 1024
