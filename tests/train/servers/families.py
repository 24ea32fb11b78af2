"""Runs of the families' example in real processes, at a fixed size or resized."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from shadowprice.jobs import STOPPED
from tests.train.forking import preload
from tests.train.servers import generations

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "training" / "families.py"
FAMILIES = ("alexnet", "vgg11", "inception-bn", "resnet50", "resnet101", "resnet152")
EPOCHS = 16
STEPS = 20
"""Mini-batches of an epoch."""

FIXED = ((1, 1),)
RESIZED = ((1, 1), (2, 2), (1, 2))
WIDE = ((1, 1), (4, 2), (3, 1))
"""Workers and servers of each generation; each does an equal part of the work."""

WAYS = {
    "fixed": (FIXED, ()),
    "resized": (RESIZED, ()),
    "to four workers": (WIDE, ()),
    "fixed, in step": (FIXED, ("--in-step",)),
    "resized, in step": (RESIZED, ("--in-step",)),
}

# The process that others are forked from loads the models once.
_example = runpy.run_path(str(EXAMPLE))
_example["models"]()
preload(__name__)


def learn(words: Sequence[str]) -> None:
    """Run as one process of a job."""
    sys.argv = [str(EXAMPLE), *words]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def run(
    folder: Path, family: str, way: str, seed: int, epochs: int = EPOCHS, divide: int = 8
) -> tuple[list[float], float]:
    """Train through generations.

    Parameters
    ----------
    folder : Path
        A new folder for the job.
    family, way : str
        One of `FAMILIES`, and of `WAYS`.
    seed, epochs, divide : int
        Options of the example.

    Returns
    -------
    list of float, float
        The loss of every mini-batch, and the share of new images that are classified correctly.
    """
    folder.mkdir(parents=True)
    plans, more = WAYS[way]
    losses = folder / "losses"
    words = ["--family", family, "--divide", str(divide), "--epochs", str(epochs)]
    words += ["--seed", str(seed), "--data", str(folder / "images"), "--losses", str(losses), *more]
    for number, (workers, ps) in enumerate(plans, start=1):
        begun = generations.Generation(folder, learn, workers, ps, number, words=words)
        if number == len(plans):
            assert set(begun.ended().values()) == {0}, begun.said()
            break
        until = epochs * STEPS * number / len(plans)
        begun.until(lambda until=until: _counted(losses) >= until)
        begun.until(
            lambda begun=begun: all(_listens(process) for process in begun.processes.values())
        )
        ended = set(begun.stop().values())
        assert ended == {STOPPED}, f"not resized: it was over, or failed: {ended} {begun.said()}"
    curve = dict(json.loads(line) for line in losses.read_text().splitlines())
    said = re.search(r"(\d+)% of \d+ new images right", (folder / "worker-0.log").read_text())
    assert said, begun.said()
    return [curve[number] for number in sorted(curve)], int(said[1]) / 100


class Runs:
    """Runs that are stored, so that interrupted tests continue with them.

    Parameters
    ----------
    file : Path or None
        Their file; runs of other sources, or of another torch, are repeated.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._of = _digest()
        self._made: dict[str, tuple[list[float], float]] = {}
        if file is not None and file.exists():
            kept = json.loads(file.read_text())
            self._made = kept["runs"] if kept["of"] == self._of else {}

    def of(
        self, family: str, way: str, seed: int, epochs: int = EPOCHS
    ) -> tuple[list[float], float]:
        """Return what `run` does."""
        key = f"{family} | {way} | {seed} | {epochs}"
        if key not in self._made:
            with tempfile.TemporaryDirectory() as name:
                self._made[key] = run(Path(name) / "job", family, way, seed, epochs)
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                part = self._file.with_suffix(".part")
                part.write_text(json.dumps({"of": self._of, "runs": self._made}))
                part.rename(self._file)
        return self._made[key]


def _digest() -> str:
    """Return what runs depend on: torch, the example, the runtime and this module."""
    package = ROOT / "src" / "shadowprice"
    files = [EXAMPLE, Path(__file__), Path(__file__).with_name("generations.py")]
    files += [*(package / "jobs").rglob("*.py"), *(package / "training").rglob("*.py")]
    digest = hashlib.sha256(torch.__version__.encode())
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _counted(losses: Path) -> int:
    """Return the number of mini-batches that count, from the written losses."""
    return losses.read_text().count("\n") if losses.exists() else 0


def _listens(process: generations.Process) -> bool:
    """Whether a process handles SIGTERM: one that is starting would end without saving."""
    result = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return bool(result and int(result[1], 16) >> (signal.SIGTERM - 1) & 1)
