"""PD-ORS: online primal-dual admission with co-located workers and parameter servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from shadowprice.core.job import Job
from shadowprice.policies.pricing.parameters import (
    GivenPrices,
    Positive,
    PriceParameters,
    check_lower_below_upper,
)
from shadowprice.policies.registry import PolicyInfo

THEOREM = "theorem"


class PdorsParameters(PriceParameters):
    """Parameters of `pdors`."""

    def random_draws_text(self, jobs: Iterable[Job]) -> str:
        """Describe the random rounding; empty with another ``placement``."""
        del jobs
        return "the rounding of plans" if self.placement == "randomised" else ""

    prices: Literal["auto", "offline", "online", "given"] = Field(
        default="auto",
        description="source of L and U. offline: (3.13)-(3.14) over the whole job set, known in a "
        "simulation only; online: over the jobs promised in the last horizon; given: as set "
        "below; auto: offline if the job set is known, otherwise online",
    )
    placement: Literal["randomised", "exact", "greedy"] = Field(
        default="randomised",
        description="how a job is spread over servers in a slot: randomised: the relaxation is "
        "rounded at random (Algorithm 4), and repaired if no round succeeds; exact: the cheapest "
        "placement; greedy: server by server, the cheapest first",
    )
    gain: float | Literal["theorem"] = Field(
        default=1.006,
        description="G of (3.26)-(3.27), above 1; theorem: G of Theorem 2, from delta. With a "
        "large G rounding fails on full servers, and most placements are repaired",
    )
    delta: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5, description="probability of failure that G=theorem allows, in (0, 1]"
    )
    tries: PositiveInt = Field(
        default=1000, description="maximum number of rounding rounds before a placement is repaired"
    )
    bandwidth: Literal["internal", "literal"] = Field(
        default="internal",
        description="reading of (3.4) for a co-located job: internal: the same number of "
        "parameter servers as elsewhere, because its traffic doesn't cross the network; literal: "
        "enough parameter servers for the internal rate, which forbids co-location if that "
        "exceeds ps.bandwidth",
    )
    L: Positive | None = Field(
        default=None, description="price of a share of 1 of an unused resource, for prices=given"
    )
    U: dict[str, Positive] | None = Field(
        default=None, description="U.<resource>, its price when used up, for prices=given"
    )

    @field_validator("gain", mode="before")
    @classmethod
    def _gain(cls, value: object) -> object:
        if value == THEOREM:
            return value
        try:
            number = float(value)  # type: ignore[arg-type]  # refused below if it isn't a number
        except (TypeError, ValueError):
            number = 0.0
        if not 1.0 < number < float("inf"):
            raise ValueError(
                f"{value} is not a gain factor: G must be above 1, such as 1.006, or `theorem`"
            )
        return number

    @model_validator(mode="after")
    def _given(self) -> PdorsParameters:
        if self.fixed is not None:
            raise ValueError("prices=fixed:FILE is only for oasis")
        if self.prices == "given" and (self.L is None or self.U is None):
            raise ValueError("prices=given needs L and U.<resource>")
        if self.prices != "given" and (self.L is not None or self.U is not None):
            raise ValueError("L and U are only read with prices=given; set it too")
        if self.L is not None and self.U is not None:
            check_lower_below_upper(self.L, self.U)
        return self

    @property
    def factor(self) -> float:
        """G for the kernels; 0 lets them compute that of Theorem 2."""
        return 0.0 if self.gain == THEOREM else float(self.gain)

    @property
    def given(self) -> GivenPrices | None:
        """The price constants that a user set, None without any."""
        if self.L is None or self.U is None:
            return None
        return GivenPrices(L=self.L, U=self.U)


POLICIES = (
    PolicyInfo(
        name="pdors",
        summary="Admits a job when its utility exceeds the price of what it would use, and puts "
        "its workers and parameter servers on one machine if that pays.",
        paper="Yu: Toward efficient online scheduling for large-scale distributed machine "
        "learning systems (MSc thesis, Iowa State University 2019)",
        parameters=PdorsParameters,
        build="shadowprice.policies.pdors.policy:Pdors",
        details="All servers form one pool. In a slot in which all of a job is on one machine "
        "it communicates at its `internal_bandwidth`, otherwise at its workers' bandwidth. Every "
        "job is decided when it arrives, and an admitted job keeps its plan. Servers of role "
        "`worker` or `ps` carry only their kind.",
    ),
)
