"""PD-ORS: Algorithm 1 on one pool of servers, and Algorithms 2-4, the best schedule of a job."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Amounts, Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import PolicyContext, View
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots import placement
from shadowprice.kernels.slots.costs import slot_costs
from shadowprice.kernels.slots.placement import Gains, Slots, slot_at, slot_choices, slot_states
from shadowprice.kernels.slots.rounding import mix
from shadowprice.policies.bags.planner import PricedBag
from shadowprice.policies.pdors import THEOREM, PdorsParameters
from shadowprice.policies.pricing.admission import PricedAdmission
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import Carries
from shadowprice.policies.pricing.offers import (
    BoardUse,
    PricedJob,
    PricedOffer,
    PricedPlanner,
    ResourceBottleneck,
    TooExpensiveProof,
)

_NO_ROLE_MASKS = np.zeros((2, 0), dtype=np.bool_)
"""Empty masks, with which `slot_states` lets every machine host both roles."""

_CLEAR_EXCESS: Final = 1e-6  # relative excess of cost over utility, far above rounding errors

METHODS = {"randomised": placement.RANDOMISED, "exact": placement.EXACT, "greedy": placement.GREEDY}


@dataclass(frozen=True, eq=False)
class SlotChoices:
    """Costs of a job's choices by state of a slot; slots with equal reservations share a state.

    A choice is a number of workers, either spread over machines (external) or on one (internal).
    """

    state_of: Integers  # state of each slot
    slots: Slots  # prices and free capacity on each machine, a row per state; and the demands
    streams: NDArray[np.uint64]  # random stream of each state
    cost: Floats
    """A row per state; columns are the external choices, then the internal ones. It is inf for a
    choice that is infeasible or worse than another."""
    machine: Integers  # machine by state and internal choice
    relaxed: Floats  # lower bound of the cost by state and external choice: relaxation of (3.22)
    rounds: Integers
    """Tries of the rounding by state and external choice. Numbers below 1 are codes for
    placements that weren't rounded (`kernels.slots.placement`)."""


class PdorsPlanner(PricedPlanner):
    """Plans on one pool of servers that carry workers and parameter servers.

    ``board`` has all servers. ``seed`` is that of the random rounding.
    """

    def __init__(
        self, board: PriceBoard, cluster: Cluster, parameters: PdorsParameters, seed: int
    ) -> None:
        self.board = board
        self.boards = (board,)
        self.cluster = cluster
        self.parameters = parameters
        self.stream = np.uint64(mix(np.uint64(0), seed % 2**63))
        # Placements ignore resources that no server limits.
        self.limited = (cluster.capacity < UNLIMITED).any(axis=0)
        self.hosts = np.stack([cluster.hosts_workers, cluster.hosts_ps])
        self.distinct_capacities = np.unique(cluster.capacity[self.hosts.all(axis=0)], axis=0)
        self._worker_board: PriceBoard | None = None

    def quote(self, view: View, job: Job, remaining: int) -> PricedJob:
        """Return the search for a job at current prices; ``remaining`` is in progress units."""
        if job.bag is not None:
            return PricedBag(self._board_for_workers(view.ledger), view, job, remaining)
        return PdorsPricedJob(self, view, job, remaining)

    def _board_for_workers(self, ledger: LedgerView) -> PriceBoard:
        """Return a board of only the servers that host workers, with the same price constants."""
        if self.hosts[0].all():
            return self.board
        if self._worker_board is None or self._worker_board.constants is not self.board.constants:
            pool = replace(self.board.pool, members=self.hosts[0])
            self._worker_board = PriceBoard(
                self.cluster, pool, self.board.constants, self.cluster.horizon
            )
        self._worker_board.follow(ledger)
        return self._worker_board


class PdorsPricedJob(PricedJob):
    """Search for schedules of one job on one pool."""

    def __init__(self, planner: PdorsPlanner, view: View, job: Job, remaining: int) -> None:
        super().__init__(view, job, remaining)
        self._planner = planner
        self._ps = np.zeros_like(job.worker) if job.ps is None else job.ps
        self._colocated_ps, self._spreads = _colocated_ps_counts(job, planner.parameters.bandwidth)

    @cached_property
    def choices(self) -> SlotChoices:
        """Cost of every choice in every usable slot: Algorithm 4.

        Random draws only depend on the seed, the job's name and the slot.
        """
        job, view, planner, ps = self.job, self.view, self._planner, self._ps
        board = planner.board
        demanded = np.flatnonzero(((job.worker > 0) | (ps > 0)) & planner.limited)
        hosts = planner.hosts & (view.ledger.capacity > 0).any(axis=1)
        roles = not hosts.all()
        price_worker, price_server, room, state_of, first = slot_states(
            board.window(view.end - view.slot), demanded, board.pool.shares(job.worker),
            board.pool.shares(ps), hosts if roles else _NO_ROLE_MASKS,
        )  # fmt: skip
        # If roles restrict servers, two more columns stand for them: a worker takes 1 of the first,
        # a PS 1 of the second, and a server has 0 of what it can't host.
        worker, server = (
            np.append(demand[demanded], [side == 0, side == 1] if roles else []).astype(np.int64)
            for side, demand in enumerate((job.worker, ps))
        )
        name_hash = hashlib.blake2b(job.name.encode(), digest_size=7).digest()
        job_stream = np.uint64(mix(planner.stream, int.from_bytes(name_hash, "big")))
        streams = np.array([mix(job_stream, view.slot + int(t)) for t in first], dtype=np.uint64)
        slots = Slots(price_worker, price_server, room, worker, server)
        cost, machine, relaxed, rounds = slot_choices(
            slots,
            build_pairs(job),
            self._colocated_ps.copy(),
            Gains(job.gains.copy(), job.internal_gains.copy()),
            self._method,
            streams,
        )
        return SlotChoices(state_of, slots, streams, cost, machine, relaxed, rounds)

    @property
    def _method(self) -> placement.Method:
        parameters = self._planner.parameters
        return placement.Method(
            METHODS[parameters.placement],
            self._spreads,
            parameters.factor,
            parameters.delta,
            parameters.tries,
        )

    @property
    def was_repaired(self) -> bool:
        """Whether a placement was repaired or searched instead of rounded."""
        return "choices" in vars(self) and bool((self.choices.rounds < placement.SKIPPED).any())

    @cached_property
    def _market(self) -> tuple[Floats, Integers, Integers]:
        """Costs by slot, and gains, of the choices that some slot offers; and these choices."""
        choices = self.choices
        usable = np.flatnonzero(np.isfinite(choices.cost).any(axis=0))
        gains = np.concatenate([self.job.gains, self.job.internal_gains])[usable]
        return choices.cost[:, usable][choices.state_of], gains, usable

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer with the largest payoff, None if no schedule completes the work."""
        job, now, end = self.job, self.view.slot, self.view.end
        work = self.remaining + more
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
        """Return a proof if the work costs more than its utility even in a relaxed problem.

        The relaxation places workers and parameter servers separately, each on the cheapest
        machines with free capacity. That costs no more than any joint placement. For refused jobs
        it takes a tenth of the time of `best`, and nearly always suffices.
        """
        job, now, end = self.job, self.view.slot, self.view.end
        if self.max_gain() * (end - now) < self.remaining:
            return TooExpensiveProof(-np.inf)
        board = self._planner.board
        pool = board.window(end - now)
        ps = job.worker if job.ps is None else job.ps
        demands = pool, job.worker, board.shares(job.worker), pool, ps, board.shares(ps)
        cost, gain = slot_costs(*demands, job.worker_counts, job.ps_counts), job.gains
        internal_ps = self._colocated_ps
        if len(internal_ps) and (job.two_rates or internal_ps is not job.ps_counts):
            internal_ps.setflags(write=False)  # numba compiles again for writable arrays
            internal = slot_costs(*demands, job.worker_counts, internal_ps)
            cost = np.concatenate([cost, internal], axis=1)
            gain = np.concatenate([gain, job.internal_gains])
        if not gain.all():
            cost, gain = cost[:, gain > 0], gain[gain > 0]
        utility = job.utility.values(np.arange(now - job.arrival, end - job.arrival))
        result = best_schedule(cost, gain, self.remaining, utility)
        if not result.feasible:
            return TooExpensiveProof(-np.inf)
        if result.payoff >= -_CLEAR_EXCESS * result.cost:
            return None
        return TooExpensiveProof(result.bound, float(utility[result.completion]), result.cost)

    def place(self, offer: PricedOffer) -> Schedule:
        """Return the placement of an offer's workers and parameter servers."""
        placed: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        entries: list[tuple[int, int, int, int]] = []
        for t in np.flatnonzero(offer.choice >= 0):
            key = int(self.choices.state_of[t]), int(offer.choice[t])
            if key not in placed:
                placed[key] = self._place_choice(*key)
            entries += [(int(t) + self.view.slot, *row) for row in placed[key]]
        table = np.array(entries, dtype=np.int64).reshape(len(entries), 4)
        return Schedule(*(np.ascontiguousarray(table[:, column]) for column in range(4)))

    def _place_choice(self, state: int, choice: int) -> list[tuple[int, int, int]]:
        """Return rows (server, workers, PS) of one choice in a state."""
        choices, counts = self.choices, self.job.worker_counts
        if choice >= len(counts):  # internal choices follow the external ones
            index = choice - len(counts)
            machine = int(choices.machine[state, index])
            return [(machine, int(counts[index]), int(self._colocated_ps[index]))]
        slot = slot_at(choices.slots, state)
        *_, (workers, ps) = placement.place_external(
            slot, build_pairs(self.job), np.full(len(counts), np.inf), self._method,
            choices.streams[state], choice,
        )  # fmt: skip
        used = np.flatnonzero((workers > 0) | (ps > 0))
        return [(int(server), int(workers[server]), int(ps[server])) for server in used]

    def max_gain(self) -> int:
        """Return the maximum progress units of one slot in an empty cluster."""
        job, planner = self.job, self._planner
        max_gain = int(job.gains.max())
        if len(self._colocated_ps) and job.two_rates:
            needs: Integers = job.worker_counts[:, None] * job.worker
            needs = needs + self._colocated_ps[:, None] * self._ps
            machines = planner.distinct_capacities
            if job.ps is None:
                machines = planner.cluster.capacity[planner.cluster.hosts_workers]
            holds = np.asarray(needs[:, None, :] <= machines).all(axis=-1)
            fits = np.asarray(holds).any(axis=-1)
            max_gain = max(max_gain, int(job.internal_gains[fits].max(initial=0)))
        return max_gain

    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource with the least free capacity for workers, PS, or both in one pool."""
        job, view = self.job, self.view
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

    def uses(self, schedule: Schedule) -> list[BoardUse]:
        """Return what a schedule takes from the board, of workers and of parameter servers."""
        board, job = self._planner.board, self.job
        uses = [BoardUse("", board, schedule.workers, job.worker)]
        if job.ps is not None:
            uses.append(BoardUse("", board, schedule.ps, job.ps))
        return uses


def _colocated_ps_counts(job: Job, bandwidth: str) -> tuple[Integers, bool]:
    """Return the PS of each worker count on one machine, and whether external choices must spread.

    There are no such counts if (3.5) forbids co-location. With ``literal``, an external choice has
    too few PS for the internal rate, so it must use at least two machines.
    """
    external, offered = job.worker_bandwidth, job.ps_bandwidth
    internal = job.internal_bandwidth or external
    if bandwidth == "internal" or job.ps is None or not offered or internal <= external:
        return job.ps_counts, False
    if internal > offered:  # ceil(w b_i / B) > w for every w, so (3.4) and (3.5) can't both hold
        return np.zeros(0, dtype=np.int64), True
    counts = [-(-int(workers) * internal // offered) for workers in job.worker_counts]
    return np.array(counts, dtype=np.int64), True


def build_pairs(job: Job) -> placement.Pairs:
    """Return a job's numbers of workers and of PS in the form of the kernels."""
    # Copies, because numba would compile the kernels again for the job's read-only arrays.
    return placement.Pairs(job.worker_counts.copy(), job.ps_counts.copy())


def _mean_fit_count(free: Amounts, hosts: Flags, demand: Amounts) -> Floats:
    """Return how often a demand fits by each resource alone: the mean over slots."""
    room = np.full(len(demand), np.inf)
    demanded = demand > 0
    fits = free[:, hosts][:, :, demanded] // demand[demanded]
    room[demanded] = fits.sum(axis=1, dtype=np.float64).mean(axis=0)
    return room


class Pdors(PricedAdmission):
    """Algorithm 1 on one pool of servers.

    Raises `InputError` if a job has parameter servers and no server may host them.
    """

    name = "pdors"
    capabilities = replace(PricedAdmission.capabilities, runs_bags=True)

    def __init__(self, context: PolicyContext, parameters: PdorsParameters) -> None:
        parameters = parameters.for_jobs(context.known_jobs)
        cluster = context.cluster
        if not cluster.hosts_workers.any():
            message = "no server of the cluster carries workers"
            hint = "give servers the role any or worker"
            raise InputError(Fault("policy pdors", message, hint))
        with_ps = [job.name for job in context.known_jobs or () if job.ps is not None]
        if with_ps and not cluster.hosts_ps.any():
            message = (
                f"{len(with_ps)} jobs ({with_ps[0]!r} first) have parameter servers, and no "
                "server of the cluster carries any"
            )
            hint = "give servers the role any, or leave `ps` out for all-reduce training"
            raise InputError(Fault("policy pdors", message, hint))
        self._seed = context.seed
        self._options = parameters
        self._was_repaired = False
        """Whether some placement for a decided job was repaired or searched, not rounded."""
        super().__init__(context, parameters, [parameters.given])

    def _pools(self, cluster: Cluster) -> Sequence[tuple[Carries, Flags]]:
        return [("both", np.ones(cluster.servers, dtype=np.bool_))]

    def _alone(self, cluster: Cluster) -> StandaloneValue:
        colocated = self._options.bandwidth == "internal"
        return StandaloneValue(
            cluster, cluster.hosts_workers, cluster.hosts_ps, colocated=colocated
        )

    def _build_planner(self, cluster: Cluster, boards: Sequence[PriceBoard]) -> PdorsPlanner:
        [board] = boards
        return PdorsPlanner(board, cluster, self._options, self._seed)

    def _ratio_over_alpha(self) -> float:
        """Return 6 G / delta of Theorem 3, with the largest G of Theorem 2 (W_1 = 1).

        Exact placements aren't rounded, so the factor is 2, as in OASiS. For greedy placements no
        factor is proved.
        """
        if self._options.placement != "randomised":
            return 2.0 if self._options.placement == "exact" else math.inf
        logarithm = math.log(6.0 / self._options.delta)
        gain = 1.0 + logarithm + math.sqrt(logarithm**2 + 2.0 * logarithm)
        return 6.0 * gain / self._options.delta

    def _premises(self, jobs: Sequence[Job]) -> dict[str, bool]:
        premises = super()._premises(jobs)
        if self._options.placement == "randomised":
            premises["gain_is_theorem_2"] = self._options.gain == THEOREM
            # Theorem 2 only bounds the cost if the rounding succeeds.
            premises["no_placement_repaired"] = not self._was_repaired
        return premises

    def _observe(self, quote: PricedJob) -> None:
        if isinstance(quote, PdorsPricedJob):
            self._was_repaired |= quote.was_repaired

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters and the present price constants."""
        (board,) = self._planner.boards
        record = board.constants.record(self._cluster.resources)
        return self._options.model_dump(exclude={"L", "U"}) | record
