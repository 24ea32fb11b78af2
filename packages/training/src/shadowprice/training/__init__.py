"""Elastic training inside a job: it continues when the number of workers changes.

Names are imported at first use, because they need torch: in a clone,
``pip install './packages/training[torch]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shadowprice.training.errors import TrainingError, import_at_first_use

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
    return import_at_first_use(__name__, _NAMES, name)
