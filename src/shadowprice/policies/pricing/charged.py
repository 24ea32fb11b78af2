"""Offers of plans that complete the work with restarts counted.

The papers plan as if a move cost nothing. A plan that is just long enough then falls short by its
restarts, and its promise breaks. Here more and more work is planned, until the plan's progress less
its restarts covers the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from shadowprice.core.potential import planned_progress
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.core.utility import utility_value
from shadowprice.policies.placements import constant_schedule
from shadowprice.policies.pricing.offers import DerivedJob, PricedOffer

_MAX_PLANS: Final = 4  # each longer by the last shortfall; most jobs need one
_RESTART_LOSS: Final = 1e-3  # of the payoff: from it on, fixed placements are tried too
_MAX_FIXED_PLACEMENTS: Final = 8  # a plan may have hundreds of placements


class RestartAwareJob(DerivedJob):
    """A quote whose offers complete the work with their restarts counted.

    The job is not a bag, because copies don't move. If ``begun``, the first slot of a plan counts a
    restart too.
    """

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return an offer that completes the work with restarts, None if none was found."""
        plain = self._quote.best(factor, more=more)
        return None if plain is None else self.lengthen(plain, factor, more=more)

    def lengthen(
        self, plain: PricedOffer, factor: float = 1.0, *, more: int = 0
    ) -> PricedOffer | None:
        """Return an offer that completes the work with restarts, None if none was found.

        Restarts depend on all of the plan, while the search plans slot by slot. So the payoff isn't
        necessarily the maximum; that of ``plain`` bounds it. The other parameters are those that
        ``plain``, the best offer without restarts, was made with.
        """
        best = next(self._lengthen(plain, factor, more), None)
        if best is None or best.payoff < plain.payoff - _RESTART_LOSS * abs(plain.payoff):
            offers = [*self._fixed_offers(plain, factor, more), *([] if best is None else [best])]
            best = max(offers, key=lambda offer: offer.payoff, default=None)
        if best is None or plain.bound is None:
            return best
        # A fixed placement may beat the bound of a planner that rounds work up to chunks.
        return replace(best, bound=max(plain.bound, best.payoff))

    def _lengthen(self, plain: PricedOffer, factor: float, more: int) -> Iterator[PricedOffer]:
        """Yield the first plan that is long enough, of plans for more and more work."""
        remaining, offer, planned_extra = self._remaining + more, plain, more
        for _ in range(_MAX_PLANS):
            done = self._charged_progress(offer)
            if done >= remaining:
                yield offer
                return
            planned_extra += remaining - done
            longer = self._quote.best(factor, more=planned_extra)
            if longer is None:
                return
            offer = longer
        kept_share = 1 - self._job.restart
        if kept_share:
            # Enough for a restart in every slot: each keeps that share of its units, rounded down.
            slots = self._view.end - self._view.slot
            enough = -(-(remaining + slots) * kept_share.denominator // kept_share.numerator)
            longer = self._quote.best(factor, more=enough - self._remaining)
            if longer is not None and self._charged_progress(longer) >= remaining:
                yield longer

    def _charged_progress(self, offer: PricedOffer) -> int:
        """Return the progress units of an offer's plan after its restarts."""
        plan = self._quote.schedule(offer)
        return planned_progress(self._job, plan, None, charged=True, ran=self._begun)

    def _fixed_offers(self, plain: PricedOffer, factor: float, more: int) -> Iterator[PricedOffer]:
        """Yield offers that keep one placement of the plan until the work is done."""
        arrival, remaining = self._job.arrival, self._remaining + more
        first: dict[Placement, int] = {}
        for slot, placement in self._quote.schedule(plain).placements():
            first.setdefault(placement, slot)
        for placement, slot in islice(first.items(), _MAX_FIXED_PLACEMENTS):
            plan = self._fixed_plan(slot, placement, remaining)
            if plan is not None:
                utility = factor * utility_value(self._job.utility, plan.completion - arrival)
                cost = float(self._quote.slot_costs(plan).sum())
                yield PricedOffer(
                    plan.completion, utility, cost, utility - cost, plain.choice, plan=plan
                )

    def _fixed_plan(self, slot: int, placement: Placement, remaining: int) -> Schedule | None:
        """Return a plan with one placement from a slot on, None if it doesn't fit."""
        job, colocated = self._job, placement.colocated
        workers = placement.total_workers
        remaining_after = remaining - job.gain(workers, colocated=colocated, moved=self._begun)
        end = slot + 1 + max(0, -(-remaining_after // job.gain(workers, colocated=colocated)))
        if end > self._view.end:
            return None
        ledger = self._view.ledger
        used = ledger.used[slot - ledger.start : end - ledger.start]
        entries = zip(placement.servers, placement.workers, placement.ps, strict=True)
        for server, workers_on, ps_on in entries:
            demand = workers_on * job.worker
            if job.ps is not None:
                demand = demand + ps_on * job.ps
            if (used[:, server] + demand > ledger.capacity[server]).any():
                return None
        return constant_schedule(placement, slot, end)

    def explain_infeasible(self) -> Refusal | None:
        """Return why no plan completes the work; restarts, if a plan without them does."""
        plain = self._quote.best()
        if plain is None:
            return self._quote.explain_infeasible()
        loss = float(self._job.restart)
        return Refusal(
            RefusalReason.NO_ROOM,
            f"a restart takes {loss:.2g} of a slot, and no plan that is longer by that has "
            f"room; without them it would be done in slot {plain.completion}",
            completion=plain.completion,
            numbers={"restart_slots": loss},
        )
