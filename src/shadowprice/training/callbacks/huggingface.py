"""A callback for the Trainer of Hugging Face's transformers.

.. code-block:: python

    from shadowprice.training.callbacks.huggingface import Elastic, arguments, newest

    args = TrainingArguments(num_train_epochs=3, **arguments(batch=64, largest=16))
    trainer = Trainer(model, args, train_dataset=data, callbacks=[Elastic()])
    trainer.train(resume_from_checkpoint=newest())
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback

from shadowprice import jobs
from shadowprice.training.callbacks.following import SAVE_EVERY, Following, be_a_node, divided
from shadowprice.training.callbacks.seals import newest as newest_whole
from shadowprice.training.callbacks.seals import numbered, seal, unseal
from shadowprice.training.errors import TrainingError
from shadowprice.training.generation import say


def arguments(batch: int, largest: int) -> dict[str, Any]:
    """Return those of `TrainingArguments` that follow from the workers of this generation.

    The mini-batch is the same whatever their number, and so is the order of the data, which
    transformers draws from ``seed``. The data set has to be a multiple of it (`Elastic` looks):
    what transformers does with the samples that are left over depends on the workers.

    Parameters
    ----------
    batch : int
        Samples of a mini-batch, over all workers; every number of workers has to divide it.
    largest : int
        Most samples that a worker computes at a time.

    Raises
    ------
    TrainingError
        If the workers cannot share the mini-batch evenly.
    """
    _, workers = be_a_node()
    size, times = divided(batch, largest, workers)
    return {
        "output_dir": str(jobs.current().checkpoint_dir),
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": times,
        "save_total_limit": 2,
    }


def newest(folder: str | Path | None = None) -> str | None:
    """Return the newest whole checkpoint of the Trainer, None where there is none.

    Parameters
    ----------
    folder : str or Path, optional
        Its ``output_dir``; by default where the job's checkpoints are.
    """
    found = newest_whole(Path(folder or jobs.current().checkpoint_dir), "checkpoint-")
    return None if found is None else str(found[1])


class Elastic(TrainerCallback):
    """Reports how far the Trainer is, seals its checkpoints, and saves and leaves when told to.

    Parameters
    ----------
    save_every, report_every : float, optional
        Seconds between two checkpoints beside the Trainer's own, and between two reports.
    """

    def __init__(self, *, save_every: float = SAVE_EVERY, report_every: float = 2.0) -> None:
        self._following = Following(save_every, report_every)
        self._metrics: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin to follow.

        Raises
        ------
        TrainingError
            If the data set has no length, or some samples of it would be left over.
        """
        del control
        own = args.per_device_train_batch_size * args.gradient_accumulation_steps
        data, batch = more["train_dataloader"].dataset, own * args.world_size
        if not hasattr(data, "__len__"):
            raise TrainingError(
                "the data set has no length: a Trainer that is moved goes on within an epoch's "
                "order, which needs samples by number"
            )
        samples = len(data)
        if samples % batch:
            raise TrainingError(
                f"the data set has {samples} samples, no multiple of the mini-batch of {batch}: "
                f"leave {samples % batch} out"
            )
        self._following.begin(state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any
    ) -> None:
        """Remember what is to be reported."""
        del args, state, control
        numbers = {name: one for name, one in logs.items() if isinstance(one, int | float)}
        self._metrics |= {name: float(one) for name, one in numbers.items()}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Agree on whether to go on; who is told to stop saves first, and evaluates nothing."""
        del args
        if self._following.step(state.global_step, self._metrics):
            control.should_save = True
        if self._leaves(state):
            control.should_training_stop = True
            # It comes before the checkpoint, may take longer than the grace, and where the Trainer
            # keeps the best only it withholds the checkpoint.
            control.should_evaluate = False

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal what was written, once every worker has written its part; leave, if told to."""
        del control
        if dist.is_initialized():
            dist.barrier()
        if self._following.leads:
            folder = Path(args.output_dir)
            seal(folder / f"checkpoint-{state.global_step}")
            kept = {path.name for _number, path in numbered(folder, "checkpoint-")}
            for _number, left in numbered(folder, "checkpoint-", ".seal"):  # the Trainer keeps two
                if left.name.removesuffix(".seal") not in kept:
                    unseal(left.with_suffix(""))
        self._following.saved()
        if self._leaves(state):
            self._following.leave()

    def _leaves(self, state: Any) -> bool:
        """Return whether all were told to leave, and something is left to be done later."""
        return self._following.told and state.global_step < state.max_steps

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the end, or leave where something kept the Trainer from saving before."""
        del args, control
        if self._leaves(state):
            say(f"told to stop: nothing was saved after step {state.global_step}")
            jobs.leave()
        say(f"all {state.global_step} steps are done")
        self._following.end(self._metrics)
