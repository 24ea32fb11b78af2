"""A callback for Lightning's Trainer.

.. code-block:: python

    from lightning.pytorch import Trainer

    from shadowprice import training
    from shadowprice.training.callbacks.lightning import (
        Elastic, arguments, latest_checkpoint, loader,
    )

    order = training.Order(len(data), batch=64, whole=True)
    trainer = Trainer(max_epochs=3, callbacks=[Elastic()], **arguments())
    trainer.fit(model, loader(data, order), ckpt_path=latest_checkpoint())
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch.utils.data import DataLoader, Sampler

from shadowprice import jobs
from shadowprice.training.callbacks.common import (
    SAVE_EVERY,
    TrainingMonitor,
    latest_complete,
    prune,
    seal,
    set_torchrun_variables,
    split_batch,
)
from shadowprice.training.errors import TrainingError
from shadowprice.training.randomness import ignore_sigterm
from shadowprice.training.sampling import Order

_PREFIX, _SUFFIX, _KEPT = "lightning-", ".ckpt", 2


def arguments() -> dict[str, Any]:
    """Return the arguments of Lightning's `Trainer` that depend on this generation's workers."""
    _, workers = set_torchrun_variables()
    return {
        "num_nodes": workers,
        "devices": 1,
        "strategy": "ddp" if workers > 1 else "auto",
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
    }


def latest_checkpoint(folder: str | Path | None = None) -> str | None:
    """Return the newest valid checkpoint in ``folder``, by default the job's; None without any."""
    checkpoint = _find_checkpoint(folder)
    return None if checkpoint is None else str(checkpoint[1])


def _find_checkpoint(folder: str | Path | None) -> tuple[int, Path] | None:
    return latest_complete(Path(folder or jobs.current().checkpoint_dir), _PREFIX, _SUFFIX)


class _Steps(Sampler[list[int]]):
    """A sampler of a worker's batches. Each pass is an epoch, the first one its rest.

    ``first`` is the first step, and ``size`` the worker's samples per step.
    """

    def __init__(self, order: Order, first: int, rank: int, size: int) -> None:
        self._order, self._first, self._rank, self._size = order, first, rank, size

    def __len__(self) -> int:
        return self._order.steps

    def __iter__(self) -> Iterator[list[int]]:
        first, steps = self._first, self._order.steps
        last = (first // steps + 1) * steps
        self._first = last
        for step in range(first, last):
            samples = self._order.minibatch(step)
            yield samples[self._rank * self._size : (self._rank + 1) * self._size].tolist()


def loader(data: Any, order: Order, folder: str | Path | None = None, **options: Any) -> Any:
    """Return a loader of this worker's share of mini-batches, from the newest checkpoint on.

    ``data`` is a map-style data set: ``__len__`` and ``__getitem__``. Every number of workers has
    to divide the mini-batch of ``order``, or `TrainingError` is raised. ``folder`` has the
    checkpoints; by default the job's own. ``options`` go to `DataLoader`: ``num_workers``,
    ``collate_fn``.
    """
    rank, workers = set_torchrun_variables()
    size, _ = split_batch(order.batch, order.batch, workers)
    checkpoint = _find_checkpoint(folder)
    steps = _Steps(order, 0 if checkpoint is None else checkpoint[0], rank, size)
    return DataLoader(data, batch_sampler=steps, worker_init_fn=ignore_sigterm, **options)


class Elastic(pl.Callback):
    """Reports and saves at intervals in seconds, and saves and exits on SIGTERM."""

    def __init__(self, *, save_every: float = SAVE_EVERY, report_every: float = 2.0) -> None:
        self._monitor = TrainingMonitor(save_every, report_every)
        self._batches = 0  # finished batches: `global_step` counts the steps of every optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the callback for a checkpoint."""
        return {"batches": self._batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the callback."""
        self._batches = state_dict["batches"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to follow the training. Before, Lightning handles SIGTERM.

        Raises `TrainingError` if ``accumulate_grad_batches`` isn't 1 or ``limit_train_batches``
        shortens an epoch, because `loader` could not resume it.
        """
        del pl_module
        if trainer.accumulate_grad_batches != 1:
            message = "accumulate_grad_batches must be 1, because every batch is a step"
            raise TrainingError(message)
        steps = getattr(trainer.train_dataloader, "batch_sampler", None)
        is_shortened = isinstance(steps, _Steps) and trainer.num_training_batches < len(steps)
        if is_shortened and not trainer.fast_dev_run:
            raise TrainingError(
                "limit_train_batches must be 1.0, because loader yields whole epochs"
            )
        # A checkpoint of other code has no batch count; with one optimizer `global_step` equals it.
        self._batches = self._batches or trainer.global_step
        # In a resumed epoch Lightning would skip the update of ReduceLROnPlateau, although the
        # validation at the epoch's end is complete.
        trainer.fit_loop._restarting = False
        self._monitor.begin(self._batches)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Agree on whether to continue; save and exit if necessary."""
        del pl_module, outputs, batch, batch_idx
        self._batches += 1
        if self._monitor.step(self._batches, _metrics(trainer)):
            self._save(trainer)
        if self._monitor.sigterm_received:
            self._monitor.leave()

    def _save(self, trainer: Any) -> None:
        folder = jobs.current().checkpoint_dir
        path = folder / f"{_PREFIX}{self._batches}{_SUFFIX}"
        trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            seal(path)
            prune(folder, self._batches, _KEPT, _PREFIX, _SUFFIX)
        self._monitor.saved()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the end of the training."""
        del pl_module
        self._monitor.end(_metrics(trainer))


def _metrics(trainer: Any) -> dict[str, float]:
    return {name: float(value) for name, value in trainer.callback_metrics.items()}
