"""Parameters of Gandiva_fair and HiveD, without kernels, so that listing policies is fast."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shadowprice.policies.registry import Parameters

Size = Annotated[int, Field(ge=1)] | Literal["max", "min", "label"]

_SIZE = (
    "workers of a job, fixed while it runs: the `max` or `min` that it allows, a number, or "
    "`label`, the number in its label `gang`; the next smaller one that an empty cluster can carry"
)


class SharingParameters(Parameters):
    """Parameters shared by the gang schedulers."""

    workers: Size = Field(default="max", description=_SIZE)


class GandivaFairParameters(SharingParameters):
    """Parameters of `gandiva_fair`."""

    speeds: dict[str, dict[str, Annotated[float, Field(gt=0)]]] = Field(
        default_factory=dict,
        description="speed of each tenant's jobs by type of worker (speeds.a.worker/v100=2), 1 "
        "where not given; tenants trade tickets of fast types for slow ones by it",
    )


class HivedParameters(SharingParameters):
    """Parameters of `hived`."""

    opportunistic: bool = Field(
        default=True,
        description="whether jobs beyond their tenant's cells run on idle places until an owner "
        "comes",
    )
