"""Offers of promises, and the messages of refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shadowprice.core.bag import TaskCopies
from shadowprice.core.events import Decision, Drop, Promise, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, Status
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.utility import utility_value
from shadowprice.policies.rolling.quotas import ShareLimit

NO_CEILING: Final = -1  # of an offer whose plan isn't to be allocated in a timeline


@dataclass(frozen=True, slots=True)
class Offer:
    """A plan that a job could have."""

    target: int  # slot by which it was to complete, at the latest; replaces a broken promise
    ceiling: int  # position on the job's hulls of the highest level that the plan takes
    completion: int  # slot in which the plan completes
    utility: float  # of that completion
    cost: float  # at current prices

    def promise(
        self, name: str, slot: int, message: str = "", copies: tuple[TaskCopies, ...] = ()
    ) -> Promise:
        """Return the promise that the plan completes by the end of a slot."""
        payoff = self.utility - self.cost
        return Promise(
            name, slot, self.completion, payoff, self.utility, self.cost, message, copies
        )

    def refuse_below_price(self) -> Refusal:
        """Return the refusal of a job whose utility isn't above the cost of its plan."""
        lacks = self.cost - self.utility
        is_clear = lacks > 1e-4 * self.cost
        relation, detail = ("below", f": it lacks {lacks:.4g}") if is_clear else ("not above", "")
        return self._refuse(
            RefusalReason.PRICE, f", {relation} the price of its plan, {self.cost:.4g}{detail}"
        )

    def refuse_little_utility(self, maximum: float, share: float) -> Refusal:
        """Return the refusal of a promise that earns less than a share of the maximum utility."""
        return self._refuse(
            RefusalReason.POLICY, f", less than {share:.0%} of its maximum, {maximum:.4g}"
        )

    def refuse_little_evidence(
        self, used: float, evidence: float, observed: float, factor: float
    ) -> Refusal:
        """Return the refusal of a job that is large compared with the demand observed so far.

        ``used`` is the minimum use of the job, and ``observed`` how long demand was observed, both
        in slots of the whole cluster. The limit is ``evidence`` x ``observed`` x ``factor``; the
        factor is above 1 for a lone job.
        """
        terms = f"evidence {evidence:g} x {_digits(observed)} slots observed"
        if factor > 1:
            terms += f" x {factor:g} for a lone job"
        return self._refuse(
            RefusalReason.POLICY,
            f"; it takes at least {_digits(used)} slots of the whole cluster, more than the limit "
            f"of a promise, {_digits(evidence * observed * factor)} slots ({terms}); it gets a "
            "promise when more was observed, or less work remains",
        )

    def refuse_many_changes(self, max_runs: int) -> Refusal:
        """Return the refusal of a job whose plan has more than ``max_runs`` runs of equal slots."""
        return self._refuse(
            RefusalReason.POLICY,
            ", but its plan beside the promised jobs would change its number of workers at least "
            f"{max_runs} times; a promise allows {max_runs - 1} changes",
        )

    def refuse_no_capacity(self, blocking_job: str | None, earliest: int | None) -> Refusal:
        """Return the refusal of a job with this plan that doesn't fit beside the promised jobs.

        The promise to ``blocking_job`` would break; if it is None, the job itself finds no plan.
        ``earliest`` is the first slot in which the job could complete beside all promises, whatever
        its utility.
        """
        detail = ", but promises leave no capacity"
        if blocking_job:
            detail = f", but the promise to {blocking_job} would break"
        if earliest is not None:
            detail += f"; beside all promises it could complete by slot {earliest}"
        return self._refuse(RefusalReason.NO_ROOM, detail, blocking_job, "without other jobs, ")

    def _refuse(
        self, reason: RefusalReason, detail: str, bottleneck: str | None = None, scope: str = ""
    ) -> Refusal:
        """Return a refusal with the figures of the offer, with ``detail`` after its utility."""
        message = f"{scope}its utility by slot {self.completion} is {self.utility:.4g}{detail}"
        return Refusal(
            reason,
            message,
            value=self.utility,
            cost=self.cost,
            completion=self.completion,
            bottleneck=bottleneck,
        )


def end_waiting(state: JobState, refusal: Refusal) -> Decision:
    """Return the decision that ends a waiting job: abandoned if it was promised or ran."""
    has_run = state.status is Status.ADMITTED or state.started is not None
    return (Drop if has_run else Reject)(state.job.name, refusal)


def refuse_late(job: Job, done: int, *, ends_first: bool) -> Refusal:
    """Return the refusal of a job whose utility is 0 at its earliest completion, ``done``.

    ``ends_first`` is whether it would have a utility if the timespan didn't end before.
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

    ``share`` is the limit of its tenant's share, None without a share. ``ends`` is whether the
    timespan has an end. ``unavailable`` has the names of servers that take no work.
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
    detail = f" and {len(names) - 1} other servers" if len(names) > 2 else ""
    shown = f"{names[0]}{detail}" if detail else " and ".join(names)
    return f"; {shown} {'are' if len(names) > 1 else 'is'} unavailable"


def _digits(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"
