"""Parameters of the offline optimum; light, so that listing policies loads no solver."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shadowprice.policies.registry import Parameters


class OptimumParameters(Parameters):
    """Parameters of `optimum`."""

    time_limit: float = Field(
        default=60.0,
        gt=0,
        description="time limit of the solver in seconds, for the first plan and for each "
        "replanning after an unforeseen event; the best schedules so far are then used",
    )
    clock: Literal["wall", "processor"] = Field(
        default="wall",
        description="clock of time_limit: elapsed time, or processor time, which excludes time "
        "used by other processes",
    )
    gap: float = Field(
        default=1e-6,
        ge=0,
        lt=1,
        description="relative distance from the bound that counts as optimal",
    )
    max_decisions: int = Field(
        default=20_000,
        ge=1,
        description="maximum number of pairs of a job and a slot; a larger instance is refused",
    )
