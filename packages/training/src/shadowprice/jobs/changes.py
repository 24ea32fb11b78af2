"""Cost of a change of a job's placement, measured in the job itself.

A change has four phases. In *checkpoint* the running step ends and a checkpoint is written. The
job is *away* until its next processes begin, which is the scheduler's time. In *start* these
processes start and restore. The *first* steps then take longer than later ones.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shadowprice.jobs.files import replace_file

_FILE: Final = "left.json"

STEADY_INTERVALS: Final = 5
"""Intervals between reports after the first one; their median is the usual step time."""


def record_leaving(directory: Path, generation: int, step: int, seconds: float) -> None:
    """Write the seconds from SIGTERM to the checkpoint after ``step`` for the next generation."""
    record = {"generation": generation, "step": step, "checkpoint": seconds, "at": time.time()}
    with suppress(OSError):  # only a measurement is lost
        replace_file(directory / _FILE, json.dumps(record).encode(), durable=False)


def process_start_time() -> float:
    """Return when this process began, in seconds since 1970."""
    try:
        # After the name in parentheses, the 20th field is the start in clock ticks since boot.
        stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        since_boot = int(stat[19]) / os.sysconf("SC_CLK_TCK")
        # The boot time in /proc/stat has whole seconds only.
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError):
        return time.time()


@dataclass
class Change:
    """Measurement of the change that began a generation.

    ``checkpoint`` is how many seconds the previous generation took to save when it ended; None if
    it didn't save. Then ``away`` seconds passed until this process began, and ``start`` seconds
    more until training could continue, from ``step``.
    """

    checkpoint: float | None
    away: float | None
    start: float
    step: float
    _reached: list[tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._reached = [(self.step, time.monotonic())]

    @classmethod
    def measured(cls, directory: Path, generation: int, step: int) -> Change:
        """Build the measurement when a generation can continue from a step."""
        now, began = time.time(), process_start_time()
        start = max(0.0, now - began)
        try:
            record: Any = json.loads((directory / _FILE).read_bytes())
            # A file of an older generation isn't about this change: the last generation was
            # stopped before it had restored anything, or died.
            if (record["generation"], record["step"]) == (generation - 1, step):
                away = max(0.0, began - float(record["at"]))
                return cls(float(record["checkpoint"]), away, start, step)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return cls(None, None, start, step)

    def reached(self, step: float) -> None:
        """Record that a number of steps is done now. Ignore a number that did not grow."""
        if not self._is_measured and step > self._reached[-1][0]:
            self._reached.append((step, time.monotonic()))

    @property
    def _is_measured(self) -> bool:
        """Whether all reports are recorded: the ends of the first and the steady intervals."""
        return len(self._reached) == STEADY_INTERVALS + 2

    @property
    def first(self) -> float | None:
        """Seconds of the first interval beyond the usual time of its steps; None until known."""
        if not self._is_measured:
            return None
        pairs = zip(self._reached[:-1], self._reached[1:], strict=True)
        (first_steps, first_seconds), *steady = [(b[0] - a[0], b[1] - a[1]) for a, b in pairs]
        step_times = sorted(seconds / steps for steps, seconds in steady)
        return max(0.0, first_seconds - first_steps * step_times[STEADY_INTERVALS // 2])

    def metrics(self) -> dict[str, float]:
        """Return the metrics to report; empty until all four phases are known."""
        if self.checkpoint is None or self.away is None:
            return {}
        first = self.first
        if first is None:
            return {}
        return {
            "change_checkpoint": self.checkpoint,
            "change_away": self.away,
            "change_start": self.start,
            "change_first_step": first,
        }
