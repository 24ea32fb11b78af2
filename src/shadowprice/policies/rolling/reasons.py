"""Why a job got no promise, told by what it would have displaced and what it lacks."""

from __future__ import annotations

from shadowprice.core.job import Job
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.utility import utility_value
from shadowprice.policies.rolling.planner import Offer


def worthless(job: Job, slot: int) -> Refusal:
    """Return the reason of a job that cannot complete while it is worth anything."""
    done = slot + job.fastest_slots - 1
    return Refusal(
        Reason.NO_VALUE,
        f"nothing is left of its utility by slot {done}, the first in which it could complete",
        value=utility_value(job.utility, done - job.arrival),
        completion=done,
    )


def past_end(job: Job, slot: int) -> Refusal:
    """Return the reason of a job that can't complete before the timespan ends."""
    done = slot + job.fastest_slots - 1
    return Refusal(
        Reason.TOO_LATE,
        f"slot {done} is the first in which it could complete, and the timespan ends before",
        value=utility_value(job.utility, done - job.arrival),
        completion=done,
        bottleneck="end of the timespan",
    )


def too_late(name: str, slot: int, *, shares: bool, ends: bool) -> Refusal:
    """Return the reason of a job that no plan completes in time, even alone."""
    where = "in its tenant's share and what nobody owns" if shares else "in the cluster"
    return Refusal(
        Reason.TOO_LATE,
        f"even alone {where} {name} finds no plan that surely completes it from slot {slot} on "
        f"before its utility is gone{' or the timespan ends' if ends else ''}",
    )


def unsettled(loss: float, limit: float) -> Refusal:
    """Return the reason of a job that loses so much whenever it moves that nothing is promised."""
    return Refusal(
        Reason.POLICY,
        f"each move costs it {loss:.3g} of a slot, and from {limit:.3g} on (restart_limit) nothing "
        "is promised: a plan that holds whatever moves would take too much room",
    )


def dear(found: Offer) -> Refusal:
    """Return the reason of a job that is worth less than what it would displace."""
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
    """Return the reason of a job that takes more than is known of what others will want.

    Parameters
    ----------
    found : Offer
        What it could have.
    takes : float
        Slots of the whole cluster that it takes at least.
    watched : float
        Slots for which demand has been watched.
    little : bool
        Whether that is little of what the job would be worth at once.
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
    """Return the reason of a job that cannot be promised beside what is promised already.

    Parameters
    ----------
    best : Offer
        What it could have alone.
    holder : str or None
        A job whose promise would break; None where the job itself finds no room.
    earliest : int or None
        First slot in which it could complete beside all promises, whatever it is worth then.
    """
    who = f"the promise to {holder} would break" if holder else "what is promised leaves no room"
    then = "" if earliest is None else f"; beside all promises it could complete by slot {earliest}"
    return Refusal(
        Reason.NO_ROOM,
        f"worth {best.utility:.4g} by slot {best.done} if it were alone, but {who}{then}",
        value=best.utility,
        cost=best.cost,
        completion=best.done,
        bottleneck=holder,
    )
