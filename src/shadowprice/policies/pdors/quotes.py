"""One job at the prices of one moment, on PD-ORS's one pool."""

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
from shadowprice.policies.pricing.offers import Offer, Outpriced, Scarcity

if TYPE_CHECKING:
    from shadowprice.policies.pdors.planner import PdorsPlanner

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_CLEARLY: Final = 1e-6
"""Part of a cost by which it has to be above the worth to be so whatever was rounded."""


@dataclass(frozen=True, eq=False)
class Choices:
    """What every number of workers costs in every distinct state of a window, at either rate.

    Parameters
    ----------
    state_of : ndarray of int64, shape (slots,)
        State of each slot.
    slots : Slots
        What workers and parameter servers cost and take on each machine, a row a state.
    streams : ndarray of uint64, shape (states,)
        Selects the draws of each state.
    cost : ndarray of float64, shape (states, 2 * counts)
        External choices first, then internal ones; inf where there is none, or a better one.
    machine : ndarray of int64, shape (states, counts)
        Machine of each internal choice.
    relaxed : ndarray of float64, shape (states, counts)
        Lower bounds of the external choices, from the relaxation of (3.22).
    rounds : ndarray of int64, shape (states, counts)
        Rounds of rounding, or how it went without (`kernels.slots.placement`).
    """

    state_of: Integers
    slots: Slots
    streams: NDArray[np.uint64]
    cost: Floats
    machine: Integers
    relaxed: Floats
    rounds: Integers


class PdorsQuote:
    """See `policies.pricing.offers.Quote`.

    Parameters
    ----------
    planner : PdorsPlanner
        At the prices of the moment.
    view : View
        The state.
    job : Job
        The job.
    remaining : int
        Progress units to make.
    """

    def __init__(self, planner: PdorsPlanner, view: View, job: Job, remaining: int) -> None:
        self._planner = planner
        self._view = view
        self._job = job
        self._remaining = remaining

    @cached_property
    def choices(self) -> Choices:
        """What every choice costs in every slot of the window."""
        return self._planner.choices(self._job, self._view)

    @cached_property
    def _market(self) -> tuple[Floats, Integers, Integers]:
        """Cost and gain of what some slot offers, and the choice that each column is."""
        choices = self.choices
        usable = np.flatnonzero(np.isfinite(choices.cost).any(axis=0))
        gains = np.concatenate([self._job.gains, self._job.internal_gains])[usable]
        return choices.cost[:, usable][choices.state_of], gains, usable

    def best(self, factor: float = 1.0, *, more: int = 0) -> Offer | None:
        """Return the offer of largest payoff, None where nothing completes the work."""
        job, now, end = self._job, self._view.slot, self._view.end
        work = self._remaining + more
        if self.fastest() * (end - now) < work:
            return None
        cost, gains, usable = self._market
        if not len(usable):
            return None
        utility = factor * job.utility.values(np.arange(now - job.arrival, end - job.arrival))
        found = best_schedule(cost, gains, work, utility)
        if not found.feasible:
            return None
        return Offer(
            completion=now + found.completion,
            utility=float(utility[found.completion]),
            cost=found.cost,
            payoff=found.payoff,
            choice=np.where(found.choice >= 0, usable[found.choice], -1),
        )

    def outpriced(self) -> Outpriced | None:
        """Return a bound where the work costs more than it is worth even with nothing rounded.

        Workers and parameter servers, each by themselves on the cheapest machines that have room
        for them, cost no more than any placement of both. On refused jobs that takes a tenth of the
        time of placing them in every slot, and nearly always settles it.
        """
        job, now, end = self._job, self._view.slot, self._view.end
        if self.fastest() * (end - now) < self._remaining:
            return Outpriced(-np.inf)
        board = self._planner.board
        pool = board.window(end - now)
        ps = job.worker if job.ps is None else job.ps
        demands = pool, job.worker, board.shares(job.worker), pool, ps, board.shares(ps)
        cost, gain = slot_costs(*demands, job.worker_counts, job.ps_counts), job.gains
        inside, _ = self._planner.internal_case(job)
        if len(inside) and (job.two_rates or inside is not job.ps_counts):
            inside.setflags(write=False)  # kernels would be compiled once more for others
            internal = slot_costs(*demands, job.worker_counts, inside)
            cost = np.concatenate([cost, internal], axis=1)
            gain = np.concatenate([gain, job.internal_gains])
        if not gain.all():
            cost, gain = cost[:, gain > 0], gain[gain > 0]
        utility = job.utility.values(np.arange(now - job.arrival, end - job.arrival))
        found = best_schedule(cost, gain, self._remaining, utility)
        if not found.feasible:
            return Outpriced(-np.inf)
        if found.payoff >= -_CLEARLY * found.cost:
            return None
        return Outpriced(found.bound, float(utility[found.completion]), found.cost)

    def schedule(self, offer: Offer) -> Schedule:
        """Return where the workers and parameter servers of an offer stand."""
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
        return self._planner.fastest(self._job)

    def hopeless(self) -> None:
        """Say nothing of its own: what is scarce tells why nothing completes the work."""

    def scarcest(self) -> Scarcity:
        """Return what leaves the least room: for workers, for their servers, or for both."""
        job, view = self._job, self._view
        slots = view.end - view.slot
        free = np.maximum(view.ledger.capacity - view.ledger.used[:slots], 0)
        per_worker = float(job.ps_counts[-1] / job.worker_counts[-1])
        found = [("workers", 1.0, _room(free, view.cluster.hosts_workers, job.worker))]
        if job.ps is not None and per_worker > 0:
            hosts = view.cluster.hosts_ps
            found.append(("parameter servers", per_worker, _room(free, hosts, job.ps)))
            both = job.worker + per_worker * job.ps
            together = np.full(len(both), np.inf)
            total = free.sum(axis=1, dtype=np.float64).mean(axis=0)
            together[both > 0] = total[both > 0] / both[both > 0]
            found.append(("workers", 1.0, together))
        kind, _, room = min(found, key=lambda part: float(part[2].min()) / part[1])
        column = int(np.argmin(room))
        return Scarcity(view.cluster.resources[column], "servers", kind, float(room[column]))

    def dearest(self, schedule: Schedule) -> tuple[str, float]:
        """Return the resource that makes up most of a schedule's cost."""
        board, job, ledger = self._planner.board, self._job, self._view.ledger
        total = board.spent(ledger, schedule, schedule.workers, job.worker)
        if job.ps is not None:
            total = total + board.spent(ledger, schedule, schedule.ps, job.ps)
        column = int(np.argmax(total))
        return self._view.cluster.resources[column], float(total[column])

    def slot_costs(self, schedule: Schedule) -> Floats:
        """Return what a schedule costs in each of its active slots."""
        board, job, ledger = self._planner.board, self._job, self._view.ledger
        found = board.spent_by_slot(ledger, schedule, schedule.workers, job.worker)
        if job.ps is not None:
            found += board.spent_by_slot(ledger, schedule, schedule.ps, job.ps)
        return found


def _room(free: Amounts, hosts: NDArray[np.bool_], demand: Amounts) -> Floats:
    """Return how many of a demand each resource alone has room for in a slot, on average."""
    room = np.full(len(demand), np.inf)
    asked = demand > 0
    places = free[:, hosts][:, :, asked] // demand[asked]
    room[asked] = places.sum(axis=1, dtype=np.float64).mean(axis=0)
    return room
