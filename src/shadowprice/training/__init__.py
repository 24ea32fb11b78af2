"""Training that goes on through every change of its workers; runs inside jobs.

Names are loaded when they are used: only they need torch (``pip install 'shadowprice[train]'``).
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

from shadowprice.training.errors import TrainingError
from shadowprice.training.sampling import Order, Part

if TYPE_CHECKING:
    from shadowprice.training.generation import Generation, current, join_group, leave_group

_LAZY: Final = {
    "Generation": "generation",
    "current": "generation",
    "join_group": "generation",
    "leave_group": "generation",
}

__all__ = [
    "Generation",
    "Order",
    "Part",
    "TrainingError",
    "current",
    "join_group",
    "leave_group",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(
            f"shadowprice.training.{name} needs torch: pip install 'shadowprice[train]'",
            name="torch",
        )
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
