"""Best schedule of one job at current prices: Algorithms 2-4 on one pool."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import View
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots.costs import slot_costs
from shadowprice.kernels.slots.placement import (
    EXACT,
    GREEDY,
    RANDOMISED,
    SKIPPED,
    Gains,
    Method,
    Pairs,
    Slots,
    place_external,
    slot_at,
    slot_choices,
    slot_states,
)
from shadowprice.kernels.slots.rounding import mix
from shadowprice.policies.bags.quotes import PricedBag
from shadowprice.policies.pdors.parameters import PdorsParameters
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.offers import (
    PricedJob,
    PricedOffer,
    ResourceBottleneck,
    TooExpensiveProof,
)

_NO_ROLE_MASKS = np.zeros((2, 0), dtype=np.bool_)
"""Empty masks, with which `slot_states` lets every machine host both roles."""

_CLEAR_EXCESS: Final = 1e-6  # of cost over utility, relative: rounding errors can't explain it

METHODS = {"randomised": RANDOMISED, "exact": EXACT, "greedy": GREEDY}


@dataclass(frozen=True, eq=False)
class SlotChoices:
    """Cost of every number of workers in every distinct state of a window, at either rate.

    A choice is an external placement of a number of workers, or one on a single machine.
    """

    state_of: Integers  # of each slot
    slots: Slots  # prices and demands on each machine; a row per state
    streams: NDArray[np.uint64]  # random stream of each state
    cost: Floats
    """A row per state; columns are the external choices, then the internal ones. A choice that is
    infeasible, or worse than another, costs inf."""
    machine: Integers  # by state and internal choice
    relaxed: Floats  # lower bounds by state and external choice, from the relaxation of (3.22)
    rounds: Integers
    """Rounds of rounding by state and external choice, or a code for placements without rounding
    (`kernels.slots.placement`)."""


class PdorsPlanner:
    """Searches schedules on one pool of servers that carry workers and parameter servers.

    ``board`` covers all servers; ``seed`` seeds the rounding.
    """

    def __init__(
        self, board: PriceBoard, cluster: Cluster, parameters: PdorsParameters, seed: int
    ) -> None:
        self.board = board
        self._cluster = cluster
        self._parameters = parameters
        self._method = METHODS[parameters.placement]
        self._stream = np.uint64(mix(np.uint64(0), seed % 2**63))
        # A resource that no server limits can't bind.
        self._limited = (cluster.capacity < UNLIMITED).any(axis=0)
        self._hosts = np.stack([cluster.hosts_workers, cluster.hosts_ps])
        both = self._hosts.all(axis=0)
        self._distinct_capacities = np.unique(cluster.capacity[both], axis=0)
        self._worker_board: PriceBoard | None = None

    @property
    def boards(self) -> Sequence[PriceBoard]:
        """The board of the single pool."""
        return (self.board,)

    def follow(self, ledger: LedgerView) -> None:
        """Update the board from the ledger."""
        self.board.follow(ledger)

    def quote(self, view: View, job: Job, remaining: int) -> PricedJob:
        """Return the priced job, whose methods quote and plan it.

        ``remaining`` is in progress units.
        """
        if job.bag is not None:
            return PricedBag(self._board_for_workers(view.ledger), view, job)
        return PdorsPricedJob(self, view, job, remaining)

    def _board_for_workers(self, ledger: LedgerView) -> PriceBoard:
        """Return a board of the servers that host workers, at the prices of all servers."""
        if self._hosts[0].all():
            return self.board
        if self._worker_board is None or self._worker_board.constants is not self.board.constants:
            pool = replace(self.board.pool, members=self._hosts[0])
            self._worker_board = PriceBoard(
                self._cluster, pool, self.board.constants, self._cluster.horizon
            )
        self._worker_board.follow(ledger)
        return self._worker_board

    def choices(self, job: Job, view: View) -> SlotChoices:
        """Compute the cost of every number of workers in every usable slot: Algorithm 4.

        Random draws depend only on the seed, the job's name and the slot.
        """
        groups = self.board.window(view.end - view.slot)
        ps = np.zeros_like(job.worker) if job.ps is None else job.ps
        demanded = np.flatnonzero(((job.worker > 0) | (ps > 0)) & self._limited)
        hosts = self._hosts & (view.ledger.capacity > 0).any(axis=1)
        roles = not hosts.all()
        price_worker, price_server, room, state_of, first = slot_states(
            groups, demanded, self.board.pool.shares(job.worker), self.board.pool.shares(ps),
            hosts if roles else _NO_ROLE_MASKS,
        )  # fmt: skip
        # The role columns limit where each kind fits: a worker takes 1 of the first, a PS 1 of the
        # second.
        worker, server = (
            np.append(demand[demanded], [side == 0, side == 1] if roles else []).astype(np.int64)
            for side, demand in enumerate((job.worker, ps))
        )
        job_stream = np.uint64(mix(self._stream, _hash_name(job.name)))
        streams = np.array([mix(job_stream, view.slot + int(t)) for t in first], dtype=np.uint64)
        internal_servers, spread = self.colocated_ps_counts(job)
        slots = Slots(price_worker, price_server, room, worker, server)
        cost, machine, relaxed, rounds = slot_choices(
            slots,
            build_pairs(job),
            internal_servers.copy(),
            Gains(job.gains.copy(), job.internal_gains.copy()),
            self._build_method(spread),
            streams,
        )
        return SlotChoices(state_of, slots, streams, cost, machine, relaxed, rounds)

    def _build_method(self, spread: bool) -> Method:
        parameters = self._parameters
        return Method(self._method, spread, parameters.factor, parameters.delta, parameters.tries)

    def colocated_ps_counts(self, job: Job) -> tuple[Integers, bool]:
        """Return the PS for each worker count on one machine, and whether to spread externally.

        There are no counts if (3.5) forbids co-location. An external placement must use at least
        two machines if the job would communicate at the internal rate on one, for which it has too
        few parameter servers.
        """
        external, offered = job.worker_bandwidth, job.ps_bandwidth
        internal = job.internal_bandwidth or external
        if (
            self._parameters.bandwidth == "internal"
            or job.ps is None
            or not offered
            or internal <= external
        ):
            return job.ps_counts, False
        # ceil(w b_i / B) > w for every w, so (3.4) and (3.5) can't both hold.
        if internal > offered:
            return np.zeros(0, dtype=np.int64), True
        counts = [-(-int(workers) * internal // offered) for workers in job.worker_counts]
        return np.array(counts, dtype=np.int64), True

    def max_gain_per_slot(self, job: Job) -> int:
        """Return the maximum progress units that one slot can add in an empty cluster."""
        max_gain = int(job.gains.max())
        servers, _ = self.colocated_ps_counts(job)
        if len(servers) and job.two_rates:
            ps = np.zeros_like(job.worker) if job.ps is None else job.ps
            needs: Integers = job.worker_counts[:, None] * job.worker + servers[:, None] * ps
            machines = self._distinct_capacities
            if job.ps is None:
                machines = self._cluster.capacity[self._cluster.hosts_workers]
            holds = np.asarray(needs[:, None, :] <= machines).all(axis=-1)
            fits = np.asarray(holds).any(axis=-1)
            max_gain = max(max_gain, int(job.internal_gains[fits].max(initial=0)))
        return max_gain

    def place(
        self, job: Job, choices: SlotChoices, state: int, choice: int
    ) -> list[tuple[int, int, int]]:
        """Return (server, workers, PS) triples of one choice, as Algorithm 4 places it.

        The first choices are external placements by worker count, the rest are on one machine.
        """
        counts = len(job.worker_counts)
        servers, spread = self.colocated_ps_counts(job)
        if choice >= counts:
            index = choice - counts
            machine = int(choices.machine[state, index])
            return [(machine, int(job.worker_counts[index]), int(servers[index]))]
        slot = slot_at(choices.slots, state)
        *_, (workers, ps) = place_external(
            slot, build_pairs(job), np.full(counts, np.inf), self._build_method(spread),
            choices.streams[state], choice,
        )  # fmt: skip
        used = np.flatnonzero((workers > 0) | (ps > 0))
        return [(int(server), int(workers[server]), int(ps[server])) for server in used]


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

    @property
    def was_repaired(self) -> bool:
        """Whether a placement of the computed choices was repaired or searched, not rounded.

        That is always so unless placements are randomised.
        """
        return "choices" in vars(self) and bool((self.choices.rounds < SKIPPED).any())

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
        if self.max_gain() * (end - now) < work:
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

    def prove_too_expensive(self) -> TooExpensiveProof | None:
        """Return a bound if the work costs more than its utility even in the relaxed problem.

        The relaxation places workers and parameter servers separately, each on the cheapest
        machines with free capacity. That costs no more than any joint placement. On refused jobs it
        takes a tenth of the time of a placement in every slot, and nearly always decides.
        """
        job, now, end = self._job, self._view.slot, self._view.end
        if self.max_gain() * (end - now) < self._remaining:
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
        if result.payoff >= -_CLEAR_EXCESS * result.cost:
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

    def max_gain(self) -> int:
        """Return the most progress units that one slot can add, in an empty cluster."""
        return self._planner.max_gain_per_slot(self._job)

    def explain_infeasible(self) -> None:
        """Return None: the scarcest resource explains why no schedule completes the work."""

    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource with the least free capacity for workers, PS, or both together."""
        job, view = self._job, self._view
        slots = view.end - view.slot
        free = np.maximum(view.ledger.capacity - view.ledger.used[:slots], 0)
        per_worker = float(job.ps_counts[-1] / job.worker_counts[-1])
        candidates = [
            ("workers", 1.0, _mean_fit_count(free, view.cluster.hosts_workers, job.worker))
        ]
        if job.ps is not None and per_worker > 0:
            hosts = view.cluster.hosts_ps
            candidates.append(
                ("parameter servers", per_worker, _mean_fit_count(free, hosts, job.ps))
            )
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

    def most_expensive(self, schedule: Schedule) -> tuple[str, float]:
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


def build_pairs(job: Job) -> Pairs:
    """Return a job's numbers of workers with their numbers of PS, as kernels take them."""
    # Copies, because a job's arrays are read-only and numba would compile the kernels again.
    return Pairs(job.worker_counts.copy(), job.ps_counts.copy())


def _hash_name(name: str) -> int:
    """Return a number for a job that depends only on its name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")


def _mean_fit_count(free: Amounts, hosts: Flags, demand: Amounts) -> Floats:
    """Return how often a demand fits in a slot by each resource alone, averaged over slots."""
    room = np.full(len(demand), np.inf)
    demanded = demand > 0
    fits = free[:, hosts][:, :, demanded] // demand[demanded]
    room[demanded] = fits.sum(axis=1, dtype=np.float64).mean(axis=0)
    return room
