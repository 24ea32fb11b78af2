"""Parameters of `rolling`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shadowprice.policies.registry import Parameters


class RollingParameters(Parameters):
    """Parameters of `rolling`."""

    prices: Literal["learnt", "given"] = Field(
        default="learnt",
        description="learnt: shadow prices of the jobs that have arrived; given: `price`",
    )
    price: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="with prices=given: utility that a promise pays for all of a resource in one "
        "slot; prices of several resources add up",
    )
    # Slots of the whole cluster for each slot of observed demand; given prices need no limit.
    evidence: float = Field(
        default=0.25,
        gt=0.0,
        le=1e6,
        description="limit of a promise's size, as a part of the time in which demand was "
        "observed: a promise may take the whole cluster for that time, or six times as much while "
        "no other job is open. Larger jobs wait; without `standby` there is no limit",
    )
    revision: bool = Field(
        default=True,
        description="whether plans of promised jobs move when a job arrives or a slot begins; "
        "otherwise each job keeps its first plan",
    )
    steady: bool = Field(
        default=False,
        description="whether plans of promised jobs move only to make room for a promise, or if "
        "they no longer complete the work; the default of `serve`",
    )
    standby: bool = Field(
        default=True,
        description="whether jobs without a promise wait for spare capacity; otherwise they are "
        "refused",
    )
    spare: bool = Field(
        default=True,
        description="whether unplanned capacity of a slot is allocated to jobs (work conservation)",
    )
    quota: bool = Field(
        default=True,
        description="if tenants have shares: promises to a tenant's jobs stay within its share "
        "and what no tenant owns, and its jobs come first in its share once it is owed half a "
        "horizon of it; otherwise all jobs compete by utility density",
    )
