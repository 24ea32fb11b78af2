"""What a change of a job's placement costs it, measured in the job itself.

A change has four stretches: the running step ends and a *checkpoint* is written; the job is *away*
until its next processes begin, which is the scheduler's time; they *start*, come together and
restore; and their *first* step takes longer than those after it.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_FILE: Final = "left.json"

STEADY: Final = 5
"""Steps after the first that say how long one takes."""


def note_leaving(directory: Path, step: int, seconds: float) -> None:
    """Write down how long it took to save, for the next generation to tell.

    Parameters
    ----------
    directory : Path
        Where checkpoints are.
    step : int
        The step after which the job left.
    seconds : float
        From being told to stop until the checkpoint was on disk.
    """
    new = directory / f".{_FILE}.{os.getpid()}"
    try:
        told = {"step": step, "checkpoint": seconds, "at": time.time()}
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
    """The change that this generation began with, as far as it was measured.

    Parameters
    ----------
    checkpoint : float or None
        Seconds to save, of the generation before; None where that did not save when it left.
    away : float or None
        Seconds from then until this process began.
    start : float
        Seconds from then until training could go on.
    """

    checkpoint: float | None
    away: float | None
    start: float
    _steps: list[float] = field(default_factory=list)

    @classmethod
    def measured(cls, directory: Path, step: int) -> Change:
        """Return what is known now that the checkpoint of a step was restored."""
        now, first = time.time(), began()
        start = max(0.0, now - first)
        try:
            left: Any = json.loads((directory / _FILE).read_bytes())
            if left["step"] == step:
                away = max(0.0, first - float(left["at"]))
                return cls(float(left["checkpoint"]), away, start)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return cls(None, None, start)

    def stepped(self, seconds: float) -> bool:
        """Note how long a step took; whether the change is fully known now."""
        if len(self._steps) <= STEADY:
            self._steps.append(seconds)
            return len(self._steps) == STEADY + 1
        return False

    @property
    def first(self) -> float | None:
        """Seconds that the first step took longer than those after it, once those are known."""
        if len(self._steps) <= STEADY:
            return None
        return max(0.0, self._steps[0] - statistics.median(self._steps[1:]))

    def metrics(self) -> dict[str, float]:
        """Return what a report says of it; empty until it is fully known."""
        if self.first is None or self.checkpoint is None or self.away is None:
            return {}
        return {
            "change_checkpoint": self.checkpoint,
            "change_away": self.away,
            "change_start": self.start,
            "change_first_step": self.first,
        }
