"""A callback for the Trainer of Hugging Face's transformers.

.. code-block:: python

    from shadowprice.training.callbacks.huggingface import Elastic, arguments, latest_checkpoint

    args = TrainingArguments(num_train_epochs=3, **arguments(batch=64, largest=16))
    trainer = Trainer(model, args, train_dataset=data, callbacks=[Elastic()])
    trainer.train(resume_from_checkpoint=latest_checkpoint())
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback

from shadowprice import jobs
from shadowprice.training.callbacks.common import (
    SAVE_EVERY,
    TrainingMonitor,
    latest_complete,
    numbered,
    remove_incomplete,
    seal,
    set_torchrun_variables,
    split_batch,
    unseal,
)
from shadowprice.training.errors import TrainingError
from shadowprice.training.generation import say


def arguments(batch: int, largest: int) -> dict[str, Any]:
    """Return the `TrainingArguments` that depend on the workers of this generation.

    The mini-batch is the same for every number of workers, and so is the order of the data, which
    transformers draws from ``seed``. The size of the data set has to be a multiple of the
    mini-batch, because transformers treats remaining samples differently for each number of
    workers. `Elastic` checks this.

    ``batch`` is over all workers. `TrainingError` is raised if the number of workers doesn't divide
    it. A worker computes at most ``largest`` samples at a time.
    """
    _, workers = set_torchrun_variables()
    size, times = split_batch(batch, largest, workers)
    return {
        "output_dir": str(jobs.current().checkpoint_dir),
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": times,
        "save_total_limit": 2,
    }


def latest_checkpoint(folder: str | Path | None = None) -> str | None:
    """Return the newest valid checkpoint in ``folder``, by default the job's; None without any."""
    checkpoint = latest_complete(Path(folder or jobs.current().checkpoint_dir), "checkpoint-")
    return None if checkpoint is None else str(checkpoint[1])


class Elastic(TrainerCallback):
    """Reports the Trainer's progress, seals its checkpoints, and saves and exits on SIGTERM.

    It saves every ``save_every`` seconds beside the Trainer's own checkpoints, and reports every
    ``report_every`` seconds.
    """

    def __init__(self, *, save_every: float = SAVE_EVERY, report_every: float = 2.0) -> None:
        self._monitor = TrainingMonitor(save_every, report_every)
        self._metrics: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin to follow the training; raise `TrainingError` if the data don't fit `arguments`."""
        del control
        own = args.per_device_train_batch_size * args.gradient_accumulation_steps
        data, batch = more["train_dataloader"].dataset, own * args.world_size
        if not hasattr(data, "__len__"):
            raise TrainingError(
                "the data set has no length; pass a map-style data set (__len__ and __getitem__)"
            )
        samples = len(data)
        if samples % batch:
            raise TrainingError(
                f"the data set has {samples} samples; expected a multiple of the mini-batch of "
                f"{batch}; remove {samples % batch} of them"
            )
        if self._monitor.leads:
            remove_incomplete(Path(args.output_dir), state.global_step, "checkpoint-")
        self._monitor.begin(state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any
    ) -> None:
        """Keep numeric metrics for the next report."""
        del args, state, control
        numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        self._metrics |= {name: float(value) for name, value in numbers.items()}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Agree on whether to continue. After SIGTERM, save and skip the evaluation."""
        del args
        if self._monitor.step(state.global_step, self._metrics):
            control.should_save = True
        if self._is_stopping(state):
            control.should_training_stop = True
            # An evaluation precedes the checkpoint and may outlast the grace period. If the Trainer
            # keeps only the best checkpoint, the evaluation may even drop this one.
            control.should_evaluate = False

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal the checkpoint once every worker has written its part; exit after SIGTERM."""
        del control
        if dist.is_initialized():
            dist.barrier()
        if self._monitor.leads:
            folder = Path(args.output_dir)
            seal(folder / f"checkpoint-{state.global_step}")
            present = {path.name for _number, path in numbered(folder, "checkpoint-")}
            for _number, seal_file in numbered(folder, "checkpoint-", ".seal"):
                # The Trainer may have removed the checkpoint.
                if seal_file.name.removesuffix(".seal") not in present:
                    unseal(seal_file.with_suffix(""))
        self._monitor.saved()
        if self._is_stopping(state):
            self._monitor.leave()

    def _is_stopping(self, state: Any) -> bool:
        """Return whether SIGTERM came before the last step."""
        return self._monitor.sigterm_received and state.global_step < state.max_steps

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the end, or exit if the Trainer stopped without saving."""
        del args, control
        if self._is_stopping(state):
            say(f"stopping: nothing was saved after step {state.global_step}")
            jobs.leave()
        say(f"all {state.global_step} steps are done")
        self._monitor.end(self._metrics)
