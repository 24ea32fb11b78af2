"""What models keep beside their parameters: the running statistics of batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from shadowprice.training.differences import difference
from shadowprice.training.generation import wait_for


class Buffers:
    """The persistent buffers of models, made the same whoever computed which part.

    Every part begins with the buffers as they were before the step. After it, what the parts made
    of floating-point ones is averaged, each by its share of the mini-batch: with batch
    normalisation, r becomes (1 - m) r + m s with s the mean of the parts' statistics. Whole numbers
    (counts of batches) go on as in one part.

    Parameters
    ----------
    models : sequence of torch.nn.Module
        Whose buffers.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        found = {id(one): one for model in models for one in _persistent(model)}
        self._whole = [one for one in found.values() if not one.is_floating_point()]
        self._floating = [one for one in found.values() if one.is_floating_point()]
        self._whole_before: list[Any] = []
        self._before: list[Any] = []
        self._changes: list[Any] = []

    def begin(self) -> None:
        """Remember how they are: a step begins."""
        self._whole_before = [one.clone() for one in self._whole]
        self._before = [one.clone() for one in self._floating]
        self._changes = [torch.zeros_like(one) for one in self._floating]

    def reset(self) -> None:
        """Let them be as before the step: a part begins."""
        with torch.no_grad():
            for buffer, before in zip(self._whole, self._whole_before, strict=True):
                buffer.copy_(before)
            for buffer, before in zip(self._floating, self._before, strict=True):
                buffer.copy_(before)

    def add(self, weight: float) -> None:
        """Add what a part changed of them; what it left alone stays what it is, to the bit."""
        with torch.no_grad():
            columns = zip(self._changes, self._floating, self._before, strict=True)
            for change, buffer, before in columns:
                change.add_(difference(buffer, before), alpha=weight)

    def end(self) -> None:
        """Let them be what all parts of all workers made of them."""
        with torch.no_grad():
            for kind in dict.fromkeys((one.dtype, one.device) for one in self._floating):
                alike = [
                    number
                    for number, one in enumerate(self._floating)
                    if (one.dtype, one.device) == kind
                ]
                flat = torch.cat([self._changes[number].reshape(-1) for number in alike])
                wait_for(dist.all_reduce(flat, async_op=True))
                sizes = [self._floating[number].numel() for number in alike]
                for number, change in zip(alike, flat.split(sizes), strict=True):
                    buffer = self._floating[number]
                    buffer.copy_(self._before[number] + change.view_as(buffer))


def _persistent(model: Any) -> list[Any]:
    parameters = {id(one) for one in model.parameters()}
    kept = model.state_dict(keep_vars=True).values()
    return [one for one in kept if isinstance(one, torch.Tensor) and id(one) not in parameters]
