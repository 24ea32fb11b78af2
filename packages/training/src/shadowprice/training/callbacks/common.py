"""Common parts of all callbacks: follow a training, and seal checkpoints that are complete."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist

from shadowprice import jobs
from shadowprice.jobs.files import replace_file
from shadowprice.training.errors import TrainingError
from shadowprice.training.generation import hold, say, wait_for, workers_text
from shadowprice.training.reporting import ProgressReporter

SAVE_EVERY: Final = 600.0  # seconds between two checkpoints of a job that isn't interrupted

_MIN_AGE_SECONDS: Final = 2.0  # of a file whose fingerprint is cached: no change keeps its times
_complete: Final[dict[Path, object]] = {}  # fingerprint of each complete checkpoint, read once
_sealed_here: Final[set[Path]] = set()  # checkpoints that this process sealed, and needn't read


class TrainingMonitor:
    """Follow a training that another library leads; periods are in seconds."""

    def __init__(self, save_every: float, report_every: float) -> None:
        self._save_every = save_every
        self._reporter = ProgressReporter(report_every)
        self._stop: jobs.StopSignal | None = None
        self._group: Any = None
        self._flags = torch.zeros(2)  # on which workers agree: SIGTERM received, save due
        self._saved = time.monotonic()
        self.done = 0
        self.sigterm_received = False

    @property
    def leads(self) -> bool:
        """Whether this process reports."""
        return not dist.is_initialized() or dist.get_rank() == 0

    def begin(self, done: int) -> None:
        """Begin to follow at a step, after the restore; all workers must call it."""
        self.done = done
        if dist.is_initialized():
            if dist.get_backend() != "gloo":
                self._group = dist.new_group(backend="gloo")
                hold(self._group)
            hold(dist.group.WORLD)
            hold(self._flags)
        self._stop = jobs.StopSignal()
        if dist.is_initialized():
            dist.barrier(group=self._group)
        if self.leads:
            jobs.record_restored(done)
            say(f"step {done}, {workers_text()}")
        self._saved = time.monotonic()

    def step(self, done: int, metrics: Mapping[str, float]) -> bool:
        """Record and report a finished step; return whether all workers save now."""
        now = time.monotonic()
        self.done = done
        due = self.leads and now - self._saved >= self._save_every
        self._flags[0], self._flags[1] = float(bool(self._stop)), float(due)
        if dist.is_initialized():
            wait_for(dist.all_reduce(self._flags, group=self._group, async_op=True))
        self.sigterm_received = bool(self._flags[0])
        if self.leads:
            jobs.record_step(done)
        if self.leads and (self.sigterm_received or self._reporter.due):
            self._report(metrics)
        return self.sigterm_received or bool(self._flags[1])

    def saved(self) -> None:
        """Record that a complete checkpoint is on disk."""
        self._saved = time.monotonic()

    def leave(self) -> NoReturn:
        """Exit with the status of a job that saved a checkpoint because of SIGTERM."""
        if self.leads:
            jobs.record_saved(self.done)
            say(f"stopping: saved after step {self.done}")
            self._reporter.flush()
        jobs.leave()

    def end(self, metrics: Mapping[str, float]) -> None:
        """Send the last report of a completed training."""
        if self.leads and self.done:
            self._report(metrics)
            self._reporter.flush()

    def _report(self, metrics: Mapping[str, float]) -> None:
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._reporter.report(self.done, finite)


def set_torchrun_variables() -> tuple[int, int]:
    """Set the variables of torchrun that libraries read; return rank and number of workers."""
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if world != "1":  # a single process needs no process group
        os.environ.setdefault("LOCAL_RANK", "0")
        os.environ.setdefault("NODE_RANK", rank)
    return int(rank), int(world)


def split_batch(batch: int, largest: int, workers: int) -> tuple[int, int]:
    """Return how many samples a worker computes at a time, and how many times per step.

    ``largest`` is the maximum number at a time.
    """
    if batch < 1 or largest < 1:
        raise TrainingError(f"batch, largest: expected 1 or more, got {batch} and {largest}")
    own, remainder = divmod(batch, workers)
    if remainder or not own:
        raise TrainingError(
            f"{workers} workers can't share a mini-batch of {batch} evenly; choose one that every "
            "number of workers divides, up to the job's maximum"
        )
    times = next(n for n in range(1, own + 1) if own % n == 0 and own // n <= largest)
    return own // times, times


def seal(path: Path) -> None:
    """Flush a checkpoint (a file, or a folder of files) to the disk, and mark it as complete."""
    replace_file(_seal_of(path), json.dumps(_digests(path, sync=True)).encode(), durable=True)
    _sealed_here.add(path)


def _is_complete(path: Path) -> bool:
    """Return whether a checkpoint is sealed and unchanged; raise OSError if it can't be read."""
    try:
        fingerprint, changed = _fingerprint(path)
        if _complete.get(path) == fingerprint:
            return True
        if json.loads(_seal_of(path).read_bytes()) != _digests(path, sync=False):
            return False
    except (FileNotFoundError, ValueError):
        return False
    if time.time() - changed > _MIN_AGE_SECONDS:
        _complete[path] = fingerprint
    return True


def numbered(folder: Path, prefix: str, suffix: str = "") -> Iterator[tuple[int, Path]]:
    """Yield number and path of each name ``prefix<number>suffix``, greatest number first."""
    pattern = re.compile(re.escape(prefix) + r"(\d{1,15})" + re.escape(suffix))
    matches = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            match = pattern.fullmatch(path.name)
            if match:
                matches.append((int(match[1]), path))
    yield from sorted(matches, reverse=True)


def latest_complete(folder: Path, prefix: str, suffix: str = "") -> tuple[int, Path] | None:
    """Return number and path of the newest complete checkpoint, None without any."""
    for number, path in numbered(folder, prefix, suffix):
        with contextlib.suppress(OSError):
            if _is_complete(path):
                return number, path
        say(f"ignoring {path.name}: its seal is missing or doesn't match")
    return None


def prune(folder: Path, saved: int, kept: int, prefix: str, suffix: str = "") -> None:
    """Remove all but the newest ``kept`` complete checkpoints with numbers up to ``saved``.

    Greater numbers are removed because the training didn't continue from them.
    """
    complete = 0
    for number, path in list(numbered(folder, prefix, suffix)):
        stays = number <= saved and complete < kept and (path in _sealed_here or _is_complete(path))
        complete += stays
        if not stays:
            remove_checkpoint(path)


def remove_incomplete(folder: Path, restored: int, prefix: str, suffix: str = "") -> None:
    """Remove incomplete checkpoints above the restored one, because libraries count them."""
    for number, path in list(numbered(folder, prefix, suffix)):
        if number > restored and not _is_complete(path):
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, its seal first."""
    unseal(path)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def unseal(path: Path) -> None:
    """Remove the seal of a checkpoint that is removed."""
    _sealed_here.discard(path)
    _complete.pop(path, None)
    _seal_of(path).unlink(missing_ok=True)


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(entry for entry in path.rglob("*") if entry.is_file())


def _fingerprint(path: Path) -> tuple[object, float]:
    """Return a value that changes with the files of a checkpoint, and the last modification."""
    stats = [(file, file.stat()) for file in [_seal_of(path), *_files(path)]]
    fingerprint = [(file, stat.st_ino, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
    return fingerprint, max(stat.st_mtime for _, stat in stats)


def _digests(path: Path, *, sync: bool) -> dict[str, list[object]]:
    """Return size and SHA-256 of every file of a checkpoint; ``sync`` flushes them."""
    digests: dict[str, list[object]] = {}
    for file in _files(path):
        with file.open("rb") as stream:
            if sync:
                os.fsync(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        name = file.relative_to(path).as_posix() if file != path else ""
        digests[name] = [file.stat().st_size, digest]
    return digests
