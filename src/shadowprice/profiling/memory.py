"""Memory use of the processes of a generation."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

from shadowprice.executors.supervision.children import find_by_execution_id


def by_role(execution: str) -> dict[str, int]:
    """Return the memory in bytes that the largest process of each role needs now.

    It is the larger of two figures. The first is the proportional set size of the process with all
    its children, which control groups limit. The second is the largest private mapping of one of
    them, which ``RLIMIT_DATA`` limits. ``execution`` is the mark in the environment of the
    generation's processes.
    """
    taken: Counter[tuple[str, str]] = Counter()
    mapped: Counter[tuple[str, str]] = Counter()
    for process in find_by_execution_id(execution):
        with contextlib.suppress(OSError, ValueError, IndexError):
            environment = dict(
                line.partition(b"=")[::2]
                for line in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            )
            role = environment.get(b"SHADOWPRICE_ROLE", b"worker").decode()
            rank = environment.get(b"SHADOWPRICE_RANK", b"0").decode()
            taken[role, rank] += _bytes(process, "smaps_rollup", b"Pss")
            private = _bytes(process, "status", b"VmData")
            mapped[role, rank] = max(mapped[role, rank], private)
    largest: dict[str, int] = {}
    for (role, rank), size in taken.items():
        largest[role] = max(largest.get(role, 0), size, mapped[role, rank])
    return largest


def _bytes(process: int, file: str, name: bytes) -> int:
    """Return a size that a file of the kernel states in KiB on a line of its own, in bytes."""
    content = Path(f"/proc/{process}/{file}").read_bytes()
    return int(content.partition(b"\n%b:" % name)[2].split()[0]) * 1024
