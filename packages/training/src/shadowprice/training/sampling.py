"""Samples of each step: a property of the job, independent of its number of workers.

Steps count from the job's very beginning. The seed and the epoch's number shuffle the samples of an
epoch. Each step takes the next `Order.batch` samples and cuts them into *parts*. A worker computes
complete parts, one after the other. So a part has the same samples, random numbers and statistics
of batch normalisation for every number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.training.errors import TrainingError, checked_integer

Samples = NDArray[np.int64]

MAX_NUMBER = 2**62  # maximum of the numbers of an order, so that sums of them fit into int64

_ORDER_STREAM, _PART_STREAM = 0, 1  # streams of random numbers; `servers` has others


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The samples that a worker computes at a time.

    ``step`` and ``number``, the part's number within it, count from 0. ``samples`` are indices in
    the data set. ``weight`` is the share of the step's mini-batch. It is 0 for a part that a worker
    computes only because it has none of its own (`Order.worker_parts`).
    """

    step: int
    number: int
    samples: Samples
    weight: float


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which a job goes through its data.

    Raise `TrainingError` if a number is out of range.

    Parameters
    ----------
    samples : int
        Samples of the data set.
    batch : int
        Samples of a mini-batch, over all workers together.
    parts : int, optional
        Parts of a mini-batch; further workers have nothing to do.
    seed : int, optional
        Seed of the order and of all random numbers.
    shuffle : bool, optional
        Whether to shuffle the samples in every epoch; otherwise they are in the data set's order.
    whole : bool, optional
        Whether to drop an incomplete last mini-batch of an epoch.
    """

    samples: int
    batch: int
    parts: int = 8
    seed: int = 0
    shuffle: bool = True
    whole: bool = False

    def __post_init__(self) -> None:
        for name, minimum in (("samples", 1), ("batch", 1), ("parts", 1), ("seed", 0)):
            number = checked_integer(name, getattr(self, name), minimum, MAX_NUMBER)
            object.__setattr__(self, name, number)
        for name in ("shuffle", "whole"):
            object.__setattr__(self, name, bool(getattr(self, name)))
        if self.parts > self.batch:
            message = f"parts: expected at most batch = {self.batch}, got {self.parts}"
            raise TrainingError(message)
        if self.whole and self.samples < self.batch:
            message = f"samples: expected at least batch = {self.batch}, got {self.samples}"
            raise TrainingError(f"{message}; lower batch, or set whole=False")

    @property
    def steps(self) -> int:
        """Number of steps in an epoch."""
        return self.samples // self.batch if self.whole else -(-self.samples // self.batch)

    def epoch(self, step: int) -> int:
        """Return the epoch of a step, from 0."""
        return step // self.steps

    def minibatch(self, step: int) -> Samples:
        """Return the sample indices of a step, in the order of training."""
        epoch, within = divmod(step, self.steps)
        order = _permutation(self.samples, self.seed, epoch) if self.shuffle else None
        first, last = within * self.batch, min((within + 1) * self.batch, self.samples)
        return np.arange(first, last, dtype=np.int64) if order is None else order[first:last]

    def split_step(self, step: int) -> tuple[Part, ...]:
        """Return the parts of a step: never empty, and at most as large as in a full mini-batch."""
        minibatch = self.minibatch(step)
        max_samples = -(-self.batch // self.parts)
        count = min(self.parts, -(-len(minibatch) // max_samples))
        pieces = np.array_split(minibatch, count)
        return tuple(
            Part(step, number, piece, len(piece) / len(minibatch))
            for number, piece in enumerate(pieces)
        )

    def worker_parts(self, step: int, rank: int, workers: int) -> tuple[Part, ...]:
        """Return the parts of a step that a worker computes.

        Neighbouring parts go to the same worker, as evenly as possible. A worker beyond the number
        of parts gets the first part with weight 0, so that it takes part in collective operations.
        """
        parts = self.split_step(step)
        even, remainder = divmod(len(parts), workers)  # the first workers share the remainder
        first = rank * even + min(rank, remainder)
        own = parts[first : first + even + (rank < remainder)]
        return own or (Part(step, 0, parts[0].samples, 0.0),)

    def part_seed(self, step: int, part: int, use: int = 0) -> int:
        """Return the seed of a part's random numbers, 64 bits.

        ``use`` is the purpose of the random numbers: 0 for the model, 1 for loading samples, 2 for
        the time between steps, 3 for the creation of the model.
        """
        sequence = np.random.SeedSequence((self.seed, _PART_STREAM, step, part, use))
        return int(sequence.generate_state(1, np.uint64)[0])

    def state(self) -> dict[str, Any]:
        """Return the fields of the order as plain values for a checkpoint."""
        return asdict(self)

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise `TrainingError` if ``saved``, the `state` in a checkpoint, is of another order."""
        for name, value in self.state().items():
            if saved.get(name) != value:
                raise TrainingError(
                    f"{name}: the checkpoint has {saved.get(name)}, the script {value}; restore "
                    f"{name}, or submit a new job"
                )


@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> Samples:
    generator = np.random.default_rng(np.random.SeedSequence((seed, _ORDER_STREAM, epoch)))
    order = generator.permutation(samples)
    order.setflags(write=False)
    return order
