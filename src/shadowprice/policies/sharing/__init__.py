"""Multi-tenant schedulers of fixed-size gangs, with which Astraea is compared.

Gandiva_fair divides time by tickets, HiveD guarantees cells.
"""

from shadowprice.policies.registry import PolicyInfo
from shadowprice.policies.sharing.parameters import GandivaFairParameters, HivedParameters

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
