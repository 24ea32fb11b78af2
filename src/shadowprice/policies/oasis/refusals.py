"""Why OASiS refused a job, and the smallest change that would have been admitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shadowprice.core.job import Job
from shadowprice.core.policy import View
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.utility import utility_value
from shadowprice.policies.oasis.planner import Offer, Planner

_STEPS = 20


def explain(
    planner: Planner, view: View, job: Job, offer: Offer | None, remaining: int | None = None
) -> Refusal:
    """Return the reason of a refusal with its numbers.

    Parameters
    ----------
    planner : Planner
        At the prices that the job met.
    view : View
        The state it was decided on.
    job : Job
        The job.
    offer : Offer or None
        The best schedule, of payoff 0 or less; None if there is none.
    remaining : int, optional
        Progress units to make; by default the whole job.
    """
    work = job.required if remaining is None else remaining
    if offer is None:
        return _no_schedule(planner, view, job, work)
    factor, nearest = _least_factor(planner, view, job, offer, work)
    if nearest is None:
        return Refusal(
            Reason.NO_VALUE,
            f"nothing is left of its utility by slot {offer.completion}, the earliest it could end",
            value=0.0,
            cost=offer.cost,
            completion=offer.completion,
            change="a later deadline or target",
        )
    return Refusal(
        Reason.PRICE,
        f"worth {nearest.utility:.4g} if completed in slot {nearest.completion}, but what it would "
        f"use costs {nearest.cost:.4g}",
        value=nearest.utility,
        cost=nearest.cost,
        completion=nearest.completion,
        bottleneck=_dearest(planner, view, job, nearest),
        change=f"a utility more than {factor:.4g} times as large",
        numbers={"payoff": offer.payoff, "utility_factor": factor},
    )


def _no_schedule(planner: Planner, view: View, job: Job, work: int) -> Refusal:
    slots = view.end - view.slot
    shortest = -(-work // int(job.gains.max()))
    if shortest > slots:
        limit = "timespan" if view.until == view.end else "planning horizon"
        return Refusal(
            Reason.TOO_LATE,
            f"needs {shortest} slots at full width, {max(slots, 0)} are left in the {limit}",
            bottleneck=f"{limit} ending at slot {view.end}",
            change=f"less work, more workers at once, or {shortest - max(slots, 0)} more slots",
            numbers={"slots_needed": shortest, "slots_left": max(slots, 0)},
        )
    boards = [(planner.workers, False)] + ([(planner.servers, True)] if job.ps is not None else [])
    rooms = [
        (*board.scarcest(job, ps=ps, ledger=view.ledger, slots=slots), ps) for board, ps in boards
    ]
    # Parameter servers are needed in proportion: compare the workers that each pool allows.
    per_worker = float(job.ps_counts[-1] / job.worker_counts[-1]) if job.ps is not None else 1.0
    column, room, ps = min(rooms, key=lambda r: r[1] / (per_worker if r[2] else 1.0))
    resource = view.cluster.resources[column]
    kind = "parameter servers" if ps else "workers"
    return Refusal(
        Reason.NO_ROOM,
        f"no room: {resource} leaves place for {room:.3g} {kind} a slot on average until slot "
        f"{view.end}",
        bottleneck=f"{resource} of {'parameter-server' if ps else 'worker'} servers",
        change=f"less {resource} per {kind[:-1]}, fewer epochs, or a later arrival",
        numbers={"mean_room": room},
    )


def _dearest(planner: Planner, view: View, job: Job, offer: Offer) -> str:
    """Return the resource that makes up most of the cost, and from when to when it is paid."""
    schedule = planner.schedule(job, view.slot, offer)
    best = ("", -1.0)
    for board, counts, demand in (
        (planner.workers, schedule.workers, job.worker),
        (planner.servers, schedule.ps, job.ps),
    ):
        if demand is None:
            continue
        share = board.pool.shares(demand)
        position = {int(server): at for at, server in enumerate(board.servers)}
        total = np.zeros(len(share))
        for slot in schedule.active_slots:
            here = np.flatnonzero((schedule.slots == slot) & (counts > 0))
            prices = board.server_prices(view.ledger, int(slot) - view.slot)
            rows = [position[int(server)] for server in schedule.servers[here]]
            total += (counts[here, None] * prices[rows] * share).sum(axis=0)
        kind = "worker" if board is planner.workers else "parameter-server"
        column = int(np.argmax(total))
        if total[column] > best[1]:
            best = (f"{view.cluster.resources[column]} of {kind} servers", float(total[column]))
    span = f"slots {schedule.start} to {schedule.completion}"
    return f"{best[0]}, {best[1] / max(offer.cost, 1e-300):.0%} of the cost over {span}"


def _least_factor(
    planner: Planner, view: View, job: Job, offer: Offer, work: int
) -> tuple[float, Offer | None]:
    """Return the least factor on the utility at which some schedule has a payoff of 0.

    It is the minimum of cost / utility over completion slots. Newton's method on the largest payoff
    as a function of the factor (Dinkelbach) takes a few steps, each one exact search; it starts
    from the schedule of largest utility.

    Returns
    -------
    (float, Offer or None)
        The factor, and the schedule that attains it; None if no schedule has any utility.
    """
    factor = 1e9 * max(offer.cost, 1.0) / max(utility_value(job.utility, 0), 1e-300)
    nearest: Offer | None = None
    for _ in range(_STEPS):
        better = planner.best(job, view.slot, view.end, work, factor)
        if better is None or (nearest is not None and better.payoff <= 1e-9 * better.cost):
            break
        value = utility_value(job.utility, better.completion - job.arrival)
        if value <= 0:
            break
        nearest = replace(better, utility=value, payoff=value - better.cost)
        factor = better.cost / value
    return factor, nearest
