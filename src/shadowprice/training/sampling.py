"""Which samples belong to which step: a property of the job, not of how many workers it has.

Steps count from the job's very beginning. The samples of an epoch are shuffled by the seed and the
epoch's number; each step takes the next `Order.batch` of them, and cuts them into *parts*. A worker
computes whole parts, one after the other, so that what one part sees (its samples, its random
numbers, the statistics of its batch normalisation) is the same however many workers there are.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadowprice.training.errors import TrainingError

Samples = NDArray[np.int64]

_MOST = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What a worker computes at a time.

    Parameters
    ----------
    step : int
        The step it belongs to, from 0 on.
    number : int
        Its number among the step's parts.
    samples : array of int64
        Its samples, by their number in the data set.
    weight : float
        Its share of the step's mini-batch; 0 where it is computed only because a worker has none
        of its own (`Order.share`).
    """

    step: int
    number: int
    samples: Samples
    weight: float


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which a job goes through its data.

    Parameters
    ----------
    samples : int
        Samples of the data set.
    batch : int
        Samples of a mini-batch: over all workers, not for each.
    parts : int, optional
        Parts of a mini-batch, which is also the most workers that have something to do.
    seed : int, optional
        What order and random numbers follow from.
    shuffle : bool, optional
        Whether every epoch has an order of its own; else that of the data set.
    whole : bool, optional
        Whether a last mini-batch of an epoch that is not full is left out.

    Raises
    ------
    TrainingError
        If a number is out of range.
    """

    samples: int
    batch: int
    parts: int = 8
    seed: int = 0
    shuffle: bool = True
    whole: bool = False

    def __post_init__(self) -> None:
        # numpy's numbers would do, but not in a checkpoint.
        for name in ("samples", "batch", "parts", "seed"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("shuffle", "whole"):
            object.__setattr__(self, name, bool(getattr(self, name)))
        for name in ("samples", "batch", "parts"):
            if not 1 <= getattr(self, name) <= _MOST:
                raise TrainingError(f"{name} is {getattr(self, name)}: it has to be 1 or more")
        if not 0 <= self.seed <= _MOST:
            raise TrainingError(f"seed is {self.seed}: it has to be 0 or more")
        if self.parts > self.batch:
            raise TrainingError(
                f"a mini-batch of {self.batch} samples has no {self.parts} parts; lower parts"
            )
        if self.whole and self.samples < self.batch:
            raise TrainingError(
                f"{self.samples} samples make no whole mini-batch of {self.batch}; lower batch"
            )

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.samples // self.batch if self.whole else -(-self.samples // self.batch)

    def epoch(self, step: int) -> int:
        """Return the epoch of a step, from 0 on."""
        return step // self.steps

    def minibatch(self, step: int) -> Samples:
        """Return the samples of a step, in their order."""
        epoch, within = divmod(step, self.steps)
        order = _permutation(self.samples, self.seed, epoch) if self.shuffle else None
        first, last = within * self.batch, min((within + 1) * self.batch, self.samples)
        return np.arange(first, last, dtype=np.int64) if order is None else order[first:last]

    def divided(self, step: int) -> tuple[Part, ...]:
        """Return the parts of a step: no larger than those of a full mini-batch, never empty."""
        minibatch = self.minibatch(step)
        largest = -(-self.batch // self.parts)
        count = min(self.parts, -(-len(minibatch) // largest))
        pieces = np.array_split(minibatch, count)
        return tuple(
            Part(step, number, piece, len(piece) / len(minibatch))
            for number, piece in enumerate(pieces)
        )

    def share(self, step: int, rank: int, workers: int) -> tuple[Part, ...]:
        """Return the parts of a step that fall to a worker.

        Neighbouring parts go to the same worker, as evenly as can be. A worker beyond the number of
        parts gets the first one with weight 0, so that it takes part in what all do together.

        Parameters
        ----------
        step : int
            The step.
        rank, workers : int
            The worker's number, and how many there are.
        """
        parts = self.divided(step)
        even, more = divmod(len(parts), workers)
        first = rank * even + min(rank, more)
        own = parts[first : first + even + (rank < more)]
        return own or (Part(step, 0, parts[0].samples, 0.0),)

    def key(self, step: int, part: int, use: int = 0) -> int:
        """Return the seed of a part's random numbers, 64 bits.

        Parameters
        ----------
        step, part : int
            Which part.
        use : int, optional
            What for: 0 for the model, 1 for loading its samples.
        """
        drawn = np.random.SeedSequence((self.seed, 1, step, part, use)).generate_state(1, np.uint64)
        return int(drawn[0])

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint says of it."""
        return asdict(self)

    def check(self, found: Mapping[str, Any]) -> None:
        """Check that a checkpoint was made in the same order.

        Raises
        ------
        TrainingError
            If it was not, naming what differs.
        """
        for name, value in self.state().items():
            if found.get(name) != value:
                raise TrainingError(
                    f"the checkpoint was made with {name} {found.get(name)}, this script says "
                    f"{value}: steps would mean other samples; keep it, or begin a new job"
                )


def whole_number(name: str, value: Any) -> int:
    """Return a whole number as Python's own.

    Raises
    ------
    TrainingError
        If it is none.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        raise TrainingError(f"{name} is {value!r}: it has to be a whole number") from error


@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> Samples:
    draw = np.random.default_rng(np.random.SeedSequence((seed, 0, epoch)))
    order = draw.permutation(samples)
    order.setflags(write=False)
    return order
