"""Reasons why a round didn't schedule a job."""

from __future__ import annotations

from typing import Final

from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.policies.astraea.calendar import Round
from shadowprice.policies.astraea.market import Gang, RoundMarket
from shadowprice.policies.tenants.gang_jobs import MAX_UTILITY_MICROS, MICRO, GangJob
from shadowprice.policies.tenants.tenancy import TenantShares

BONUS: Final = MAX_UTILITY_MICROS // 4
"""Added to every utility to find a job's best gang even if its payoff isn't positive."""


def explain_refusal(
    tenancy: TenantShares, market: RoundMarket, gang: GangJob, turn: Round, *, borrow: bool
) -> Refusal:
    """Return the dominant reason, with the smallest change that would have helped.

    The market is that of the round after all other jobs have been scheduled.
    """
    best = market.search(gang, borrow=borrow, bonus=BONUS)
    where = f"slots {turn.start} to {turn.start + market.slots - 1}"
    if best is not None:
        return _refuse_below_price(best, turn)
    return Refusal(
        RefusalReason.NO_ROOM,
        f"no gang fits the free capacity of {where}",
        bottleneck=_bottleneck(tenancy, market, gang, where),
    )


def _refuse_below_price(gang: Gang, turn: Round) -> Refusal:
    missing = -gang.payoff / MICRO
    value, cost = gang.value / MICRO, gang.cost / MICRO
    first, last = turn.start + gang.start, turn.start + gang.end - 1
    return Refusal(
        RefusalReason.PRICE,
        f"its utility with the best gang left is {value:.6g}, not above the gang's price, "
        f"{cost:.6g}",
        value=value,
        cost=cost,
        completion=last,
        bottleneck=f"price of places in slots {first} to {last}",
        numbers={"missing": missing},
    )


def _bottleneck(tenancy: TenantShares, market: RoundMarket, gang: GangJob, where: str) -> str:
    """Return the scarcer unit type of a round: the larger fraction taken."""
    workers, ps = market.pools_for(gang)
    kinds = [(tenancy.worker_types[gang.worker_type], workers)]
    if gang.uses_ps and tenancy.ps_types:
        kinds.append((tenancy.ps_types[gang.ps_type], ps))
    taken = [
        (float(kind.taken.mean() / max(int(kind.capacity.sum()), 1)), -index)
        for index, (_, kind) in enumerate(kinds)
    ]
    name = kinds[-max(taken)[1]][0]
    return f"{name} places of {where}, {max(taken)[0]:.0%} taken"
