"""Control groups (version 2) round the processes of a generation, where this user may make them.

A group holds whatever its processes begin, however often they fork and whatever they make of
their environment, and ends all of it with one write. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def find(name: str, chosen: str = "") -> Path | None:
    """Return a group for one executor, made where it was not, None where that is not allowed.

    Parameters
    ----------
    name : str
        What it is called, below the group of this process.
    chosen : str
        The group below which it is made instead: one that was delegated to this user.
    """
    try:
        parent = Path(chosen) if chosen else _own()
        if parent is None:
            return None
        group = parent / name
        group.mkdir(exist_ok=True)
    except OSError:
        return None
    return group if (group / "cgroup.kill").exists() else None


def _own() -> Path | None:
    own = None
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        hierarchy, _, path = line.split(":", 2)
        if hierarchy == "0":
            own = path
    if own is None:
        return None
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2":
            return Path(before.split()[4]) / own.lstrip("/")
    return None


def limits_memory(group: Path) -> bool:
    """Let groups below one limit memory; whether they can."""
    try:
        if "memory" not in (group / "cgroup.controllers").read_text(encoding="ascii").split():
            return False
        (group / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
    except OSError:
        return False
    return True


def make(group: Path, memory: int = 0) -> None:
    """Make a group, with a limit of memory in bytes, 0 for none.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    group.mkdir(exist_ok=True)
    if memory:
        (group / "memory.max").write_text(str(memory), encoding="ascii")
        with contextlib.suppress(OSError):  # where swap is not accounted
            (group / "memory.swap.max").write_text("0", encoding="ascii")


def join(group: Path) -> None:
    """Move this process into a group."""
    descriptor = os.open(group / "cgroup.procs", os.O_WRONLY)
    try:
        os.write(descriptor, b"0")
    finally:
        os.close(descriptor)


def members(group: Path) -> list[int]:
    """Return the processes in a group and in those below it; none where it is gone."""
    found = []
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            listed = Path(directory, "cgroup.procs").read_text(encoding="ascii")
            found += [int(line) for line in listed.split()]
    return found


def kill(group: Path) -> None:
    """End everything in a group, what is being forked at the moment too."""
    try:
        (group / "cgroup.kill").write_text("1", encoding="ascii")
    except OSError:
        for process in members(group):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)


def remove(group: Path) -> None:
    """Remove an empty group and the empty ones below it; what is not empty stays."""
    for directory, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)  # noqa: PTH106  # as os.walk names it


def out_of_memory(group: Path) -> bool:
    """Whether the kernel ended something in a group because it had no memory left."""
    try:
        events = (group / "memory.events").read_text(encoding="ascii")
    except OSError:
        return False
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", "0")) > 0
