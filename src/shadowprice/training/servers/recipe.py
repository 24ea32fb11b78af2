"""What is learnt, and how: all that a script says of its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shadowprice.training.errors import TrainingError
from shadowprice.training.sampling import Order, whole_number
from shadowprice.training.servers.chunks import DataSet
from shadowprice.training.servers.ordering import ChunkOrder

Loss = Callable[[Any, Mapping[str, Any]], Any]
"""Takes a model and a mini-batch (tensors by name) and returns the mean loss of its samples."""


def constant(minibatch: int) -> float:
    """Return 1: a learning rate that does not change."""
    del minibatch
    return 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is learnt.

    Parameters
    ----------
    model : callable
        Returns the model; called by every process, after the seed was set.
    loss : callable
        `Loss`.
    optimizer : callable
        Returns a `torch.optim.Optimizer` for parameters, which it is given as (name, parameter) in
        a list, as torch's own take them. A server gives it the pieces that it has, each in one
        dimension, and empty ones for parameters of which it has none; so it has to work element by
        element, as SGD and Adam do, and groups have to go by names.
    data : DataSet
        The data.
    epochs : int
        How often all of it is gone through.
    minibatch : int
        Samples of a mini-batch: what one worker computes at a time, or, in step, all of them.
    schedule : callable, optional
        Gives the factor of the learning rate for a mini-batch, by its number in the whole job.
    seed : int, optional
        What order, first parameters and random numbers follow from.
    """

    model: Callable[[], Any]
    loss: Loss
    optimizer: Callable[[Sequence[tuple[str, Any]]], Any]
    data: DataSet
    epochs: int
    minibatch: int
    schedule: Callable[[int], float] = constant
    seed: int = 0

    def __post_init__(self) -> None:
        # numpy's numbers would do, but not in a checkpoint.
        for name in ("epochs", "minibatch", "seed"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("epochs", "minibatch"):
            if not 1 <= getattr(self, name) <= 10**12:
                raise TrainingError(f"{name} is {getattr(self, name)}: it has to be 1 or more")
        if not 0 <= self.seed < 2**63:
            raise TrainingError(f"seed is {self.seed}: it has to be 0 or more")

    def told(self) -> dict[str, Any]:
        """Return what a checkpoint says of it: with another one, the numbers mean other samples."""
        digest = [[chunk.samples, chunk.digest] for chunk in self.data.chunks]
        return {"minibatch": self.minibatch, "seed": self.seed, "chunks": digest}

    def order(self) -> ChunkOrder:
        """Return the order of its data."""
        return ChunkOrder([chunk.samples for chunk in self.data.chunks], self.seed)

    def steps(self, parts: int) -> Order:
        """Return which places of an epoch's order a step takes, and in which parts."""
        parts = min(parts, self.minibatch)
        return Order(self.data.samples, self.minibatch, parts, self.seed, shuffle=False)


def ignore(minibatch: int, loss: float) -> None:
    """Do nothing with a loss."""
    del minibatch, loss


@dataclass(frozen=True, slots=True)
class Settings:
    """How workers and servers go about it.

    Parameters
    ----------
    synchronous : bool
        Whether all workers share each mini-batch, so that the result is that of one worker; else
        every worker has its own, and servers update with each push.
    staleness : int or None
        Mini-batches that a worker may be ahead of the slowest one that has work (stale synchronous
        parallel); None for any number. Asynchronous only.
    parts : int
        Parts that a shared mini-batch is cut into, whatever the number of workers: a model sees
        one part at a time. Synchronous only.
    patience : float
        Seconds that a worker may be silent, longer than any mini-batch takes, before its work is
        given to another that waits. One that was only slow is told of, and waited for longer.
    join : float
        Seconds to wait for the other processes in the beginning.
    save_every : float
        Seconds between checkpoints.
    report_every : float
        Seconds between reports of progress.
    keep : int
        Chunks that a worker keeps in memory; of 1 none is fetched ahead of need.
    shared_memory : bool
        Whether processes of one machine exchange tensors by memory.
    backend : str
        ``gloo``, or ``nccl`` where workers and servers all have GPUs of their own.
    device : str
        What workers compute on, as torch writes it; empty for the first GPU, else the CPU.
    pace : float
        Seconds that a worker's mini-batch takes at least, exchange included: who is done sooner
        waits before it counts. For experiments in which a small model stands for a large one.
    observe : callable
        Called by the leading server with the number of each mini-batch and its loss.
    """

    synchronous: bool = False
    staleness: int | None = None
    parts: int = 8
    patience: float = 300.0
    join: float = 300.0
    save_every: float = 300.0
    report_every: float = 2.0
    keep: int = 3
    shared_memory: bool = True
    backend: str = "gloo"
    device: str = ""
    pace: float = 0.0
    observe: Callable[[int, float], None] = field(default=ignore, repr=False)

    def __post_init__(self) -> None:
        if self.staleness is not None and self.staleness < 0:
            raise TrainingError(f"staleness is {self.staleness}: it has to be 0 or more, or None")
        for name in ("patience", "join", "save_every", "report_every"):
            if not 0 < getattr(self, name) <= 10**9:
                raise TrainingError(f"{name} is {getattr(self, name)}: seconds, more than 0")
        if not 0 <= self.pace <= 10**9:
            raise TrainingError(f"pace is {self.pace}: seconds, 0 or more")
        for name in ("parts", "keep"):
            if not 1 <= getattr(self, name) <= 10**6:
                raise TrainingError(f"{name} is {getattr(self, name)}: it has to be 1 or more")
