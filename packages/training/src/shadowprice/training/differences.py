"""Change of a model's buffers by a part of a mini-batch."""

from __future__ import annotations

from typing import Any

import torch


def tensor_delta(after: Any, before: Any) -> Any:
    """Return the difference of two tensors, 0 wherever they are equal.

    Plain subtraction gives NaN for equal infinities, which attention masks contain.
    """
    return torch.where(after == before, 0.0, after - before)
