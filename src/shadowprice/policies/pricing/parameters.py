"""Parameters of all policies with exponential prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from shadowprice.core.job import Job
from shadowprice.core.specs import Spec
from shadowprice.policies.registry import Parameters

if TYPE_CHECKING:
    from shadowprice.policies.pricing.constants import PriceConstants

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FixedPrices = Annotated[str, StringConstraints(pattern=r"^fixed:.+$")]


class GivenPrices(Spec):
    """Price constants of one pool, in utility per slot for a share of 1."""

    L: Positive
    U: dict[str, Positive]

    @model_validator(mode="after")
    def _ordered(self) -> GivenPrices:
        check_lower_below_upper(self.L, self.U)
        return self


def check_lower_below_upper(lower: float, upper: Mapping[str, float]) -> None:
    """Raise `ValueError` if a U is below L, because prices would then fall as load rises."""
    low = [name for name, price in upper.items() if price < lower]
    if low:
        raise ValueError(f"U of {', '.join(low)} is below L = {lower:g}; prices never fall")


class PriceParameters(Parameters):
    """Source and definition of the constants L and U of the price function."""

    paper_settings: ClassVar[Mapping[str, object]] = {
        "prices": "offline",
        "lower": "theory",
        "restarts": "ignored",
    }

    prices: Literal["auto", "offline", "online", "given"] | FixedPrices = Field(
        default="auto",
        description="source of L and U. offline: (23)-(26) over the whole job set, known in a "
        "simulation only; online: over the jobs promised in the last horizon; given: as set "
        "below; auto: offline if the job set is known, otherwise online. oasis only: fixed:FILE "
        "takes the prices that `shadowprice bound --prices FILE` wrote, without L and U",
    )
    price_scale: Positive = Field(
        default=1.0,
        description="factor on every ratio U/L: below 1 prices rise less steeply (Fig. 6)",
    )
    price_scale_absorbs: Literal["U", "L"] = Field(
        default="U",
        description="constant that price_scale changes. U: L stays; L: U stays, and an empty "
        "server costs L / price_scale",
    )
    lower: Literal["theory", "guaranteed", "clearing"] = Field(
        default="clearing",
        description="lower price constant L. clearing: at least the density at which demand would "
        "just fill the cluster; guaranteed: the largest L at which empty servers cost half of "
        "what one job earns alone, as the proof of Theorem 4 needs; theory: (25), (26), which is "
        "below every job's minimum utility density. With steep sigmoids that is nearly 0, and "
        "prices stay near 0 until a server is nearly full",
    )
    empty: Literal["priced", "admits"] = Field(
        default="priced",
        description="what happens to a job that L prices out of an empty cluster. priced: it is "
        "refused; admits: prices are lowered for it until its payoff is positive, because the "
        "papers state that an empty cluster admits every job",
    )
    restarts: Literal["counted", "ignored"] = Field(
        default="counted",
        description="time that jobs lose when they move (`restart`). counted: plans include it, "
        "and promises hold; ignored: as in the papers; plans that fall short are replaced later",
    )

    @property
    def fixed(self) -> Path | None:
        """The file of posted prices, None if prices are computed from the load."""
        return Path(self.prices[len("fixed:") :]) if self.prices.startswith("fixed:") else None

    def scaled(self, constants: PriceConstants) -> PriceConstants:
        """Return constants with ``price_scale`` applied to each ratio U/L."""
        return constants.scaled(self.price_scale, self.price_scale_absorbs)

    def for_jobs(self, known: Sequence[Job] | None) -> Self:
        """Replace ``prices=auto`` by ``online`` if ``known`` is None, else by ``offline``."""
        if self.prices != "auto":
            return self
        return self.model_copy(update={"prices": "online" if known is None else "offline"})
