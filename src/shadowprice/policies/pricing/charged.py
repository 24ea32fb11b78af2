"""Offers of plans that are long enough for what restarts take from them.

The papers plan as if moving cost nothing. A plan that is just long enough then falls short by its
restarts, and what it promised is broken. Here more and more work is planned, until what a plan does
with every restart of its own counted is the work that there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.job import Job
from shadowprice.core.policy import View
from shadowprice.core.potential import potential
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.core.utility import utility_value
from shadowprice.policies.pricing.offers import Offer, Outpriced, Quote, Scarcity

_TRIES: Final = 4
"""Plans that are tried for what the one before fell short by; most need one."""

_LOSS: Final = 1e-3
"""Part of the payoff without restarts from which on staying is tried as well."""

_STAYS: Final = 8
"""Placements of a plan in which staying is tried; on a large cluster a plan may have hundreds."""


class Charged:
    """A quote whose offers complete the work with their restarts counted.

    Parameters
    ----------
    quote : Quote
        The job at the prices of the moment, as if moving cost nothing.
    view : View
        The state it was made on.
    job : Job
        The job; no bag, as copies do not move.
    remaining : int
        Progress units to make.
    begun : bool
        Whether the first slot of a plan loses a restart as well.
    """

    def __init__(self, quote: Quote, view: View, job: Job, remaining: int, *, begun: bool) -> None:
        self._quote = quote
        self._view = view
        self._job = job
        self._remaining = remaining
        self._begun = begun

    def best(self, factor: float = 1.0, *, more: int = 0) -> Offer | None:
        """Return an offer that restarts leave long enough, None where none was found."""
        plain = self._quote.best(factor, more=more)
        return None if plain is None else self.lengthened(plain, factor, more=more)

    def lengthened(self, plain: Offer, factor: float = 1.0, *, more: int = 0) -> Offer | None:
        """Return an offer that restarts leave long enough in place of the best without them.

        Its payoff need not be the largest: restarts depend on the whole plan, and the search looks
        at a slot at a time. That of the best without them is a bound of it.

        Parameters
        ----------
        plain : Offer
            What the quote without restarts offers.
        factor, more
            As `best` takes them, and as the offer was made with.

        Returns
        -------
        Offer or None
            None where none was found.
        """
        found = next(self._longer(plain, factor, more), None)
        if found is None or found.payoff < plain.payoff - _LOSS * abs(plain.payoff):
            offers = [*self._staying(plain, factor, more), *([] if found is None else [found])]
            found = max(offers, key=lambda offer: offer.payoff, default=None)
        if found is None or plain.bound is None:
            return found
        # Work that is planned in whole chunks takes longer than where it stays.
        return replace(found, bound=max(plain.bound, found.payoff))

    def _longer(self, plain: Offer, factor: float, more: int) -> Iterator[Offer]:
        """Return the first plan that is long enough, of those for more and more work."""
        remaining, offer, asked = self._remaining + more, plain, more
        for _ in range(_TRIES):
            done = self._done(offer)
            if done >= remaining:
                yield offer
                return
            asked += remaining - done
            longer = self._quote.best(factor, more=asked)
            if longer is None:
                return
            offer = longer
        kept = 1 - self._job.restart
        if kept:
            # Whatever moves, this is enough: of each slot's units so many are kept, rounded down.
            slots = self._view.end - self._view.slot
            enough = -(-(remaining + slots) * kept.denominator // kept.numerator)
            longer = self._quote.best(factor, more=enough - self._remaining)
            if longer is not None and self._done(longer) >= remaining:
                yield longer

    def _done(self, offer: Offer) -> int:
        """Return the progress units of an offer's plan, less what its restarts take."""
        plan = self._quote.schedule(offer)
        return potential(self._job, plan, None, charged=True, ran=self._begun)

    def _staying(self, plain: Offer, factor: float, more: int) -> Iterator[Offer]:
        """Return offers of one placement of the plan each, for as long as the work takes there."""
        arrival, remaining = self._job.arrival, self._remaining + more
        first: dict[Placement, int] = {}
        for slot, placement in self._quote.schedule(plain).placements():
            first.setdefault(placement, slot)
        for placement, slot in islice(first.items(), _STAYS):
            plan = self._stay(slot, placement, remaining)
            if plan is not None:
                worth = factor * utility_value(self._job.utility, plan.completion - arrival)
                cost = float(self._quote.slot_costs(plan).sum())
                yield Offer(plan.completion, worth, cost, worth - cost, plain.choice, plan=plan)

    def _stay(self, slot: int, placement: Placement, remaining: int) -> Schedule | None:
        """Return a plan of one placement from a slot on, None where there is no room for it."""
        job, colocated = self._job, placement.colocated
        workers = placement.total_workers
        left = remaining - job.gain(workers, colocated=colocated, moved=self._begun)
        end = slot + 1 + max(0, -(-left // job.gain(workers, colocated=colocated)))
        if end > self._view.end:
            return None
        ledger = self._view.ledger
        used = ledger.used[slot - ledger.start : end - ledger.start]
        entries = list(zip(placement.servers, placement.workers, placement.ps, strict=True))
        for server, count, servers in entries:
            wanted = count * job.worker
            if job.ps is not None:
                wanted = wanted + servers * job.ps
            if (used[:, server] + wanted > ledger.capacity[server]).any():
                return None
        return Schedule.of((at, *entry) for at in range(slot, end) for entry in entries)

    def outpriced(self) -> Outpriced | None:
        """Return a bound where even a plan without restarts costs more than it is worth."""
        return self._quote.outpriced()

    def schedule(self, offer: Offer) -> Schedule:
        """Return where the workers and parameter servers of an offer stand."""
        return self._quote.schedule(offer) if offer.plan is None else offer.plan

    def fastest(self) -> int:
        """Return the most progress units that one slot can add, in an empty cluster."""
        return self._quote.fastest()

    def hopeless(self) -> Refusal | None:
        """Return why nothing completes the work: restarts, where all else would do."""
        plain = self._quote.best()
        if plain is None:
            return self._quote.hopeless()
        takes = float(self._job.restart)
        return Refusal(
            Reason.NO_ROOM,
            f"a restart takes {takes:.2g} of a slot, and no plan that is longer by that has "
            f"room; without them it would be done in slot {plain.completion}",
            completion=plain.completion,
            numbers={"restart_slots": takes},
        )

    def scarcest(self) -> Scarcity:
        """Return what leaves the least room over the slots in which the job could run."""
        return self._quote.scarcest()

    def dearest(self, schedule: Schedule) -> tuple[str, float]:
        """Return the resource that makes up most of a schedule's cost, and that cost."""
        return self._quote.dearest(schedule)

    def slot_costs(self, schedule: Schedule) -> NDArray[np.float64]:
        """Return what a schedule costs in each of its active slots."""
        return self._quote.slot_costs(schedule)
