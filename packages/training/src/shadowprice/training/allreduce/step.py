"""One step: the parts of its mini-batch that this worker computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from shadowprice.training.allreduce.loading import to_device
from shadowprice.training.allreduce.synchronisation import BufferSync, GradientSync
from shadowprice.training.errors import TrainingError
from shadowprice.training.randomness import seed_all
from shadowprice.training.sampling import Order, Part


class Step:
    """A mini-batch; iteration yields the batches of the parts that this worker computes.

    ``number`` and ``epoch`` count from the job's beginning, from 0.
    """

    def __init__(
        self,
        number: int,
        order: Order,
        share: Sequence[Part],
        batches: Iterator[Any],
        reductions: Sequence[GradientSync],
        buffers: BufferSync,
        *,
        workers: int,
        device: torch.device,
    ) -> None:
        self.number = number
        self.epoch = order.epoch(number)
        self.ends_epoch = (number + 1) % order.steps == 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._order, self._share, self._batches = order, share, batches
        self._reductions, self._buffers = reductions, buffers
        self._workers, self._device = workers, device
        self._part: Part | None = None  # the current part
        self._weighed = 0  # number of losses of the current part
        self._done = 0  # number of finished parts

    @property
    def begun(self) -> bool:
        """Whether iteration over the step has begun."""
        return self._done > 0 or self._part is not None

    def __iter__(self) -> Iterator[Any]:
        if self.begun:
            raise TrainingError(f"step {self.number}: iterated twice; iterate over each step once")
        self._buffers.begin()
        for index, part in enumerate(self._share):
            batch = to_device(next(self._batches), self._device)
            self._buffers.reset()
            seed_all(self._order.part_seed(part.step, part.number))
            self._part = part
            with contextlib.ExitStack() as stack:
                last = index + 1 == len(self._share)
                for reduction in self._reductions:
                    # Gradients are added up locally, and synchronised in the last part only.
                    stack.enter_context(
                        reduction.synchronised() if last else reduction.wrapped.no_sync()
                    )
                    if len(part.samples) == 1:
                        stack.enter_context(_refuse_single_values(reduction.wrapped, part))
                yield batch
            self._check(part)
            self._buffers.add(part.weight)
            self._done += 1
        self._part = None

    def _check(self, part: Part) -> None:
        if self._weighed == 0:
            raise TrainingError(
                f"part {part.number} of step {self.number} has no loss: call step.backward(loss), "
                "or step.weigh(loss).backward(), for every part"
            )
        self._weighed = 0

    def weigh(self, loss: Any) -> Any:
        """Return a loss, the mean over the samples of a part, scaled by the part's weight.

        If there are several losses, weigh each, add them up, and call backward once per part. In
        the last part, only the first backward pass after a forward pass averages gradients, so
        `GradientSync` refuses a second one, except with DDP's static graph.
        """
        if self._part is None:
            raise TrainingError(
                f"step {self.number}: got a loss outside the loop over its parts; call "
                "step.backward or step.weigh inside `for batch in step:`"
            )
        self._weighed += 1
        self.loss_sum += loss.detach().double() * self._part.weight
        # DDP divides the sum of the gradients by the number of workers.
        return loss * (self._part.weight * self._workers)

    def backward(self, loss: Any) -> None:
        """Compute the gradients of a loss that is the mean over the samples of its part."""
        self.weigh(loss).backward()

    def check_complete(self) -> None:
        """Raise `TrainingError` if some parts of the step weren't computed."""
        if self._done < len(self._share):
            raise TrainingError(
                f"step {self.number} was left after {self._done} of {len(self._share)} parts: "
                "every sample has to be used, write `for batch in step:` to its end"
            )


@contextlib.contextmanager
def _refuse_single_values(model: Any, part: Part) -> Iterator[None]:
    """Raise `TrainingError` if batch normalisation gets a single value per channel."""

    def check(layer: Any, given: tuple[Any, ...]) -> None:
        if layer.training and given[0].numel() == given[0].size(1):
            raise TrainingError(
                f"part {part.number} of step {part.step} has one sample, and batch normalisation "
                "needs two: leave out mini-batches that are not full (join(..., whole=True)), or "
                "cut them into fewer parts (join(..., parts=...))"
            )

    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    hooks = [module.register_forward_pre_hook(check) for module in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
