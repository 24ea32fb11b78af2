"""Synchronisation of gradients once a step, which refuses gradients that it would miss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from shadowprice.training.errors import TrainingError


class Reduction:
    """Synchronises a model's gradients once a step, and checks that none is missed.

    `DistributedDataParallel` averages gradients only in the first backward pass after a forward
    pass through it. Gradients of a second backward pass stay local, and the workers' models drift
    apart silently.

    Attributes
    ----------
    wrapped : DistributedDataParallel
        The model.
    """

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self._travelled: set[str] | None = None
        """Parameters with averaged gradients since the last forward pass; None before the first."""
        self._watching = False
        wrapped.register_forward_pre_hook(self._forward)
        for name, parameter in wrapped.module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._accumulated, name))

    def withheld(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that adds gradients up locally without synchronising them."""
        context: contextlib.AbstractContextManager[None] = self.wrapped.no_sync()
        return context

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Synchronise gradients in the backward pass of this context, and check them."""
        self._watching, self._travelled = not self.wrapped.static_graph, None
        try:
            yield
        finally:
            self._watching = False

    def _forward(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._travelled = set()

    def _accumulated(self, name: str, _: Any) -> None:
        if not self._watching:
            return
        if self._travelled is None:
            raise TrainingError(
                f"a loss went back to {name} that was computed without the model that run.wrap "
                "returned: call that one, for nothing else averages gradients over the workers"
            )
        if name in self._travelled:
            raise TrainingError(
                f"a second backward pass went back to {name}, whose gradient had been averaged "
                "over the workers: weigh each loss, add them up, and go back once: "
                "(step.weigh(a) + step.weigh(b)).backward()"
            )
        self._travelled.add(name)
