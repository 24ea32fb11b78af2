"""Control groups (version 2) of a generation's processes, if this user may create them.

A control group contains all descendants of its processes, even if they fork repeatedly or change
their environment, and one write kills them all. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def find_or_create(name: str, chosen: str = "") -> Path | None:
    """Return group ``name`` in ``chosen`` or this process's group; None if that is impossible."""
    try:
        parent = Path(chosen) if chosen else _own_cgroup()
        if parent is None:
            return None
        group = parent / name
        group.mkdir(exist_ok=True)
    except OSError:
        return None
    return group if (group / "cgroup.kill").exists() else None  # since Linux 5.14


def _own_cgroup() -> Path | None:
    own = None
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        hierarchy, _, path = line.split(":", 2)
        if hierarchy == "0":  # version 2
            own = path
    if own is None:
        return None
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2":
            return Path(before.split()[4]) / own.lstrip("/")  # field 4 is the mount point
    return None


def enable_memory_controller(group: Path) -> bool:
    """Enable memory limits for the children of a group; return whether that succeeded."""
    try:
        if "memory" not in (group / "cgroup.controllers").read_text(encoding="ascii").split():
            return False
        (group / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
    except OSError:
        return False
    return True


def make(group: Path, memory: int = 0) -> None:
    """Create a group with a memory limit in bytes, 0 for none."""
    group.mkdir(exist_ok=True)
    if memory:
        (group / "memory.max").write_text(str(memory), encoding="ascii")
        with contextlib.suppress(OSError):  # swap accounting may be off
            (group / "memory.swap.max").write_text("0", encoding="ascii")


def join(group: Path) -> None:
    """Move this process into a group."""
    descriptor = os.open(group / "cgroup.procs", os.O_WRONLY)
    try:
        os.write(descriptor, b"0")  # the kernel takes 0 as the writing process
    finally:
        os.close(descriptor)


def list_processes(group: Path) -> list[int]:
    """Return the processes in a group and its descendants; empty if the group doesn't exist."""
    processes = []
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            listed = Path(directory, "cgroup.procs").read_text(encoding="ascii")
            processes += [int(line) for line in listed.split()]
    return processes


def kill(group: Path) -> None:
    """Kill every process in a group, including processes that are being forked."""
    try:
        (group / "cgroup.kill").write_text("1", encoding="ascii")
    except OSError:
        for process in list_processes(group):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)


def remove(group: Path) -> None:
    """Remove a group and its descendants if they are empty."""
    for directory, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)  # noqa: PTH106  # as os.walk names it


def was_oom_killed(group: Path) -> bool:
    """Return whether the kernel's OOM killer killed a process of the group."""
    try:
        events = (group / "memory.events").read_text(encoding="ascii")
    except OSError:
        return False
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", "0")) > 0
