"""Reasons for which a priced planner refuses a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shadowprice.core.job import Job
from shadowprice.core.policy import View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import utility_value
from shadowprice.policies.pricing.offers import PricedJob, PricedOffer

_MAX_NEWTON_STEPS = 20
_DISTANT_FACTOR = 1e9
"""Factor at which the plan of maximum utility has the maximum payoff, per unit of cost."""
_MAX_FACTOR = 1e200  # maximum factor: more would overflow if the utility is nearly 0


def build_refusal(
    quote: PricedJob, view: View, job: Job, offer: PricedOffer | None, remaining: int
) -> Refusal:
    """Return the reason of a refusal with its numbers.

    ``offer`` is the best plan, with a payoff of at most 0; None if there is none.
    """
    if offer is None:
        return quote.explain_infeasible() or _no_schedule(quote, view, remaining)
    _, nearest = min_acceptance_factor(quote, job, offer)
    if nearest is None:
        return _no_value(quote, view, job, offer, remaining)
    return Refusal(
        RefusalReason.PRICE,
        f"its utility by slot {nearest.completion} is {nearest.utility:.4g}, not above the price "
        f"of its best plan, {nearest.cost:.4g}",
        value=nearest.utility,
        cost=nearest.cost,
        completion=nearest.completion,
        bottleneck=_most_expensive_resource(quote, nearest),
        numbers={"payoff": offer.payoff},
    )


def _no_value(quote: PricedJob, view: View, job: Job, offer: PricedOffer, work: int) -> Refusal:
    """Return the refusal of a job that could only complete after its utility is gone."""
    durations = np.arange(view.slot - job.arrival, view.end - job.arrival)
    useful = int(np.count_nonzero(job.utility.values(durations) > 0))
    shortest = -(-work // max(quote.max_gain(), 1))
    numbers = {"slots_needed": shortest, "slots_with_value": useful}
    if shortest > useful:
        return Refusal(
            RefusalReason.NO_VALUE,
            f"needs {shortest} slots with its maximum number of workers, and its utility is 0 "
            f"after {useful}",
            value=0.0,
            cost=offer.cost,
            completion=offer.completion,
            numbers=numbers,
        )
    bottleneck = quote.find_bottleneck()
    return Refusal(
        RefusalReason.NO_ROOM,
        f"too little free capacity to complete by slot {view.slot + useful - 1}, after which its "
        f"utility is 0; planned for slot {offer.completion} at best",
        value=0.0,
        cost=offer.cost,
        completion=offer.completion,
        bottleneck=f"{bottleneck.resource} of {bottleneck.where}",
        numbers=numbers,
    )


def _no_schedule(quote: PricedJob, view: View, work: int) -> Refusal:
    slots = view.end - view.slot
    shortest = -(-work // max(quote.max_gain(), 1))
    if shortest > slots:
        limit = "timespan" if view.until == view.end else "planning horizon"
        return Refusal(
            RefusalReason.TOO_LATE,
            f"needs {shortest} slots with its maximum number of workers, and the {limit} has "
            f"{max(slots, 0)} left",
            bottleneck=f"{limit} ending at slot {view.end}",
            numbers={"slots_needed": shortest, "slots_left": max(slots, 0)},
        )
    bottleneck = quote.find_bottleneck()
    return Refusal(
        RefusalReason.NO_ROOM,
        f"free {bottleneck.resource} capacity is only enough for {bottleneck.room:.3g} "
        f"{bottleneck.kind} a slot on average until slot {view.end}",
        bottleneck=f"{bottleneck.resource} of {bottleneck.where}",
        numbers={"mean_room": bottleneck.room},
    )


def _most_expensive_resource(quote: PricedJob, offer: PricedOffer) -> str:
    """Return the most expensive resource of a plan, its part of the cost, and its slots."""
    schedule = quote.schedule(offer)
    label, amount = quote.most_expensive(schedule)
    span = f"slots {schedule.start} to {schedule.completion}"
    return f"{label}, {amount / max(offer.cost, 1e-300):.0%} of the cost over {span}"


def min_acceptance_factor(
    quote: PricedJob, job: Job, offer: PricedOffer
) -> tuple[float, PricedOffer | None]:
    """Return the minimum factor on the utility at which some plan has a payoff of 0, and that plan.

    The factor is the minimum of cost / utility over completion slots. Newton's method on the
    largest payoff as a function of the factor (Dinkelbach) takes a few steps, each one exact
    search. It starts from the offer, or from the plan of maximum utility if the offer has no
    utility. The plan is None if none has a utility.
    """
    nearest: PricedOffer | None = None
    if offer.utility > 0 and offer.cost / offer.utility < _DISTANT_FACTOR:
        nearest, factor = offer, offer.cost / offer.utility
    else:
        at_best = max(utility_value(job.utility, 0), 1.0 / _MAX_FACTOR)
        factor = min(_DISTANT_FACTOR * max(offer.cost, 1.0) / at_best, _MAX_FACTOR)
    for _ in range(_MAX_NEWTON_STEPS):
        better = quote.best(factor)
        if better is None or (nearest is not None and better.payoff <= 1e-9 * better.cost):
            break
        value = utility_value(job.utility, better.completion - job.arrival)
        if value <= 0:
            break
        nearest = replace(better, utility=value, payoff=value - better.cost)
        if better.cost >= _MAX_FACTOR * value:
            break
        factor = better.cost / value
    return factor, nearest
