"""What the kernel tells of a process; 0 where there is none to tell."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def resident(name: str, process: int | str = "self") -> int:
    """Return a figure of /proc/PROCESS/status in bytes."""
    status = Path(f"/proc/{process}/status")
    with contextlib.suppress(OSError), status.open(encoding="ascii") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
    return 0


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process has used so far."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
