"""Gradient synchronisation once per step, with an error for gradients that it would miss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from shadowprice.training.errors import TrainingError


class GradientSync:
    """Synchronises a model's gradients once a step, and checks that none is missed.

    `DistributedDataParallel` averages gradients only in the first backward pass after a forward
    pass through it. Gradients of a second backward pass stay local, and the workers' models drift
    apart silently.
    """

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self._averaged: set[str] | None = None
        """Parameters with averaged gradients since the last forward pass.

        None until a forward pass in this context.
        """
        self._checks = False
        wrapped.register_forward_pre_hook(self._forward)
        for name, parameter in wrapped.module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._accumulated, name))

    def local_only(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that adds gradients up locally without synchronising them."""
        context: contextlib.AbstractContextManager[None] = self.wrapped.no_sync()
        return context

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
