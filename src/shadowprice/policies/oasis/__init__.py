"""OASiS: online primal-dual admission with elastic workers and parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from shadowprice.policies.pricing.parameters import GivenPrices, PriceParameters
from shadowprice.policies.registry import PolicyInfo


class OasisParameters(PriceParameters):
    """Parameters of `oasis`."""

    paper_settings: ClassVar[Mapping[str, object]] = {**PriceParameters.paper_settings, "gap": 0.0}

    gap: float = Field(
        default=1e-3,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="maximum relative distance of a schedule's payoff from the largest one, proved "
        "by a bound; 0: exactly the largest, however long the search takes",
    )
    chunks: Literal["exact", "literal"] = Field(
        default="exact",
        description="exact: the optimum of (27) in worker-slots; literal: whole chunks in every "
        "slot, as Algorithm 2 is printed",
    )
    split: Literal["auto", "half", "none"] = Field(
        default="auto",
        description="servers of role `any` that carry parameter servers instead of workers: half "
        "or none of them; auto: none until the first job with parameter servers arrives, then half "
        "(prices=offline knows the jobs in advance)",
    )
    worker: GivenPrices | None = Field(
        default=None, description="worker.L and worker.U.<resource>, for prices=given"
    )
    ps: GivenPrices | None = Field(
        default=None, description="ps.L and ps.U.<resource>, for prices=given"
    )

    @model_validator(mode="after")
    def _given(self) -> OasisParameters:
        if self.prices == "given" and self.worker is None:
            raise ValueError("prices=given needs worker.L and worker.U.<resource>")
        if self.prices != "given" and (self.worker or self.ps):
            raise ValueError("worker.* and ps.* are only read with prices=given; set it too")
        if self.fixed and self.empty == "admits":
            raise ValueError("empty=admits lowers L, and prices=fixed:FILE has none")
        return self


POLICIES = (
    PolicyInfo(
        name="oasis",
        summary="Admits a job when its utility exceeds the price of what it would use, and plans "
        "its workers slot by slot. Runs bags of tasks too.",
        paper="Bao, Peng, Wu, Li: Online Job Scheduling in Distributed Machine Learning Clusters "
        "(INFOCOM 2018)",
        parameters=OasisParameters,
        build="shadowprice.policies.oasis.policy:OasisPolicy",
        details="Every job is decided when it arrives, by the exact optimum of (27) at the prices "
        "of that moment; an admitted job keeps its plan. Workers and parameter servers use "
        "different servers: those of role `any` are split between the two. The start "
        "and the copies of a bag of tasks are chosen at the prices of the slots.",
    ),
)
