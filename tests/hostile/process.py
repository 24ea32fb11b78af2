"""Memory, processor time and state of a process from /proc; 0 if unknown."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def resident(name: str, process: int | str = "self") -> int:
    """Return a value of /proc/PROCESS/status in bytes."""
    status = Path(f"/proc/{process}/status")
    with contextlib.suppress(OSError), status.open(encoding="ascii") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
    return 0


def _stat_fields(process: int) -> list[str]:
    """Return the fields of /proc/PROCESS/stat after the name; empty if the process is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def cpu_seconds(process: int) -> float:
    """Return the processor time that a process has used so far."""
    fields = _stat_fields(process)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def is_runnable(process: int) -> bool:
    """Whether a process runs, or waits for a processor or the disk, so that it doesn't hang by
    itself.
    """
    return _stat_fields(process)[:1] in (["R"], ["D"])
