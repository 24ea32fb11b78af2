"""Model buffers: persistent state beside the parameters, as of batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from shadowprice.training.differences import difference
from shadowprice.training.generation import wait_for


class Buffers:
    """The persistent buffers of models, independent of which worker computed which part.

    Every part begins with the buffers from before the step. After the step, the floating-point
    buffers of all parts are averaged, weighted by share of the mini-batch. With batch
    normalisation, r becomes (1 - m) r + m s, where s is the mean of the parts' statistics. Integer
    buffers (counts of batches) advance as in one part.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        buffers = {id(buffer): buffer for model in models for buffer in _persistent(model)}
        self._whole = [buffer for buffer in buffers.values() if not buffer.is_floating_point()]
        self._floating = [buffer for buffer in buffers.values() if buffer.is_floating_point()]
        self._whole_before: list[Any] = []
        self._before: list[Any] = []
        self._changes: list[Any] = []

    def begin(self) -> None:
        """Save the buffers at the beginning of a step."""
        self._whole_before = [buffer.clone() for buffer in self._whole]
        self._before = [buffer.clone() for buffer in self._floating]
        self._changes = [torch.zeros_like(buffer) for buffer in self._floating]

    def reset(self) -> None:
        """Restore the buffers from before the step, at the beginning of a part."""
        with torch.no_grad():
            for buffer, before in zip(self._whole, self._whole_before, strict=True):
                buffer.copy_(before)
            for buffer, before in zip(self._floating, self._before, strict=True):
                buffer.copy_(before)

    def add(self, weight: float) -> None:
        """Add a part's change of the buffers. An unchanged value stays the same to the bit."""
        with torch.no_grad():
            columns = zip(self._changes, self._floating, self._before, strict=True)
            for change, buffer, before in columns:
                change.add_(difference(buffer, before), alpha=weight)

    def end(self) -> None:
        """Set the buffers to the weighted average over all parts of all workers."""
        with torch.no_grad():
            for kind in dict.fromkeys(
                (floating.dtype, floating.device) for floating in self._floating
            ):
                alike = [
                    number
                    for number, floating in enumerate(self._floating)
                    if (floating.dtype, floating.device) == kind
                ]
                flat = torch.cat([self._changes[number].reshape(-1) for number in alike])
                wait_for(dist.all_reduce(flat, async_op=True))
                sizes = [self._floating[number].numel() for number in alike]
                for number, change in zip(alike, flat.split(sizes), strict=True):
                    buffer = self._floating[number]
                    buffer.copy_(self._before[number] + change.view_as(buffer))


def _persistent(model: Any) -> list[Any]:
    parameters = {id(value) for value in model.parameters()}
    state = model.state_dict(keep_vars=True).values()
    return [
        value for value in state if isinstance(value, torch.Tensor) and id(value) not in parameters
    ]
