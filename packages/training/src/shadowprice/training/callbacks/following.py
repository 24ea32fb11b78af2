"""Common part of all callbacks: follow a training, report it, and agree on its end."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist

from shadowprice import jobs
from shadowprice.training.errors import TrainingError
from shadowprice.training.generation import hold, say, wait_for, workers
from shadowprice.training.reporting import ProgressReporter

SAVE_EVERY: Final = 600.0  # seconds between two checkpoints of a job that isn't interrupted


class TrainingMonitor:
    """Follow a training that another library leads; periods are in seconds."""

    def __init__(self, save_every: float, report_every: float) -> None:
        self._save_every = save_every
        self._reporter = ProgressReporter(report_every)
        self._stop: jobs.StopSignal | None = None
        self._group: Any = None
        self._flags = torch.zeros(2)
        self._saved = time.monotonic()
        self.done = 0
        self.sigterm_received = False

    @property
    def leads(self) -> bool:
        """Whether this process reports."""
        return not dist.is_initialized() or dist.get_rank() == 0

    @property
    def directory(self) -> Path:
        """Directory of the checkpoints."""
        return jobs.current().checkpoint_dir

    def begin(self, done: int) -> None:
        """Begin to follow at a step, once everything is restored."""
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
            say(f"step {done}, {workers()}")
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
        """Report the end of a training that ran to its end."""
        if self.leads and self.done:
            self._report(metrics)
            self._reporter.flush()

    def _report(self, metrics: Mapping[str, float]) -> None:
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._reporter.report(self.done, finite)


def set_torchrun_variables() -> tuple[int, int]:
    """Set the variables of torchrun that libraries read; return rank and number of workers."""
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if world != "1":
        os.environ.setdefault("LOCAL_RANK", "0")
        os.environ.setdefault("NODE_RANK", rank)
    return int(rank), int(world)


def split_batch(batch: int, largest: int, workers: int) -> tuple[int, int]:
    """Return the samples that a worker computes at a time, up to ``largest``, and times a step."""
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
