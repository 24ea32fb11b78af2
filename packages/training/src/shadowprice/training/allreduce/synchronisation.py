"""Synchronisation of gradients and model buffers, once per step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from shadowprice.training.errors import TrainingError
from shadowprice.training.generation import wait_for
from shadowprice.training.model_buffers import buffer_change, changed_buffer, real_buffers


class GradientSync:
    """Synchronises a model's gradients once a step, and checks that all are averaged.

    `DistributedDataParallel` averages gradients only in the first backward pass after a forward
    pass through it. Gradients of a second backward pass stay local, and the workers' models drift
    apart silently.
    """

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        # Parameters with averaged gradients since the last forward pass; None before one.
        self._averaged: set[str] | None = None
        self._checks = False
        wrapped.register_forward_pre_hook(self._forward)
        for name, parameter in wrapped.module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._accumulated, name))

    @contextlib.contextmanager
    def synchronised(self) -> Iterator[None]:
        """Synchronise gradients in the backward pass of this context, and check them."""
        self._checks, self._averaged = not self.wrapped.static_graph, None
        try:
            yield
        finally:
            self._checks = False

    def _forward(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._averaged = set()

    def _accumulated(self, name: str, _: Any) -> None:
        if not self._checks:
            return
        if self._averaged is None:
            raise TrainingError(
                f"the backward pass reached {name} without a forward pass through the model that "
                "run.wrap returned; call that model, because only it averages gradients"
            )
        if name in self._averaged:
            raise TrainingError(
                f"a second backward pass reached {name}, whose gradient is already averaged; use "
                "one: (step.weigh(a) + step.weigh(b)).backward()"
            )
        self._averaged.add(name)


class BufferSync:
    """The persistent buffers of models, whose values don't depend on the number of workers.

    Every part starts with the buffers from before the step. After the step, the floating-point
    and complex buffers of all parts are averaged, weighted by share of the mini-batch. With batch
    normalisation, r becomes (1 - m) r + m s, where s is the mean of the parts' statistics. Integer
    buffers, which count batches, advance as if the step had one part.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        buffers = {id(buffer): buffer for model in models for buffer in real_buffers(model)}
        self._integers = [buffer for buffer in buffers.values() if not buffer.is_floating_point()]
        self._floating = [buffer for buffer in buffers.values() if buffer.is_floating_point()]
        self._integers_before: list[Any] = []
        self._floating_before: list[Any] = []
        self._changes: list[Any] = []

    def begin(self) -> None:
        """Copy the buffers at the start of a step."""
        self._integers_before = [buffer.clone() for buffer in self._integers]
        self._floating_before = [buffer.clone() for buffer in self._floating]
        self._changes = [torch.zeros_like(buffer) for buffer in self._floating]

    def reset(self) -> None:
        """Restore the buffers from before the step, at the start of a part."""
        with torch.no_grad():
            for buffer, before in zip(self._integers, self._integers_before, strict=True):
                buffer.copy_(before)
            for buffer, before in zip(self._floating, self._floating_before, strict=True):
                buffer.copy_(before)

    def add(self, weight: float) -> None:
        """Add a part's changes of the buffers. Unchanged values stay bit-identical."""
        if not weight:  # 0 times an infinity is NaN
            return
        with torch.no_grad():
            columns = zip(self._changes, self._floating, self._floating_before, strict=True)
            for change, buffer, before in columns:
                change.add_(buffer_change(buffer, before), alpha=weight)

    def end(self) -> None:
        """Set the buffers to the weighted average over all parts of all workers."""
        kinds: dict[Any, list[tuple[Any, Any, Any]]] = {}
        for buffer, *more in zip(self._floating, self._floating_before, self._changes, strict=True):
            kinds.setdefault((buffer.dtype, buffer.device), []).append((buffer, *more))
        with torch.no_grad():
            for columns in kinds.values():
                flat = torch.cat([change.reshape(-1) for _, _, change in columns])
                wait_for(dist.all_reduce(flat, async_op=True))
                averages = flat.split([buffer.numel() for buffer, _, _ in columns])
                for (buffer, before, _), average in zip(columns, averages, strict=True):
                    buffer.copy_(changed_buffer(before, average.view_as(buffer)))
