"""Multi-tenant schedulers of gangs of fixed size, with which Astraea is compared.

Gandiva_fair divides time by tickets. HiveD guarantees each tenant cells of servers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shadowprice.policies.registry import Parameters, PolicyInfo

Size = Annotated[int, Field(ge=1)] | Literal["max", "min", "label"]

_SIZE = (
    "fixed number of workers of a job: the `max` or `min` that it allows, a number, or `label` for "
    "the number in its label `gang`; the next smaller one if an empty cluster can't carry as many"
)


class SharingParameters(Parameters):
    """Parameters shared by the gang schedulers."""

    workers: Size = Field(default="max", description=_SIZE)


class GandivaFairParameters(SharingParameters):
    """Parameters of `gandiva_fair`."""

    speeds: dict[str, dict[str, Annotated[float, Field(gt=0)]]] = Field(
        default_factory=dict,
        description="speed of each tenant's jobs by type of worker (speeds.a.worker/v100=2), by "
        "default 1; tenants trade tickets of fast types for tickets of slow types by these speeds",
    )


class HivedParameters(SharingParameters):
    """Parameters of `hived`."""

    opportunistic: bool = Field(
        default=True,
        description="whether jobs beyond their tenant's cells run on idle places until the owner "
        "needs them",
    )


_EVALUATION = "Wang et al., IEEE TC 72(3), 2023, section 5.1"

POLICIES = (
    PolicyInfo(
        name="gandiva_fair",
        summary="Split stride: tenants take turns in proportion to their shares, slot by slot, "
        "with gangs of fixed size.",
        paper=f"Chaudhary et al., EuroSys 2020; as {_EVALUATION} runs it",
        parameters=GandivaFairParameters,
        build="shadowprice.policies.sharing.gandiva_fair:GandivaFairPolicy",
        counts_places=True,
        details="Placement is ignored; jobs may move from slot to slot at no cost. Long-run shares "
        "of tenants with enough work are proportional to their tickets. Tickets are traded between "
        "types of workers only at given speeds. Left out: profiling, the cost of moving.",
    ),
    PolicyInfo(
        name="hived",
        summary="A virtual private cluster of cells for every tenant, available at any time; idle "
        "cells run jobs of other tenants until the owner needs them.",
        paper=f"Zhao et al., OSDI 2020; as {_EVALUATION} runs it",
        parameters=HivedParameters,
        build="shadowprice.policies.sharing.hived:HivedPolicy",
        counts_places=True,
        details="Cells of 2^k places within a server, buddy allocation. Parameter servers are "
        "reserved by count. Left out: levels above a server, reconfiguration of cells.",
    ),
)
