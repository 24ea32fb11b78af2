"""The baselines' parameters; light, so that listing policies compiles nothing."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from shadowprice.policies.registry import Parameters

WIDEST: Final = 30
"""Most workers drawn: "fixed to a number within [1, 30]" (OASiS, section V)."""

FixedWorkers = Annotated[int, Field(ge=1)] | Literal["drawn", "most", "fewest"]

_FIXED_WORKERS = (
    "workers of a job, fixed while it runs: `drawn` uniformly, by seed and job name, among the "
    "numbers within [1, 30] that the job allows; the `most` or `fewest` it allows; or a number, "
    "of which the nearest allowed one is taken; fewer where the empty cluster cannot carry it"
)


class FifoParameters(Parameters):
    """Parameters of `fifo`."""

    workers: FixedWorkers = Field(default="drawn", description=_FIXED_WORKERS)
    backfill: int = Field(
        default=0,
        ge=0,
        description="jobs behind a blocked head of line that may be tried in its place",
    )


class DrfParameters(Parameters):
    """Parameters of `drf`: it has none."""


class RrhParameters(Parameters):
    """Parameters of `rrh`."""

    workers: FixedWorkers = Field(default="drawn", description=_FIXED_WORKERS)
    threshold: float = Field(
        default=0.0,
        description="a job is admitted if its present value less the delay cost is above this, "
        "in units of utility",
    )
    alpha: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="weight of a job's gain against the cost of the delay that it imposes, when "
        "jobs are ranked: 1 looks at gains alone, 0 at costs alone",
    )
    discount: float = Field(
        default=0.01,
        ge=0,
        description="by how much a slot's waiting discounts a gain: yield / (1 + discount * slots)",
    )
