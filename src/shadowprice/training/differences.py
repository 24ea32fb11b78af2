"""What a part of a mini-batch changed of what a model keeps beside its parameters."""

from __future__ import annotations

from typing import Any

import torch


def difference(after: Any, before: Any) -> Any:
    """Return how two tensors differ; 0 wherever they are the same.

    Infinity less itself is no number, and attention masks are made of it.
    """
    return torch.where(after == before, 0.0, after - before)
