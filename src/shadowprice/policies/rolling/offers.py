"""Offers of promises, and their refusals: the jobs displaced, and what the job lacks."""

from __future__ import annotations

from dataclasses import dataclass

from shadowprice.core.job import Job
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.utility import utility_value


@dataclass(frozen=True, slots=True)
class Offer:
    """A plan that a job could have.

    Parameters
    ----------
    end : int
        Latest completion slot that was tried.
    ceiling : int
        Position on the job's hulls of the highest level that the plan takes.
    done : int
        Completion slot of the plan.
    utility, cost : float
        Utility of completing then, and the plan's cost at current prices.
    """

    end: int
    ceiling: int
    done: int
    utility: float
    cost: float


def worthless(job: Job, done: int) -> Refusal:
    """Return the refusal of a job without utility in the first slot in which it can complete."""
    return Refusal(
        Reason.NO_VALUE,
        f"nothing is left of its utility by slot {done}, the first in which it could complete",
        value=utility_value(job.utility, done - job.arrival),
        completion=done,
    )


def past_end(job: Job, done: int) -> Refusal:
    """Return the refusal of a job that the end of the timespan keeps from completing."""
    return Refusal(
        Reason.TOO_LATE,
        f"slot {done} is the first in which it could complete, and the timespan ends before",
        value=utility_value(job.utility, done - job.arrival),
        completion=done,
        bottleneck="end of the timespan",
    )


def too_late(name: str, slot: int, *, shares: bool, ends: bool) -> Refusal:
    """Return the refusal of a job that no plan completes in time, even alone."""
    where = "in its tenant's share and what nobody owns" if shares else "in the cluster"
    return Refusal(
        Reason.TOO_LATE,
        f"even alone {where} {name} finds no plan that surely completes it from slot {slot} on "
        f"before its utility is gone{' or the timespan ends' if ends else ''}",
    )


def unsettled(loss: float, limit: float) -> Refusal:
    """Return the refusal of a job whose restarts cost too much for a promise."""
    return Refusal(
        Reason.POLICY,
        f"each move costs it {loss:.3g} of a slot, and from {limit:.3g} on (restart_limit) nothing "
        "is promised: a plan that holds whatever moves would take too much room",
    )


def dear(found: Offer) -> Refusal:
    """Return the refusal of a job whose utility is below the cost of its plan."""
    lacks = found.cost - found.utility
    more = f": it lacks {lacks:.4g}" if lacks > 1e-4 * found.cost else ""
    return Refusal(
        Reason.PRICE,
        f"worth {found.utility:.4g} by slot {found.done}, but jobs worth {found.cost:.4g} are "
        f"likely to want what it would take{more}",
        value=found.utility,
        cost=found.cost,
        completion=found.done,
    )


def early(found: Offer, takes: float, watched: float, *, little: bool) -> Refusal:
    """Return the refusal of a job that is large compared with the demand observed so far.

    Parameters
    ----------
    found : Offer
        Best plan of the job.
    takes : float
        Minimum use of the job, in slots of the whole cluster.
    watched : float
        Slots in which demand was observed.
    little : bool
        Whether the plan earns little of the job's utility at arrival.
    """
    of_it = ", little of what it would be at once" if little else ""
    return Refusal(
        Reason.POLICY,
        f"worth {found.utility:.4g} by slot {found.done}{of_it}, but it takes "
        f"at least {takes:.3g} slots of the whole cluster, and what others want was watched for "
        f"{watched:.3g}: it is promised when more is known, or less is left",
        value=found.utility,
        cost=found.cost,
        completion=found.done,
    )


def crowded(best: Offer, holder: str | None, earliest: int | None) -> Refusal:
    """Return the refusal of a job that doesn't fit beside the promised jobs.

    Parameters
    ----------
    best : Offer
        Best plan of the job alone.
    holder : str or None
        Job whose promise would break; None if the job itself finds no plan.
    earliest : int or None
        First slot in which the job could complete beside all promises, whatever its utility.
    """
    cause = f"the promise to {holder} would break" if holder else "what is promised leaves no room"
    hint = "" if earliest is None else f"; beside all promises it could complete by slot {earliest}"
    return Refusal(
        Reason.NO_ROOM,
        f"worth {best.utility:.4g} by slot {best.done} if it were alone, but {cause}{hint}",
        value=best.utility,
        cost=best.cost,
        completion=best.done,
        bottleneck=holder,
    )
