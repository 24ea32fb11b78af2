"""What every callback does: follow a training, report it, and agree on its end."""

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
from shadowprice.training.reporting import Reporter

SAVE_EVERY: Final = 600.0
"""Seconds between two checkpoints of a job that is left alone."""


class Following:
    """Follows a training that something else leads.

    Parameters
    ----------
    save_every, report_every : float
        Seconds between two checkpoints, and between two reports.
    """

    def __init__(self, save_every: float, report_every: float) -> None:
        self._save_every = save_every
        self._reporter = Reporter(report_every)
        self._stop: jobs.StopSignal | None = None
        self._group: Any = None
        self._flags = torch.zeros(2)
        self._saved = time.monotonic()
        self.done = 0
        self.told = False

    @property
    def leads(self) -> bool:
        """Whether this is the process that reports."""
        return not dist.is_initialized() or dist.get_rank() == 0

    @property
    def directory(self) -> Path:
        """Where checkpoints belong."""
        return jobs.current().checkpoint_dir

    def begin(self, done: int) -> None:
        """Begin to follow, after everything was restored."""
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
            jobs.note_restored(done)
            say(f"step {done}, {workers()}")
        self._saved = time.monotonic()

    def step(self, done: int, metrics: Mapping[str, float]) -> bool:
        """Take in that a step was done, and report it; whether it is time to save.

        All workers agree on that, and on whether they were told to stop (`told`).
        """
        now = time.monotonic()
        self.done = done
        due = self.leads and now - self._saved >= self._save_every
        self._flags[0], self._flags[1] = float(bool(self._stop)), float(due)
        if dist.is_initialized():
            wait_for(dist.all_reduce(self._flags, group=self._group, async_op=True))
        self.told = bool(self._flags[0])
        if self.leads:
            jobs.note_step(done)
        if self.leads and (self.told or self._reporter.due):
            self._report(metrics)
        return self.told or bool(self._flags[1])

    def saved(self) -> None:
        """Note that a checkpoint is whole."""
        self._saved = time.monotonic()

    def leave(self) -> NoReturn:
        """End as a job that saved because it was told to."""
        if self.leads:
            jobs.note_saved(self.done)
            say(f"told to stop: saved after step {self.done}")
            self._reporter.flush()
        jobs.leave()

    def end(self, metrics: Mapping[str, float]) -> None:
        """Report the end of a training that was not told to stop."""
        if self.leads and self.done:
            self._report(metrics)
            self._reporter.flush()

    def _report(self, metrics: Mapping[str, float]) -> None:
        kept = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._reporter.report(self.done, kept)


def be_a_node() -> tuple[int, int]:
    """Let libraries that ask for torchrun's names find them; return rank and number of workers.

    Every worker is a node with one process.
    """
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if world != "1":
        os.environ.setdefault("LOCAL_RANK", "0")
        os.environ.setdefault("NODE_RANK", rank)
    return int(rank), int(world)


def divided(batch: int, largest: int, workers: int) -> tuple[int, int]:
    """Return samples of a worker at a time, and how many times, that make the mini-batch.

    Parameters
    ----------
    batch : int
        Samples of a mini-batch, over all workers.
    largest : int
        Most samples that a worker computes at a time.
    workers : int
        How many there are.

    Raises
    ------
    TrainingError
        If they cannot share it evenly.
    """
    if batch < 1 or largest < 1:
        raise TrainingError(f"batch is {batch} and largest {largest}: both have to be 1 or more")
    own, more = divmod(batch, workers)
    if more or not own:
        raise TrainingError(
            f"{workers} workers cannot share a mini-batch of {batch} evenly: choose one that every "
            "number of workers divides, up to the job's chunks"
        )
    times = next(one for one in range(1, own + 1) if own % one == 0 and own // one <= largest)
    return own // times, times
