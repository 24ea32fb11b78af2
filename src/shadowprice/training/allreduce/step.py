"""One step: the parts of its mini-batch that fall to this worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from shadowprice.training.allreduce.buffers import Buffers
from shadowprice.training.allreduce.loading import moved
from shadowprice.training.allreduce.reduction import Reduction
from shadowprice.training.errors import TrainingError
from shadowprice.training.randomness import seed_all
from shadowprice.training.sampling import Order, Part


class Step:
    """A mini-batch; iterating over it gives what the parts that fall to this worker hold.

    Attributes
    ----------
    number : int
        Its number since the job's beginning, from 0 on.
    epoch : int
        The epoch it belongs to, from 0 on.
    ends_epoch : bool
        Whether it is the last of its epoch.
    """

    def __init__(
        self,
        number: int,
        order: Order,
        share: Sequence[Part],
        batches: Iterator[Any],
        reductions: Sequence[Reduction],
        buffers: Buffers,
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
        self._part: Part | None = None
        self._weighed = 0
        self._done = 0

    @property
    def begun(self) -> bool:
        """Whether any of its samples were handed out."""
        return self._done > 0 or self._part is not None

    def __iter__(self) -> Iterator[Any]:
        if self._done:
            raise TrainingError(f"step {self.number} is gone through twice: its samples count once")
        self._buffers.begin()
        for place, part in enumerate(self._share):
            batch = moved(next(self._batches), self._device)
            self._buffers.reset()
            seed_all(self._order.key(part.step, part.number))
            self._part = part
            with contextlib.ExitStack() as stack:
                last = place + 1 == len(self._share)
                for one in self._reductions:
                    # Gradients are added up here first, and travel once a step.
                    stack.enter_context(one.watched() if last else one.withheld())
                    if len(part.samples) == 1:
                        stack.enter_context(_alone(one.wrapped, part))
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
        """Return a loss with the weight that its part has in the mini-batch.

        Parameters
        ----------
        loss : Tensor
            The mean over the samples of the part; where there are several losses, each of them,
            which are then added up: gradients are averaged over the workers in one backward pass
            after a forward pass, and a second one is refused.
        """
        if self._part is None:
            raise TrainingError(
                "a loss is weighed outside of its step: only inside the loop over it"
            )
        self._weighed += 1
        self.loss_sum += loss.detach().double() * self._part.weight
        # Gradients are averaged over the workers, whatever each had to do.
        return loss * (self._part.weight * self._workers)

    def backward(self, loss: Any) -> None:
        """Compute the gradients of a loss that is the mean over the samples of its part."""
        self.weigh(loss).backward()

    def check_done(self) -> None:
        """Check that all of it was done.

        Raises
        ------
        TrainingError
            If some parts were left out.
        """
        if self._done < len(self._share):
            raise TrainingError(
                f"step {self.number} was left after {self._done} of {len(self._share)} parts: "
                "every sample has to be used, write `for batch in step:` to its end"
            )


@contextlib.contextmanager
def _alone(model: Any, part: Part) -> Iterator[None]:
    """Say within which part it is where batch normalisation has one value of each channel."""

    def check(layer: Any, given: tuple[Any, ...]) -> None:
        if layer.training and given[0].numel() == given[0].size(1):
            raise TrainingError(
                f"part {part.number} of step {part.step} has one sample, and batch normalisation "
                "needs two: leave out mini-batches that are not full (join(..., whole=True)), or "
                "cut them into fewer parts (join(..., parts=...))"
            )

    layers = [one for one in model.modules() if isinstance(one, _BatchNorm)]
    hooks = [one.register_forward_pre_hook(check) for one in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
