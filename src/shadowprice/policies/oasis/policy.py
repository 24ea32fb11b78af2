"""OASiS: Algorithm 1 on two pools, and the best schedule of a job, problem (27)."""

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
"""Slots after twice the shortest duration that are searched first; most jobs need no later ones."""


class OasisPlanner(PricedPlanner):
    """Plans on two disjoint pools of servers, for workers and for parameter servers.

    With ``literal``, every slot trains whole chunks, as Algorithm 2 is printed. Prices in
    ``posted`` are added to those of the boards. A schedule is optimal within the relative ``gap``
    to the largest payoff.
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
        """Return the job at the current prices; ``remaining`` is in progress units."""
        if job.bag is not None:
            return PricedBag(self.boards[0], view, job, remaining)
        return OasisPricedJob(self, view, job, remaining)


class OasisPricedJob(PricedJob):
    """A job on two pools."""

    def __init__(self, planner: OasisPlanner, view: View, job: Job, remaining: int) -> None:
        super().__init__(view, job, remaining)
        self.planner = planner

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer of largest payoff, (27); None if no schedule completes the work."""
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
                # Costs are never negative. A completion whose utility alone doesn't exceed this
                # payoff can't pay more.
                slots = int(np.count_nonzero(utility > offer.payoff))
                if slots <= near:
                    return offer
        return self._search(gains, required, utility[:slots])

    def _search(self, gains: Integers, required: int, utility: Floats) -> PricedOffer | None:
        """Return the best offer over the first ``len(utility)`` slots."""
        job, now, planner = self.job, self.view.slot, self.planner
        # COST_t of Algorithm 2: the least cost of each worker count by slot.
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
        # Line 24 gives d chunks ceil(d M (tau + 2 e / b)) workers. So n workers train the largest d
        # that needs no more than n, and the work is a whole number of chunks.
        # The remaining work can exceed the job's own because plans cover work lost by restarts.
        chunks = -(-remaining * job.epochs * job.chunks // job.required)
        if job.gains is job.internal_gains and (job.gains == job.worker_counts).all():
            per_chunk = job.minibatches * job.step_seconds / self.planner.slot_seconds
            gains = np.floor(job.worker_counts / per_chunk * (1 + 1e-12))
        else:
            gains = np.floor(job.gains / (job.minibatches * MICRO))
        return gains.astype(np.int64), chunks

    def max_gain(self) -> int:
        """Return the most progress units that one slot can add."""
        return int(self.job.gains.max())

    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource with the least free capacity for the job, over both pools."""
        job, view = self.job, self.view
        slots = view.end - view.slot
        workers, servers = self.planner.boards
        boards = [(workers, False)]
        if job.ps is not None and job.ps.any():
            boards.append((servers, True))
        candidates = [
            (*board.scarcest(job, ps=ps, ledger=view.ledger, slots=slots), ps)
            for board, ps in boards
        ]
        # Parameter servers are needed in proportion: compare the workers that each pool allows.
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
        workers, servers = self.planner.boards
        uses = [BoardUse(" of worker servers", workers, schedule.workers, self.job.worker)]
        if self.job.ps is not None:
            label = " of parameter-server servers"
            uses.append(BoardUse(label, servers, schedule.ps, self.job.ps))
        return uses

    def most_expensive(self, schedule: Schedule) -> tuple[str, float]:
        """Return the pool's resource that contributes most to a schedule's cost, and its cost."""
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
    """The online algorithm (Algorithm 1)."""

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
        # If jobs aren't known in advance, no server is set aside for parameter servers until a job
        # needs them.
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
            # No theorem covers posted prices, and they don't price copies of tasks.
            self.capabilities = replace(self.capabilities, runs_bags=False, guarantees=False)
        if self._may_divide and parameters.prices != "online":
            # Dividing the servers for a job changes the state even if the job is refused.
            self.capabilities = replace(self.capabilities, forgets_refused=False)

    @property
    def _may_divide(self) -> bool:
        """Return whether the next job with parameter servers divides the servers."""
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
            return
        if self._may_divide and any(job.ps is not None for job in jobs):
            self._was_disturbed |= self._earned > 0  # admitted jobs had all servers
            self._divide()

    @property
    def terms(self) -> DecisionInputs:
        """Inputs of decisions besides reservations: constants, and whether pools are halved."""
        return DecisionInputs([board.constants for board in self._planner.boards], self._halved)

    def _payoff_bound(self, job: Job, offer: PricedOffer | None) -> float | None:
        if self._posted is not None or job.bag is not None:
            return None
        return -math.inf if offer is None else offer.bound

    @contextmanager
    def as_if_learnt(self, view: View, job: Job) -> Iterator[None]:
        """Post the prices that a job would meet on arrival, and divide the servers as it would."""
        before = self._planner, self._learners, self._halved
        self._divide_for(view, job)
        try:
            with super().as_if_learnt(view, job):
                yield
        finally:
            self._planner, self._learners, self._halved = before

    def learn(self, view: View, job: Job) -> None:
        """Learn prices from a promised job, and keep the servers divided as its plan is."""
        self._divide_for(view, job)
        super().learn(view, job)

    def _take_back(self, view: View, name: str) -> None:
        super()._take_back(view, name)
        self._divide_for(view, None)

    def _divide_for(self, view: View, job: Job | None) -> None:
        """Divide the servers if this job has parameter servers.

        If prices are learnt, all `any` servers carry workers again once neither an open job nor one
        that teaches has parameter servers.
        """
        needed = job is not None and job.ps is not None
        if self._may_divide and needed:
            self._divide()
        elif self._reunites and self._halved and not needed:
            _, servers = self._learners_at(view)
            if not servers.is_used and not _has_open_ps(view):
                self._halved = False
                self._follow(self._cluster)

    def resume(self, view: View) -> None:
        """Resync; the servers are divided if an open job has parameter servers."""
        super().resume(view)
        if self._may_divide and _has_open_ps(view):
            self._divide()

    def _divide(self) -> None:
        """Give half of the `any` servers to parameter servers; processes there continue."""
        self._halved = True
        self._follow(self._cluster)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters and the price constants."""
        resources = self._cluster.resources
        workers, servers = self._planner.boards
        return self._parameters.model_dump(exclude={"worker", "ps"}) | {
            "worker": workers.constants.record(resources),
            "ps": servers.constants.record(resources),
        }


def server_pools(cluster: Cluster, *, halved: bool) -> tuple[Flags, Flags]:
    """Return disjoint masks of the servers for workers and of those for parameter servers.

    Unless ``halved``, no server of role `any` goes to parameter servers. Otherwise, of each kind,
    the later half of the `any` servers does. Of the kinds' odd servers, the half with the fewest
    resources does; at least one server does if parameter servers would otherwise have none.
    """
    workers, servers = cluster.hosts_workers.copy(), cluster.hosts_ps.copy()
    shared = np.array([role is Role.ANY for role in cluster.roles])
    if not halved:
        servers &= ~shared
        return workers, servers
    odd: list[int] = []
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
    """Return whether an open job has parameter servers."""
    return any(state.job.ps is not None for state in view.open_jobs.values())
