"""Model buffers: persistent state besides the parameters, such as running means."""

from __future__ import annotations

from typing import Any

import torch


def persistent_buffers(model: Any) -> list[tuple[str, Any]]:
    """Return names and values of a model's persistent buffers (running means, counts)."""
    persistent = model.state_dict().keys()
    return [(name, buffer) for name, buffer in model.named_buffers() if name in persistent]


def real_buffers(model: Any) -> list[Any]:
    """Return a model's persistent buffers as real numbers, in the memory of the model."""
    buffers = [buffer for _, buffer in persistent_buffers(model)]
    return [torch.view_as_real(buffer) if buffer.is_complex() else buffer for buffer in buffers]


def buffer_change(after: Any, before: Any) -> Any:
    """Return the change of a buffer by a part of a mini-batch.

    If a value in ``before`` is infinite or NaN, no difference exists, and the change is the new
    value itself. Observers of quantisation begin with infinities, and attention masks contain them.
    """
    return torch.where(before.isfinite(), after - before, after)


def changed_buffer(before: Any, change: Any) -> Any:
    """Return a buffer after a change, or after a weighted mean of changes."""
    return torch.where(before.isfinite(), before + change, change)
