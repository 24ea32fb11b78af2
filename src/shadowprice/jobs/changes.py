"""What a change of a job's placement costs it, measured in the job itself.

A change has four stretches: the running step ends and a *checkpoint* is written; the job is *away*
until its next processes begin, which is the scheduler's time; they *start* and restore; and their
*first* steps take longer than those after them.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_FILE: Final = "left.json"

STEADY: Final = 5
"""Stretches after the first that say how long a step takes; an odd number."""


def note_leaving(directory: Path, generation: int, step: int, seconds: float) -> None:
    """Write down how long it took to save, for the next generation to tell.

    Parameters
    ----------
    directory : Path
        Where checkpoints are.
    generation : int
        The generation that leaves.
    step : int
        The step after which it does.
    seconds : float
        From being told to stop until the checkpoint was on disk.
    """
    new = directory / f".{_FILE}.{os.getpid()}"
    told = {"generation": generation, "step": step, "checkpoint": seconds, "at": time.time()}
    try:
        new.write_text(json.dumps(told), encoding="ascii")
        new.replace(directory / _FILE)
    except OSError:
        new.unlink(missing_ok=True)  # a figure less, no more


def began() -> float:
    """Return when this process began, seconds since 1970."""
    try:
        stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        boot = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
        return boot + int(stat[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, ValueError, IndexError):
        return time.time()


@dataclass
class Change:
    """The change that a generation began with, as far as it was measured.

    Parameters
    ----------
    checkpoint : float or None
        Seconds to save, of the generation before; None where that did not save when it left.
    away : float or None
        Seconds from then until this process began.
    start : float
        Seconds from then until training could go on.
    step : float
        The step from which it goes on.
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
        """Return what is known now that a generation can go on from a step."""
        now, first = time.time(), began()
        start = max(0.0, now - first)
        try:
            left: Any = json.loads((directory / _FILE).read_bytes())
            # What one before the last left says nothing of this change: the last was told to stop
            # before it had restored anything, or died.
            if (left["generation"], left["step"]) == (generation - 1, step):
                away = max(0.0, first - float(left["at"]))
                return cls(float(left["checkpoint"]), away, start, step)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return cls(None, None, start, step)

    def reached(self, step: float) -> None:
        """Note that so many steps are done now; what is no more than before says nothing."""
        if len(self._reached) <= STEADY + 1 and step > self._reached[-1][0]:
            self._reached.append((step, time.monotonic()))

    @property
    def first(self) -> float | None:
        """Seconds that the first stretch took longer than those after it, once those are known."""
        if len(self._reached) <= STEADY + 1:
            return None
        pairs = zip(self._reached[:-1], self._reached[1:], strict=True)
        (steps, seconds), *rest = [(b[0] - a[0], b[1] - a[1]) for a, b in pairs]
        typical = sorted(took / by for by, took in rest)[STEADY // 2]
        return max(0.0, seconds - steps * typical)

    def metrics(self) -> dict[str, float]:
        """Return what a report says of it; empty until it is fully known."""
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
