"""Best schedule of one job at current prices: problem (27), exactly or within a gap."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.job import MICRO, Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots.costs import expand_choices, slot_costs
from shadowprice.kernels.slots.groups import Groups
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.offers import PricedOffer
from shadowprice.policies.pricing.posted import PostedPrices

_NEAR_SLOTS = 8
"""Slots after twice the shortest duration that are searched first; most jobs need no later ones."""


class ScheduleSearch:
    """Searches schedules on two disjoint pools of servers, for workers and for parameter servers.

    With ``literal``, every slot trains whole chunks, as Algorithm 2 is printed. Prices in
    ``posted`` are added to those of the boards. A schedule is optimal within the relative ``gap``
    to the largest payoff.
    """

    def __init__(
        self,
        workers: PriceBoard,
        servers: PriceBoard,
        slot_seconds: Fraction,
        *,
        literal: bool,
        posted: PostedPrices | None = None,
        gap: float = 0.0,
    ) -> None:
        self.workers = workers
        self.servers = servers
        self._slot_seconds = float(slot_seconds)
        self._literal = literal
        self._gap = gap
        self.posted = posted

    def follow(self, ledger: LedgerView) -> None:
        """Update both boards from the ledger."""
        self.workers.follow(ledger)
        self.servers.follow(ledger)

    def costs(self, job: Job, slots: int) -> Floats:
        """Return the least cost of each number of workers in each slot, COST_t of Algorithm 2.

        The shape is (slots, choices). A cost is ``inf`` if this many workers, or the parameter
        servers they need, don't fit.
        """
        return slot_costs(*self._demands(job, slots), job.worker_counts, job.ps_counts)

    def best(
        self, job: Job, now: int, end: int, remaining: int, factor: float = 1.0
    ) -> PricedOffer | None:
        """Return the schedule of largest payoff over slots ``[now, end)``, (27).

        It makes ``remaining`` progress units; None if no schedule does. Every utility is multiplied
        by ``factor``.
        """
        slots = end - now
        gains, required = self._progress(job, remaining)
        max_gain = int(gains.max())
        if slots <= 0 or max_gain <= 0 or max_gain * slots < required:
            return None
        utility = factor * job.utility.values(np.arange(now - job.arrival, end - job.arrival))
        shortest = -(-required // max_gain)
        near = 2 * shortest + _NEAR_SLOTS
        if 2 * near <= slots:
            offer = self._search(job, now, gains, required, utility[:near])
            if offer is not None:
                # Costs are never negative. A completion whose utility alone doesn't exceed this
                # payoff can't pay more.
                slots = int(np.count_nonzero(utility > offer.payoff))
                if slots <= near:
                    return offer
        return self._search(job, now, gains, required, utility[:slots])

    def _search(
        self, job: Job, now: int, gains: Integers, required: int, utility: Floats
    ) -> PricedOffer | None:
        """Return the best offer over the first ``len(utility)`` slots."""
        cost = self.costs(job, len(utility))
        if self.posted is not None:
            cost += self.posted.costs(job, now, len(utility))
        useful = None if gains.all() else np.flatnonzero(gains)
        if useful is not None:
            cost = np.ascontiguousarray(cost[:, useful])
            gains = gains[useful]
        result = best_schedule(cost, gains, required, utility, gap=self._gap)
        if not result.feasible:
            return None
        choice = result.choice
        if useful is not None:
            choice = np.where(choice >= 0, useful[choice], -1)
        return PricedOffer(
            completion=now + result.completion,
            utility=float(utility[result.completion]),
            cost=result.cost,
            payoff=result.payoff,
            choice=choice,
            bound=result.bound,
        )

    def schedule(self, job: Job, now: int, offer: PricedOffer) -> Schedule:
        """Return the placement of an offer's workers and parameter servers, lines 23-38."""
        (worker_pool, demand, share, ps_pool, ps_demand, ps_share) = self._demands(
            job, len(offer.choice)
        )
        entries = expand_choices(
            worker_pool, demand, share, self.workers.servers, ps_pool, ps_demand, ps_share,
            self.servers.servers, job.worker_counts, job.ps_counts, offer.choice,
        )  # fmt: skip
        return Schedule.from_arrays(entries[:, 0] + now, *entries[:, 1:].T)

    def _demands(
        self, job: Job, slots: int
    ) -> tuple[Groups, Integers, Floats, Groups, Integers, Floats]:
        workers = self.workers.window(slots)
        share = self.workers.shares(job.worker)
        if job.ps is None:
            return workers, job.worker, share, workers, job.worker, share
        servers = self.servers.window(slots)
        return workers, job.worker, share, servers, job.ps, self.servers.shares(job.ps)

    def _progress(self, job: Job, remaining: int) -> tuple[Integers, int]:
        """Return the gain of each choice and the remaining work, in the same unit."""
        if not self._literal:
            return job.gains, remaining
        # Line 24 gives d chunks ceil(d M (tau + 2 e / b)) workers. So n workers train the largest d
        # that needs no more than n, and the work is a whole number of chunks.
        # The remaining work can exceed the job's own because plans cover work lost by restarts.
        chunks = -(-remaining * job.epochs * job.chunks // job.required)
        if job.gains is job.internal_gains and (job.gains == job.worker_counts).all():
            per_chunk = job.minibatches * job.step_seconds / self._slot_seconds
            gains = np.floor(job.worker_counts / per_chunk * (1 + 1e-12))
        else:
            gains = np.floor(job.gains / (job.minibatches * MICRO))
        return gains.astype(np.int64), chunks
