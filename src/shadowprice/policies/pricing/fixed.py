"""Offers of plans with one placement, for jobs that can't continue from saved progress.

The papers' plans change a job's placement from slot to slot. A job that loses its work when it is
stopped needs one placement, without a pause, from its start to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from shadowprice.core.arrays import Integers
from shadowprice.core.job import Job
from shadowprice.core.policy import View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.core.utility import utility_value
from shadowprice.policies.placements import constant_schedule, dense_placement, fit_counts
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.offers import DerivedJob, PricedJob, PricedOffer

_MAX_COUNTS: Final = 12  # maximum number of worker counts that are tried, evenly spaced


class FixedPlacement(DerivedJob):
    """A quote whose offers keep one placement from the first slot to the last.

    ``boards`` are those of workers and of parameter servers, or one for both.
    """

    def __init__(
        self,
        quote: PricedJob,
        boards: Sequence[PriceBoard],
        view: View,
        job: Job,
        remaining: int,
        *,
        begun: bool,
    ) -> None:
        super().__init__(quote, view, job, remaining, begun=begun)
        self._hosts = tuple(np.zeros(view.cluster.servers, dtype=np.bool_) for _ in range(2))
        for hosts, board in zip(self._hosts, (boards[0], boards[-1]), strict=True):
            hosts[board.servers] = True
        self._hosts[0][:] &= view.cluster.hosts_workers
        self._hosts[1][:] &= view.cluster.hosts_ps

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer with the largest payoff among the earliest of each worker count."""
        offers = self._offers(factor, self._remaining + more)
        return max(offers, key=lambda offer: offer.payoff, default=None)

    def _offers(self, factor: float, remaining: int) -> Iterator[PricedOffer]:
        job, view = self._job, self._view
        counts = np.linspace(0, len(job.worker_counts) - 1, _MAX_COUNTS).round().astype(int)
        for choice in np.unique(counts).tolist():
            plan = self._earliest(int(choice), remaining)
            if plan is None:
                continue
            value = factor * utility_value(job.utility, plan.completion - job.arrival)
            cost = float(self._quote.slot_costs(plan).sum())
            none = np.full(view.end - view.slot, -1, dtype=np.int64)
            yield PricedOffer(plan.completion, value, cost, value - cost, none, plan=plan)

    def _earliest(self, choice: int, remaining: int) -> Schedule | None:
        """Return the plan with a worker count that completes first, None if none fits."""
        job, view = self._job, self._view
        workers = int(job.worker_counts[choice])
        # Co-location may be faster, so it is tried first, with its own duration.
        for colocated in (True, False):
            first = job.gain(workers, colocated=colocated, moved=self._begun)
            gain = job.gain(workers, colocated=colocated)
            if not gain:
                continue
            slots = 1 + max(0, -(-(remaining - first) // gain))
            for start in range(view.slot, view.end - slots + 1):
                placement = self._fit(start, slots, choice, colocated=colocated)
                if placement is not None:
                    return constant_schedule(placement, start, start + slots)
        return None

    def _fit(self, start: int, slots: int, choice: int, *, colocated: bool) -> Placement | None:
        """Return a placement that is free in some slots, on one server if ``colocated``."""
        job, ledger = self._job, self._view.ledger
        offset = start - ledger.start
        # A cordoned server has no capacity for this job, but is in use.
        free = np.maximum(ledger.capacity - ledger.used[offset : offset + slots].max(axis=0), 0)
        workers, ps = int(job.worker_counts[choice]), int(job.ps_counts[choice])
        room = fit_counts(free, job.worker, self._hosts[0])
        if colocated:
            return self._on_one(free, room, workers, ps)
        # Servers with the most capacity first: fewer servers mean less traffic.
        order = np.argsort(-room, kind="stable")
        on_workers = _fill(room, order, workers)
        if on_workers is None:
            return None
        on_ps = np.zeros_like(on_workers)
        if ps and job.ps is not None:
            remaining = free - on_workers[:, None] * job.worker
            ps_room = fit_counts(remaining, job.ps, self._hosts[1])
            filled = _fill(ps_room, np.argsort(-ps_room, kind="stable"), ps)
            if filled is None:
                return None
            on_ps = filled
        placement = dense_placement(on_workers, on_ps)
        if placement.colocated and job.two_rates:
            return None  # tried before, as a co-located placement
        return placement

    def _on_one(self, free: Integers, room: Integers, workers: int, ps: int) -> Placement | None:
        """Return a placement on the first server that fits all processes."""
        job = self._job
        fits = room >= workers
        if ps and job.ps is not None:
            remaining = free - workers * job.worker
            fits &= self._hosts[1] & (fit_counts(remaining, job.ps) >= ps)
        servers = np.flatnonzero(fits)
        return Placement.of([(int(servers[0]), workers, ps)]) if len(servers) else None

    def explain_infeasible(self) -> Refusal | None:
        """Return why no plan with one placement completes the work."""
        if self._quote.best() is None:
            return self._quote.explain_infeasible()
        return Refusal(
            RefusalReason.NO_ROOM,
            "the job does not save its progress, so it needs one placement from its start to its "
            "end; no placement is free for that long",
        )


def _fill(room: Integers, order: Integers, count: int) -> Integers | None:
    """Distribute a count over servers in order; return None if their capacity is too small."""
    offered = np.minimum(room[order], count)
    before = np.cumsum(offered) - offered
    taken = np.clip(count - before, 0, offered)
    if int(taken.sum()) < count:
        return None
    result = np.zeros(len(room), dtype=np.int64)
    result[order] = taken
    return result
