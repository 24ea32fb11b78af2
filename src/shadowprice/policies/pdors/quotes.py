"""One job at the current prices of PD-ORS's single pool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Amounts
from shadowprice.core.job import Job
from shadowprice.core.policy import View
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots.choices import Slots
from shadowprice.kernels.slots.costs import slot_costs
from shadowprice.policies.pricing.offers import PricedOffer, ResourceBottleneck, TooExpensiveProof

if TYPE_CHECKING:
    from shadowprice.policies.pdors.planner import PdorsPlanner

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_CLEARLY: Final = 1e-6
"""Relative excess of cost over utility that rounding errors can't explain."""


@dataclass(frozen=True, eq=False)
class SlotChoices:
    """Cost of every number of workers in every distinct state of a window, at either rate.

    Parameters
    ----------
    state_of : ndarray of int64, shape (slots,)
        State of each slot.
    slots : Slots
        Price and demand of workers and parameter servers on each machine; a row per state.
    streams : ndarray of uint64, shape (states,)
        Random stream of each state.
    cost : ndarray of float64, shape (states, 2 * counts)
        External choices first, then internal ones. A choice that is infeasible, or worse than
        another, costs inf.
    machine : ndarray of int64, shape (states, counts)
        Machine of each internal choice.
    relaxed : ndarray of float64, shape (states, counts)
        Lower bounds of the external choices, from the relaxation of (3.22).
    rounds : ndarray of int64, shape (states, counts)
        Rounding rounds used, or a code for placements without rounding (`kernels.slots.placement`).
    """

    state_of: Integers
    slots: Slots
    streams: NDArray[np.uint64]
    cost: Floats
    machine: Integers
    relaxed: Floats
    rounds: Integers


class PdorsPricedJob:
    """A job on one pool; implements `policies.pricing.offers.PricedJob`.

    ``remaining`` counts the progress units to make.
    """

    def __init__(self, planner: PdorsPlanner, view: View, job: Job, remaining: int) -> None:
        self._planner = planner
        self._view = view
        self._job = job
        self._remaining = remaining

    @cached_property
    def choices(self) -> SlotChoices:
        """Costs of every choice in every slot of the window."""
        return self._planner.choices(self._job, self._view)

    @cached_property
    def _market(self) -> tuple[Floats, Integers, Integers]:
        """Costs and gains of the choices that some slot offers, and each column's choice."""
        choices = self.choices
        usable = np.flatnonzero(np.isfinite(choices.cost).any(axis=0))
        gains = np.concatenate([self._job.gains, self._job.internal_gains])[usable]
        return choices.cost[:, usable][choices.state_of], gains, usable

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer of largest payoff; None if no schedule completes the work."""
        job, now, end = self._job, self._view.slot, self._view.end
        work = self._remaining + more
        if self.fastest() * (end - now) < work:
            return None
        cost, gains, usable = self._market
        if not len(usable):
            return None
        utility = factor * job.utility.values(np.arange(now - job.arrival, end - job.arrival))
        result = best_schedule(cost, gains, work, utility)
        if not result.feasible:
            return None
        return PricedOffer(
            completion=now + result.completion,
            utility=float(utility[result.completion]),
            cost=result.cost,
            payoff=result.payoff,
            choice=np.where(result.choice >= 0, usable[result.choice], -1),
        )

    def outpriced(self) -> TooExpensiveProof | None:
        """Return a bound if the work costs more than its utility even in the relaxed problem.

        The relaxation places workers and parameter servers separately, each on the cheapest
        machines with free capacity. That costs no more than any joint placement. On refused jobs it
        takes a tenth of the time of a placement in every slot, and nearly always decides.
        """
        job, now, end = self._job, self._view.slot, self._view.end
        if self.fastest() * (end - now) < self._remaining:
            return TooExpensiveProof(-np.inf)
        board = self._planner.board
        pool = board.window(end - now)
        ps = job.worker if job.ps is None else job.ps
        demands = pool, job.worker, board.shares(job.worker), pool, ps, board.shares(ps)
        cost, gain = slot_costs(*demands, job.worker_counts, job.ps_counts), job.gains
        internal_ps, _ = self._planner.colocated_ps_counts(job)
        if len(internal_ps) and (job.two_rates or internal_ps is not job.ps_counts):
            internal_ps.setflags(write=False)  # numba compiles again for writable arrays
            internal = slot_costs(*demands, job.worker_counts, internal_ps)
            cost = np.concatenate([cost, internal], axis=1)
            gain = np.concatenate([gain, job.internal_gains])
        if not gain.all():
            cost, gain = cost[:, gain > 0], gain[gain > 0]
        utility = job.utility.values(np.arange(now - job.arrival, end - job.arrival))
        result = best_schedule(cost, gain, self._remaining, utility)
        if not result.feasible:
            return TooExpensiveProof(-np.inf)
        if result.payoff >= -_CLEARLY * result.cost:
            return None
        return TooExpensiveProof(result.bound, float(utility[result.completion]), result.cost)

    def schedule(self, offer: PricedOffer) -> Schedule:
        """Return the placement of an offer's workers and parameter servers."""
        placed: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        entries: list[tuple[int, int, int, int]] = []
        choices = self.choices
        for t in np.flatnonzero(offer.choice >= 0):
            key = int(choices.state_of[t]), int(offer.choice[t])
            if key not in placed:
                placed[key] = self._planner.place(self._job, choices, *key)
            entries += [(int(t) + self._view.slot, *row) for row in placed[key]]
        table = np.array(entries, dtype=np.int64).reshape(len(entries), 4)
        return Schedule(*(np.ascontiguousarray(table[:, column]) for column in range(4)))

    def fastest(self) -> int:
        """Return the most progress units that one slot can add, in an empty cluster."""
        return self._planner.max_gain_per_slot(self._job)

    def hopeless(self) -> None:
        """Return None: the scarcest resource explains why no schedule completes the work."""

    def scarcest(self) -> ResourceBottleneck:
        """Return the resource with the least free capacity for workers, PS, or both together."""
        job, view = self._job, self._view
        slots = view.end - view.slot
        free = np.maximum(view.ledger.capacity - view.ledger.used[:slots], 0)
        per_worker = float(job.ps_counts[-1] / job.worker_counts[-1])
        candidates = [("workers", 1.0, _room(free, view.cluster.hosts_workers, job.worker))]
        if job.ps is not None and per_worker > 0:
            hosts = view.cluster.hosts_ps
            candidates.append(("parameter servers", per_worker, _room(free, hosts, job.ps)))
            both = job.worker + per_worker * job.ps
            together = np.full(len(both), np.inf)
            total = free.sum(axis=1, dtype=np.float64).mean(axis=0)
            together[both > 0] = total[both > 0] / both[both > 0]
            candidates.append(("workers", 1.0, together))
        kind, _, room = min(
            candidates, key=lambda candidate: float(candidate[2].min()) / candidate[1]
        )
        column = int(np.argmin(room))
        return ResourceBottleneck(
            view.cluster.resources[column], "servers", kind, float(room[column])
        )

    def dearest(self, schedule: Schedule) -> tuple[str, float]:
        """Return the resource that contributes most to a schedule's cost, and its cost."""
        board, job, ledger = self._planner.board, self._job, self._view.ledger
        total = board.spent(ledger, schedule, schedule.workers, job.worker)
        if job.ps is not None:
            total = total + board.spent(ledger, schedule, schedule.ps, job.ps)
        column = int(np.argmax(total))
        return self._view.cluster.resources[column], float(total[column])

    def slot_costs(self, schedule: Schedule) -> Floats:
        """Return a schedule's cost in each of its active slots."""
        board, job, ledger = self._planner.board, self._job, self._view.ledger
        total = board.cost_by_slot(ledger, schedule, schedule.workers, job.worker)
        if job.ps is not None:
            total += board.cost_by_slot(ledger, schedule, schedule.ps, job.ps)
        return total


def _room(free: Amounts, hosts: NDArray[np.bool_], demand: Amounts) -> Floats:
    """Return how often a demand fits in a slot by each resource alone, averaged over slots."""
    room = np.full(len(demand), np.inf)
    demanded = demand > 0
    fits = free[:, hosts][:, :, demanded] // demand[demanded]
    room[demanded] = fits.sum(axis=1, dtype=np.float64).mean(axis=0)
    return room
