"""OASiS: Algorithm 1 on two pools of servers, and Algorithm 2, the best schedule of a job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

import numpy as np

from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import MICRO, Job
from shadowprice.core.policy import PolicyContext, View
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots.costs import expand_choices, slot_costs
from shadowprice.kernels.slots.groups import Groups
from shadowprice.policies.bags.planner import PricedBag
from shadowprice.policies.oasis import OasisParameters
from shadowprice.policies.pricing.admission import DecisionInputs, PricedAdmission
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import Carries
from shadowprice.policies.pricing.offers import (
    BoardUse,
    PricedJob,
    PricedOffer,
    PricedPlanner,
    ResourceBottleneck,
)
from shadowprice.policies.pricing.posted import PostedPrices, read_posted_prices

_NEAR_SLOTS = 8
"""The first search covers twice the shortest duration plus this; most jobs need no more slots."""


class OasisPlanner(PricedPlanner):
    """Plans on two disjoint pools of servers, for workers and for parameter servers.

    With ``literal``, every slot trains whole chunks, as Algorithm 2 is printed. Prices in
    ``posted`` are added to those of the boards. The payoff of a schedule is within the relative
    ``gap`` of the largest one.
    """

    def __init__(
        self,
        boards: Sequence[PriceBoard],
        slot_seconds: Fraction,
        *,
        literal: bool,
        posted: PostedPrices | None = None,
        gap: float = 0.0,
    ) -> None:
        self.boards = tuple(boards)  # of workers, and of parameter servers
        self.slot_seconds = float(slot_seconds)
        self.literal = literal
        self.gap = gap
        self.posted = posted

    def quote(self, view: View, job: Job, remaining: int) -> PricedJob:
        """Return the search for a job at current prices; ``remaining`` is in progress units."""
        if job.bag is not None:
            return PricedBag(self.boards[0], view, job, remaining)
        return OasisPricedJob(self, view, job, remaining)


class OasisPricedJob(PricedJob):
    """Search for schedules of one job on two pools."""

    def __init__(self, planner: OasisPlanner, view: View, job: Job, remaining: int) -> None:
        super().__init__(view, job, remaining)
        self.planner = planner

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer with the largest payoff, (27), None if no schedule is long enough."""
        job, now, end = self.job, self.view.slot, self.view.end
        slots = end - now
        gains, required = self._progress(self.remaining + more)
        max_gain = int(gains.max())
        if slots <= 0 or max_gain <= 0 or max_gain * slots < required:
            return None
        utility = factor * job.utility.values(np.arange(now - job.arrival, end - job.arrival))
        shortest = -(-required // max_gain)
        near = 2 * shortest + _NEAR_SLOTS
        if 2 * near <= slots:
            offer = self._search(gains, required, utility[:near])
            if offer is not None:
                # Costs are never negative, so only completions whose utility exceeds this payoff
                # can have a larger one.
                slots = int(np.count_nonzero(utility > offer.payoff))
                if slots <= near:
                    return offer
        return self._search(gains, required, utility[:slots])

    def _search(self, gains: Integers, required: int, utility: Floats) -> PricedOffer | None:
        """Return the best offer over the first ``len(utility)`` slots."""
        job, now, planner = self.job, self.view.slot, self.planner
        # COST_t of Algorithm 2: the minimum cost by slot and worker count.
        cost = slot_costs(*self._demands(len(utility)), job.worker_counts, job.ps_counts)
        if planner.posted is not None:
            cost += planner.posted.costs(job, now, len(utility))
        useful = None if gains.all() else np.flatnonzero(gains)
        if useful is not None:
            cost = np.ascontiguousarray(cost[:, useful])
            gains = gains[useful]
        result = best_schedule(cost, gains, required, utility, gap=planner.gap)
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

    def place(self, offer: PricedOffer) -> Schedule:
        """Return the placement of an offer's workers and parameter servers, lines 23-38."""
        job = self.job
        workers, worker, share, ps_pool, ps, ps_share = self._demands(len(offer.choice))
        servers, ps_servers = (board.servers for board in self.planner.boards)
        entries = expand_choices(
            workers, worker, share, servers, ps_pool, ps, ps_share, ps_servers,
            job.worker_counts, job.ps_counts, offer.choice,
        )  # fmt: skip
        return Schedule.from_arrays(entries[:, 0] + self.view.slot, *entries[:, 1:].T)

    def _demands(self, slots: int) -> tuple[Groups, Integers, Floats, Groups, Integers, Floats]:
        job, (board, ps_board) = self.job, self.planner.boards
        demand = board.window(slots), job.worker, board.shares(job.worker)
        if job.ps is None:
            return *demand, *demand
        return *demand, ps_board.window(slots), job.ps, ps_board.shares(job.ps)

    def _progress(self, remaining: int) -> tuple[Integers, int]:
        """Return the gain of each choice and the remaining work, in the same unit."""
        job = self.job
        if not self.planner.literal:
            return job.gains, remaining
        # Line 24: d chunks take ceil(d M (tau + 2 e / b)) workers. So n workers train the largest d
        # that takes at most n, and the work is an integer number of chunks. The remaining work can
        # exceed the job's own, because plans also cover work that restarts lose.
        chunks = -(-remaining * job.epochs * job.chunks // job.required)
        if job.gains is job.internal_gains and (job.gains == job.worker_counts).all():
            per_chunk = job.minibatches * job.step_seconds / self.planner.slot_seconds
            gains = np.floor(job.worker_counts / per_chunk * (1 + 1e-12))
        else:
            gains = np.floor(job.gains / (job.minibatches * MICRO))
        return gains.astype(np.int64), chunks

    def max_gain(self) -> int:
        """Return the maximum progress units of one slot in an empty cluster."""
        return int(self.job.gains.max())

    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource with the least free capacity for the job, over both pools."""
        job, view = self.job, self.view
        slots = view.end - view.slot
        worker_board, ps_board = self.planner.boards
        boards = [(worker_board, False)]
        if job.ps is not None and job.ps.any():
            boards.append((ps_board, True))
        candidates = [
            (*board.scarcest(job, ps=ps, ledger=view.ledger, slots=slots), ps)
            for board, ps in boards
        ]
        # Compare the numbers of workers that each pool allows.
        per_worker = float(job.ps_counts[-1] / job.worker_counts[-1]) if job.ps is not None else 1.0
        column, room, ps = min(
            candidates, key=lambda candidate: candidate[1] / (per_worker if candidate[2] else 1.0)
        )
        return ResourceBottleneck(
            view.cluster.resources[column],
            "parameter-server servers" if ps else "worker servers",
            "parameter servers" if ps else "workers",
            room,
        )

    def uses(self, schedule: Schedule) -> list[BoardUse]:
        """Return what a schedule takes from the two boards."""
        worker_board, ps_board = self.planner.boards
        uses = [BoardUse(" of worker servers", worker_board, schedule.workers, self.job.worker)]
        if self.job.ps is not None:
            label = " of parameter-server servers"
            uses.append(BoardUse(label, ps_board, schedule.ps, self.job.ps))
        return uses

    def most_expensive(self, schedule: Schedule) -> tuple[str, float]:
        """Return the resource with the largest part of a schedule's cost, and that part."""
        if self.planner.posted is None:
            return super().most_expensive(schedule)
        column, paid = self.planner.posted.most_expensive(self.job, schedule)
        return f"{self.view.cluster.resources[column]}, at posted prices", paid

    def slot_costs(self, schedule: Schedule) -> Floats:
        """Return a schedule's cost in each of its active slots."""
        if self.planner.posted is None:
            return super().slot_costs(schedule)
        active = schedule.active_slots
        first = int(active[0])
        costs = self.planner.posted.costs(self.job, first, int(active[-1]) - first + 1)
        workers = schedule.totals()[0]
        return costs[active - first, np.searchsorted(self.job.worker_counts, workers)]


class OasisPolicy(PricedAdmission):
    """OASiS's online algorithm (Algorithm 1)."""

    name = "oasis"
    capabilities = replace(PricedAdmission.capabilities, runs_bags=True)

    def __init__(self, context: PolicyContext, parameters: OasisParameters) -> None:
        parameters = parameters.for_jobs(context.known_jobs)
        cluster, known_jobs = context.cluster, context.known_jobs
        with_ps = any(job.ps is not None for job in known_jobs or ())
        if parameters.prices == "given" and parameters.ps is None and with_ps:
            raise InputError(
                Fault("policy oasis", "jobs have parameter servers", "set ps.L and ps.U.<resource>")
            )
        # If jobs aren't known in advance, servers of role `any` only carry workers until the first
        # job with parameter servers.
        self._halved = parameters.split == "half" or (
            parameters.split == "auto" and parameters.prices == "offline" and with_ps
        )
        self._reunites = parameters.split == "auto" and parameters.prices == "online"
        self._options = parameters
        self._posted = (
            None if parameters.fixed is None else read_posted_prices(parameters.fixed, cluster)
        )
        super().__init__(context, parameters, (parameters.worker, parameters.ps))
        if self._posted is not None:
            # Theorems don't cover posted prices, and bags only have prices on boards.
            self.capabilities = replace(self.capabilities, runs_bags=False, guarantees=False)
        if self._may_divide and parameters.prices != "online":
            # A refused job with parameter servers divides the servers all the same.
            self.capabilities = replace(self.capabilities, forgets_refused=False)

    @property
    def _may_divide(self) -> bool:
        """Whether the next job with parameter servers divides the servers."""
        return self._options.split == "auto" and not self._halved

    def _pools(self, cluster: Cluster) -> Sequence[tuple[Carries, Flags]]:
        workers, servers = server_pools(cluster, halved=self._halved)
        return ("workers", workers), ("ps", servers)

    def _alone(self, cluster: Cluster) -> StandaloneValue:
        return StandaloneValue(cluster, *server_pools(cluster, halved=self._halved))

    def _build_planner(self, cluster: Cluster, boards: Sequence[PriceBoard]) -> OasisPlanner:
        options = self._options
        return OasisPlanner(
            boards,
            cluster.slot_seconds,
            literal=options.chunks == "literal",
            posted=self._posted,
            gap=options.gap,
        )

    def _searches_exactly(self) -> bool:
        return self._options.gap == 0 and self._options.chunks == "exact"

    def expect(self, jobs: Sequence[Job]) -> None:
        """Divide the servers before the first job with PS, unless prices are learnt."""
        if self._parameters.prices == "online":
            return  # then only an admitted job divides them
        if self._may_divide and any(job.ps is not None for job in jobs):
            self._was_disturbed |= self._earned > 0  # earlier jobs were admitted to other pools
            self._divide()

    @property
    def terms(self) -> DecisionInputs:
        """Inputs of decisions besides reservations: constants, and whether servers are divided."""
        return DecisionInputs([board.constants for board in self._planner.boards], self._halved)

    def _payoff_bound(self, job: Job, offer: PricedOffer | None) -> float | None:
        if self._posted is not None or job.bag is not None:
            return None
        return -math.inf if offer is None else offer.bound

    @contextmanager
    def as_if_learnt(self, view: View, job: Job) -> Iterator[None]:
        """Post the prices and the division of servers that the job meets, within the block."""
        before = self._planner, self._learners, self._halved
        self._divide_for(view, job)
        try:
            with super().as_if_learnt(view, job):
                yield
        finally:
            self._planner, self._learners, self._halved = before

    def learn(self, view: View, job: Job) -> None:
        """Learn prices from an admitted job; divide the servers if it has parameter servers."""
        self._divide_for(view, job)
        super().learn(view, job)

    def _take_back(self, view: View, name: str) -> None:
        super()._take_back(view, name)
        self._divide_for(view, None)

    def _divide_for(self, view: View, job: Job | None) -> None:
        """Divide the servers if this job has parameter servers, or end their division.

        If prices are learnt, all `any` servers carry workers again as soon as no open job has
        parameter servers, and no job that teaches.
        """
        needed = job is not None and job.ps is not None
        if self._may_divide and needed:
            self._divide()
        elif self._reunites and self._halved and not needed:
            _, ps_learner = self._learners_at(view)
            if not ps_learner.is_used and not _has_open_ps(view):
                self._halved = False
                self._follow(self._cluster)

    def resume(self, view: View) -> None:
        """Resync with the view; divide the servers if an open job has parameter servers."""
        super().resume(view)
        if self._may_divide and _has_open_ps(view):
            self._divide()

    def _divide(self) -> None:
        """Reserve half of the `any` servers for parameter servers; running workers continue."""
        self._halved = True
        self._follow(self._cluster)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters and the present price constants."""
        resources = self._cluster.resources
        worker_board, ps_board = self._planner.boards
        return self._parameters.model_dump(exclude={"worker", "ps"}) | {
            "worker": worker_board.constants.record(resources),
            "ps": ps_board.constants.record(resources),
        }


def server_pools(cluster: Cluster, *, halved: bool) -> tuple[Flags, Flags]:
    """Return disjoint masks of the servers for workers and of those for parameter servers.

    Unless ``halved``, servers of role `any` only carry workers. Otherwise, the later half of the
    `any` servers of each kind carry parameter servers. Kinds of odd number have one server each
    left over. The half of these with the fewest resources carry parameter servers; at least one
    does if parameter servers would have none.
    """
    workers, servers = cluster.hosts_workers.copy(), cluster.hosts_ps.copy()
    shared = np.array([role is Role.ANY for role in cluster.roles])
    if not halved:
        servers &= ~shared
        return workers, servers
    odd: list[int] = []  # the left-over servers
    for kind in np.unique(cluster.kinds[shared]):
        rows = np.flatnonzero(shared & (cluster.kinds == kind))
        half = len(rows) // 2
        servers[rows[: len(rows) - half]] = False
        workers[rows[len(rows) - half :]] = False
        odd += rows[half : len(rows) - half].tolist()
    # Workers have little use for a server with fewer resources, such as one without a GPU.
    odd.sort(key=lambda row: (np.count_nonzero(cluster.capacity[row]), -row))
    need_one = not servers.any() and workers.sum() > 1
    given = odd[: max(len(odd) // 2, int(need_one))]
    servers[given], workers[given] = True, False
    return workers, servers


def _has_open_ps(view: View) -> bool:
    return any(state.job.ps is not None for state in view.open_jobs.values())
