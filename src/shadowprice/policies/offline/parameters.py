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
        description="seconds after which the best schedules so far are taken, with their gap; as "
        "long again for each surprise that is planned anew",
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
    most_decisions: int = Field(
        default=20_000,
        ge=1,
        description="pairs of a job and a slot beyond which an instance is refused as too large",
    )
