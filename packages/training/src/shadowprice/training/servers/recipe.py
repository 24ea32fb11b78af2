"""Configuration of a training script: what to train, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shadowprice.training.errors import TrainingError, checked_integer, checked_seconds
from shadowprice.training.sampling import Order
from shadowprice.training.servers.chunks import DataSet
from shadowprice.training.servers.ordering import ChunkOrder

Loss = Callable[[Any, Mapping[str, Any]], Any]
"""Loss function: takes a model and a mini-batch (tensors by name), and returns the mean loss of its
samples.
"""


def constant(minibatch: int) -> float:
    """Return 1, the factor of a constant learning rate."""
    del minibatch
    return 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training: model, loss, optimizer and data.

    Parameters
    ----------
    model : callable
        Returns the model; called by every process, after seeding.
    loss : callable
        `Loss`.
    optimizer : callable
        Returns a `torch.optim.Optimizer` for a list of (name, parameter), which torch's optimizers
        accept. A server passes its pieces, each in one dimension, and empty parameters for those
        that it doesn't have. So the optimizer has to work element by element, as SGD and Adam do,
        and has to select groups by name.
    data : DataSet
        The data.
    epochs : int
        Number of epochs.
    minibatch : int
        Samples of a mini-batch: of one worker, or of all workers in synchronous training.
    schedule : callable, optional
        Returns the factor of the learning rate for a mini-batch, by its number in the job.
    seed : int, optional
        Seed of the order, the initial parameters and all random numbers.
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
        limits = {"epochs": (1, 10**12), "minibatch": (1, 10**12), "seed": (0, 2**63 - 1)}
        for name, (minimum, maximum) in limits.items():
            number = checked_integer(name, getattr(self, name), minimum, maximum)
            object.__setattr__(self, name, number)

    def to_record(self) -> dict[str, Any]:
        """Return the fields that a checkpoint must match, because they determine its samples."""
        digest = [[chunk.samples, chunk.digest] for chunk in self.data.chunks]
        return {"minibatch": self.minibatch, "seed": self.seed, "chunks": digest}

    def order(self) -> ChunkOrder:
        """Return the order of the data."""
        return ChunkOrder([chunk.samples for chunk in self.data.chunks], self.seed)

    def steps(self, parts: int) -> Order:
        """Return the steps of synchronous training; samples are positions in an epoch's order."""
        parts = min(parts, self.minibatch)
        return Order(self.data.samples, self.minibatch, parts, self.seed, shuffle=False)


def ignore(minibatch: int, loss: float) -> None:
    """Ignore a loss."""
    del minibatch, loss


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of workers and servers.

    Parameters
    ----------
    synchronous : bool
        Whether all workers share each mini-batch, so that the result is that of one worker.
        Otherwise every worker has its own mini-batches, and servers update with each of them.
    staleness : int or None
        Mini-batches that a worker may be ahead of the slowest worker with an assignment (stale
        synchronous parallel); None for no limit. Asynchronous only.
    parts : int
        Parts of a shared mini-batch, for any number of workers; a model sees one part at a time.
        Synchronous only.
    patience : float
        Seconds that a worker may be silent before a waiting worker gets its work. It should exceed
        the time of a mini-batch. If the worker was only slow, this is logged, and the timeout
        grows.
    join : float
        Timeout for meeting the other processes, in seconds.
    save_every : float
        Seconds between checkpoints.
    report_every : float
        Seconds between reports of progress.
    keep : int
        Number of chunks that a worker keeps in memory; 1 turns prefetching off.
    shared_memory : bool
        Whether processes of one machine exchange tensors in shared memory.
    backend : str
        ``gloo``, or ``nccl`` if all workers and servers have GPUs of their own.
    device : str
        Device of workers in torch's notation; empty for the first GPU, otherwise the CPU.
    pace : float
        Minimum time of a worker's mini-batch in seconds, including exchange; a faster worker waits
        before the commit. For experiments in which a small model represents a large one.
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
        for name in ("parts", "keep"):
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), 1, 10**6))
        for name in ("patience", "join", "save_every", "report_every"):
            object.__setattr__(self, name, checked_seconds(name, getattr(self, name)))
        object.__setattr__(self, "pace", checked_seconds("pace", self.pace, allow_zero=True))
        if self.staleness is None:
            return
        staleness = checked_integer("staleness", self.staleness, 0, 10**12)
        object.__setattr__(self, "staleness", staleness)
        if self.synchronous:
            raise TrainingError(
                "staleness: not valid in synchronous training; remove it, or set synchronous=False"
            )
