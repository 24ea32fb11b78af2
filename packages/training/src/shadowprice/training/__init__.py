"""Elastic training inside a job: it continues when the number of workers changes.

Names are imported at first use, because they need torch: in a clone,
``pip install './packages/training[torch]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from shadowprice.training.errors import TrainingError

if TYPE_CHECKING:
    from shadowprice.training.allreduce.run import Run, join
    from shadowprice.training.allreduce.step import Step
    from shadowprice.training.generation import Generation, current, join_group, leave_group
    from shadowprice.training.randomness import ignore_sigterm
    from shadowprice.training.sampling import Order, Part

_NAMES: Final = {
    "allreduce.run": ("Run", "join"),
    "allreduce.step": ("Step",),
    "generation": ("Generation", "current", "join_group", "leave_group"),
    "randomness": ("ignore_sigterm",),
    "sampling": ("Order", "Part"),
}

__all__ = [
    "Generation",
    "Order",
    "Part",
    "Run",
    "Step",
    "TrainingError",
    "current",
    "ignore_sigterm",
    "join",
    "join_group",
    "leave_group",
]


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _NAMES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name not in {"numpy", "torch"}:
            raise
        message = f"shadowprice.training.{name} needs {error.name}: "
        message += "pip install './packages/training[torch]' in a clone of Shadowprice"
        raise ModuleNotFoundError(message, name=error.name) from None
