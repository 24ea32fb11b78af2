"""Training inside jobs that continues through every change of the number of workers.

Names are loaded at first use, because they need torch (``pip install 'shadowprice[train]'``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from shadowprice.training.errors import TrainingError
from shadowprice.training.sampling import Order, Part

if TYPE_CHECKING:
    from shadowprice.training.allreduce.run import Run, join
    from shadowprice.training.allreduce.step import Step
    from shadowprice.training.generation import Generation, current, join_group, leave_group
    from shadowprice.training.randomness import shield

_LAZY: Final = {
    "Generation": "generation",
    "Run": "allreduce.run",
    "Step": "allreduce.step",
    "current": "generation",
    "join": "allreduce.run",
    "join_group": "generation",
    "leave_group": "generation",
    "shield": "randomness",
}

__all__ = [
    "Generation",
    "Order",
    "Part",
    "Run",
    "Step",
    "TrainingError",
    "current",
    "join",
    "join_group",
    "leave_group",
    "shield",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"shadowprice.training.{name} needs torch: pip install 'shadowprice[train]'"
        raise ModuleNotFoundError(message, name="torch") from None
