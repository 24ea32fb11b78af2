"""Algorithm 1: admit a job when its payoff is positive, and post new prices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from shadowprice.core.arrays import Flags
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, View
from shadowprice.policies.oasis.parameters import OasisParameters
from shadowprice.policies.oasis.planner import ScheduleSearch
from shadowprice.policies.oasis.quotes import OasisPlanner
from shadowprice.policies.pricing.admission import PricedAdmission, initial_constants
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import (
    Carries,
    ConstantsLearner,
    LowerConstant,
    PriceConstants,
    PricePool,
)
from shadowprice.policies.pricing.contributions import Contributions
from shadowprice.policies.pricing.offers import PricedOffer
from shadowprice.policies.pricing.posted import read_posted_prices
from shadowprice.policies.pricing.terms import DecisionInputs, Shortfall


class OasisPolicy(PricedAdmission):
    """The online algorithm (Algorithm 1)."""

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
        divided = parameters.split == "half" or (
            parameters.split == "auto" and parameters.prices == "offline" and with_ps
        )
        self._undivided = parameters.split == "auto" and not divided
        self._reunites = self._undivided and parameters.prices == "online"
        self._halved = divided
        kinds: tuple[Carries, ...] = ("workers", "ps")
        members = server_pools(cluster, halved=divided)
        floor = LowerConstant(parameters.lower, StandaloneValue(cluster, *members))
        learners = [
            ConstantsLearner(
                PricePool.of(cluster, servers),
                carries,
                cluster.horizon,
                context.until,
                floor,
                parameters.prices == "offline",
            )
            for servers, carries in zip(members, kinds, strict=True)
        ]
        constants = initial_constants(
            "oasis", context, parameters, learners, (parameters.worker, parameters.ps)
        )
        self._literal = parameters.chunks == "literal"
        self._gap = parameters.gap
        self._posted = (
            None if parameters.fixed is None else read_posted_prices(parameters.fixed, cluster)
        )
        planner = self._build_planner(cluster, learners, constants)
        super().__init__(planner, learners, parameters, context)
        if self._posted is not None:
            # No theorem covers posted prices, and they don't price copies of tasks.
            self.capabilities = replace(self.capabilities, runs_bags=False, guarantees=False)
        if self._undivided and parameters.prices != "online":
            # Dividing the servers for a job changes the state even if the job is refused.
            self.capabilities = replace(self.capabilities, forgets_refused=False)

    def _searches_exactly(self) -> bool:
        return self._gap == 0 and not self._literal

    def expect(self, jobs: Sequence[Job]) -> None:
        """Divide the servers before the first job with parameter servers is decided.

        If prices are learnt, only promised jobs divide them (`_divide_for`).
        """
        if self._parameters.prices == "online":
            return
        if self._undivided and any(job.ps is not None for job in jobs):
            self._was_disturbed |= self._earned > 0  # admitted jobs had all servers
            self._divide()

    @property
    def terms(self) -> DecisionInputs:
        """Inputs of decisions besides reservations: constants, and whether pools are halved."""
        return DecisionInputs([board.constants for board in self._planner.boards], self._halved)

    def _shortfall(self, view: View, job: Job, offer: PricedOffer | None) -> Shortfall | None:
        if self._posted is not None or job.bag is not None:
            return None
        value = float(job.utility.values(np.array([view.slot - job.arrival]))[0])
        if offer is None:
            return Shortfall(value, -math.inf)
        return None if offer.bound is None else Shortfall(value, offer.bound)

    @contextmanager
    def as_if_learnt(
        self, view: View, job: Job, again: tuple[int, Contributions] | None = None
    ) -> Iterator[None]:
        """Post the prices that a job would meet on arrival, and divide the servers as it would."""
        before = self._planner, self._learners, self._undivided, self._halved
        self._divide_for(view, job)
        try:
            with super().as_if_learnt(view, job, again):
                yield
        finally:
            self._planner, self._learners, self._undivided, self._halved = before

    def learn(self, view: View, job: Job, again: tuple[int, Contributions] | None = None) -> None:
        """Learn prices from a promised job, and keep the servers divided as its plan is."""
        self._divide_for(view, job)
        super().learn(view, job, again)

    def _take_back(self, view: View, name: str) -> None:
        super()._take_back(view, name)
        self._divide_for(view, None)

    def _divide_for(self, view: View, job: Job | None) -> None:
        """Divide the servers if this job has parameter servers.

        If prices are learnt, all `any` servers carry workers again once neither an open job nor one
        that teaches has parameter servers.
        """
        needed = job is not None and job.ps is not None
        if self._undivided and needed:
            self._divide()
        elif self._reunites and self._halved and not needed:
            _, servers = self._learners_at(view)
            if not servers.is_used and not _has_open_ps(view):
                self._halved, self._undivided = False, True
                self._follow(self._cluster)

    def resume(self, view: View) -> None:
        """Resync; the servers are divided if an open job has parameter servers."""
        super().resume(view)
        if self._undivided and _has_open_ps(view):
            self._divide()

    def _divide(self) -> None:
        """Give half of the `any` servers to parameter servers.

        Processes that run on these servers continue, but the servers get no new workers.
        """
        self._halved, self._undivided = True, False
        self._follow(self._cluster)

    def _follow(self, cluster: Cluster) -> None:
        members = server_pools(cluster, halved=self._halved)
        learners = [
            learner.moved(PricePool.of(cluster, servers), StandaloneValue(cluster, *members))
            for learner, servers in zip(self._learners, members, strict=True)
        ]
        constants = [board.constants for board in self._planner.boards]
        if self._parameters.prices == "online":
            constants = [self._parameters.scaled(learner.constants()) for learner in learners]
        self._learners = tuple(learners)
        self._planner = self._build_planner(cluster, learners, constants)

    def _build_planner(
        self,
        cluster: Cluster,
        learners: Sequence[ConstantsLearner],
        constants: Sequence[PriceConstants],
    ) -> OasisPlanner:
        workers, servers = (
            PriceBoard(cluster, learner.pool, constant, cluster.horizon)
            for learner, constant in zip(learners, constants, strict=True)
        )
        planner = ScheduleSearch(
            workers,
            servers,
            cluster.slot_seconds,
            literal=self._literal,
            posted=self._posted,
            gap=self._gap,
        )
        return OasisPlanner(planner)

    def _alone(self) -> StandaloneValue:
        return StandaloneValue(self._cluster, *server_pools(self._cluster, halved=self._halved))

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
