"""Offers of promises, and the messages of refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shadowprice.core.job import Job
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import utility_value
from shadowprice.policies.rolling.quotas import ShareLimit


@dataclass(frozen=True, slots=True)
class Offer:
    """A plan that a job could have."""

    tried_end: int  # latest completion slot that was tried
    ceiling: int  # position on the job's hulls of the highest level that the plan takes
    completion: int  # completion slot of the plan
    utility: float  # of that completion
    cost: float  # at current prices

    def refusal(
        self, reason: RefusalReason, message: str, bottleneck: str | None = None
    ) -> Refusal:
        """Return a refusal with the figures of the offer."""
        return Refusal(
            reason,
            message,
            value=self.utility,
            cost=self.cost,
            completion=self.completion,
            bottleneck=bottleneck,
        )


def could_be_promised(refusal: Refusal) -> bool:
    """Return whether a job that waits would have a plan if no other job existed.

    Only such a plan has a cost. A job without one never pays, so no price is learnt from it.
    """
    return refusal.cost is not None


def refuse_late(job: Job, done: int, *, ends_first: bool) -> Refusal:
    """Return the refusal of a job whose earliest completion is without utility.

    ``ends_first`` is whether only the end of the timespan keeps it from completing.
    """
    return Refusal(
        RefusalReason.TOO_LATE if ends_first else RefusalReason.NO_VALUE,
        f"it could complete in slot {done} at the earliest, "
        f"{'and the timespan ends before' if ends_first else 'when its utility is 0'}",
        value=utility_value(job.utility, done - job.arrival),
        completion=done,
        bottleneck="end of the timespan" if ends_first else None,
    )


def refuse_too_late(
    name: str, slot: int, *, share: ShareLimit | None, ends: bool, unavailable: Sequence[str]
) -> Refusal:
    """Return the refusal of a job that no plan completes in time, even alone.

    ``share`` is what limits it in its tenant's share; None if its tenant has none. ``unavailable``
    has the names of servers that take no work.
    """
    if share is not None and share.is_exceeded:
        return Refusal(
            RefusalReason.TOO_LATE,
            f"no plan completes {name} in its tenant's share and what no tenant owns: it needs "
            f"{share.needed} {share.resource}, and they have {share.available}",
            bottleneck=share.resource,
        )
    scope = "in the cluster"
    if share is not None:
        scope = f"in its tenant's share and what no tenant owns, {share.available} {share.resource}"
    return Refusal(
        RefusalReason.TOO_LATE,
        f"no plan from slot {slot} on is certain to complete {name} before its utility is gone"
        f"{' or the timespan ends' if ends else ''}, even without other jobs {scope}"
        f"{_list_unavailable(unavailable)}",
        bottleneck=None if share is None else share.resource,
    )


def _list_unavailable(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 1} other servers" if len(names) > 2 else ""
    shown = f"{names[0]}{more}" if more else " and ".join(names)
    return f"; {shown} {'are' if len(names) > 1 else 'is'} unavailable"


def refuse_below_price(offer: Offer) -> Refusal:
    """Return the refusal of a job whose utility is below the cost of its plan."""
    lacks = offer.cost - offer.utility
    is_clear = lacks > 1e-4 * offer.cost
    relation, more = ("below", f": it lacks {lacks:.4g}") if is_clear else ("not above", "")
    return offer.refusal(
        RefusalReason.PRICE,
        f"its utility by slot {offer.completion} is {offer.utility:.4g}, {relation} the price of "
        f"its plan, {offer.cost:.4g}{more}",
    )


def refuse_little_utility(offer: Offer, full: float, share: float) -> Refusal:
    """Return the refusal of a promise that earns less than a share of the maximum utility.

    ``full`` is the job's utility if it completed as early as possible.
    """
    return offer.refusal(
        RefusalReason.POLICY,
        f"its utility by slot {offer.completion} is {offer.utility:.4g}, less than {share:.0%} of "
        f"its maximum, {full:.4g}",
    )


def refuse_little_evidence(
    offer: Offer, used: float, evidence: float, observed: float, factor: float
) -> Refusal:
    """Return the refusal of a job that is large compared with the demand observed so far.

    ``used`` is the minimum use of the job, ``observed`` how long demand was observed, both in slots
    of the whole cluster. The limit is their part ``evidence``, times ``factor`` for a lone job.
    """
    terms = f"evidence {evidence:g} x {_digits(observed)} slots observed"
    if factor > 1:
        terms += f" x {factor:g} for a lone job"
    return offer.refusal(
        RefusalReason.POLICY,
        f"its utility by slot {offer.completion} is {offer.utility:.4g}; it takes at least "
        f"{_digits(used)} slots of the whole cluster, more than the limit of a promise, "
        f"{_digits(evidence * observed * factor)} slots ({terms}); it gets a promise when more was "
        "observed, or less work remains",
    )


def _digits(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"


def refuse_many_changes(offer: Offer, max_runs: int) -> Refusal:
    """Return the refusal of a job whose plan has more than ``max_runs`` runs of equal slots."""
    return offer.refusal(
        RefusalReason.POLICY,
        f"its utility by slot {offer.completion} is {offer.utility:.4g}, but its plan beside the "
        f"promised jobs would change its number of workers at least {max_runs} times; a promise "
        f"allows {max_runs - 1} changes",
    )


def refuse_no_capacity(
    best_offer: Offer, blocking_job: str | None, earliest: int | None
) -> Refusal:
    """Return the refusal of a job that doesn't fit beside the promised jobs.

    ``best_offer`` is the job's best plan without other jobs. The promise to ``blocking_job`` would
    break; if it is None, the job itself finds no plan. ``earliest`` is the first slot in which the
    job could complete beside all promises, whatever its utility.
    """
    cause = "promises leave no capacity"
    if blocking_job:
        cause = f"the promise to {blocking_job} would break"
    hint = "" if earliest is None else f"; beside all promises it could complete by slot {earliest}"
    return best_offer.refusal(
        RefusalReason.NO_ROOM,
        f"without other jobs, its utility by slot {best_offer.completion} is "
        f"{best_offer.utility:.4g}, but {cause}{hint}",
        blocking_job,
    )
