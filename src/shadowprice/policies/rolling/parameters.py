"""Parameters of `rolling`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shadowprice.policies.registry import Parameters


class RollingParameters(Parameters):
    """Parameters of `rolling`."""

    prices: Literal["learnt", "given"] = Field(
        default="learnt",
        description="learnt: shadow prices of the jobs seen so far; given: `price`",
    )
    price: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="with prices=given: utility for a slot of the whole cluster's dominant "
        "resource, asked of promises",
    )
    scarcity: float = Field(
        default=0.1,
        gt=0.0,
        le=1.0,
        description="share of the cluster that promises are priced for: of the work seen, the "
        "densest that fills this share sets the price; 1 is the clearing price",
    )
    memory: float = Field(
        default=2.0,
        gt=0.0,
        le=100.0,
        description="horizons after which an arrival counts 1/e in the learnt prices",
    )
    evidence: float = Field(
        default=0.25,
        gt=0.0,
        le=1e6,
        description="maximum size of a promise, in slots of the whole cluster, as a share of the "
        "slots in which demand was observed; larger jobs wait for a promise; not without `standby`",
    )
    revision: bool = Field(
        default=True,
        description="whether the plans of promised jobs move when another arrives or a slot begins",
    )
    steady: bool = Field(
        default=False,
        description="whether plans of promised jobs stay as they are while they complete the work, "
        "and move only to make room for a promise; the default of `serve`",
    )
    slack: float = Field(
        default=0.001,
        ge=0.0,
        le=1.0,
        description="share of what its plan is worth that a promise may give up for room: promised "
        "is the last slot that is worth the rest",
    )
    restart_limit: float = Field(
        default=0.7,
        gt=0.0,
        le=1.0,
        description="part of a slot: jobs that lose as much or more whenever they move are "
        "promised nothing, as plans that hold whatever moves would take too much room; they wait",
    )
    together: bool = Field(
        default=True,
        description="whether waiting jobs are laid out with promised ones, by when all are due, "
        "where that earns more and all have room; not where plans are `steady`",
    )
    standby: bool = Field(
        default=True,
        description="whether jobs without a promise wait for spare capacity; otherwise refused",
    )
    spare: bool = Field(
        default=True,
        description="work-conserving: whether unplanned capacity of a slot is allocated",
    )
    quota: bool = Field(
        default=True,
        description="if tenants have shares: promises to a tenant's jobs stay within its share and "
        "what no tenant owns; its jobs come first there once it was kept from half a horizon of "
        "its share. Otherwise all compete by value",
    )
    waiting: int = Field(
        default=256,
        ge=0,
        le=100_000,
        description="waiting jobs, the densest first, that are planned ahead in a slot; those "
        "behind them run on what is left",
    )
