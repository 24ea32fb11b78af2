"""Algorithm 1: admit a job when its payoff is positive, and post new prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import (
    Commit,
    Decision,
    Drop,
    JobsArrived,
    JobsDisplaced,
    PolicyEvent,
    Reject,
)
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.policies.oasis.parameters import OasisParameters
from shadowprice.policies.oasis.planner import Planner
from shadowprice.policies.oasis.refusals import explain
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import (
    ConstantsLearner,
    Pool,
    PriceConstants,
    given_constants,
)
from shadowprice.policies.pricing.parameters import GivenPrices


class Oasis:
    """The online algorithm (Algorithm 1).

    Parameters
    ----------
    context : PolicyContext
        The cluster, and the job set for offline price constants.
    parameters : OasisParameters
        How prices are formed and work is counted.
    """

    capabilities = Capabilities(plans_ahead=True, elastic=True, prices=True)

    def __init__(self, context: PolicyContext, parameters: OasisParameters) -> None:
        self._parameters = parameters
        self._cluster = context.cluster
        known = context.known_jobs
        with_ps = known is None or any(job.ps is not None for job in known)
        hosts_workers, hosts_ps = pools(context.cluster, parameters.split, with_ps)
        self._learners = [
            ConstantsLearner(
                Pool.of(context.cluster, members),
                for_ps,
                context.cluster.horizon,
                context.until,
                parameters.utility_floor,
            )
            for members, for_ps in ((hosts_workers, False), (hosts_ps, True))
        ]
        constants = self._first_constants(known, with_ps)
        workers, servers = (
            PriceBoard(context.cluster, learner.pool, constant, context.cluster.horizon)
            for learner, constant in zip(self._learners, constants, strict=True)
        )
        self._planner = Planner(
            workers,
            servers,
            context.cluster.slot_seconds,
            literal=parameters.chunks == "literal",
        )

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Decide each arriving job once; plan displaced jobs anew."""
        match event:
            case JobsArrived(_, jobs):
                for job in jobs:
                    if self._parameters.prices == "online":
                        self._learn(job, view.ledger)
                    yield self._admit(view, job)
            case JobsDisplaced(_, names, server):
                for name in names:
                    yield self._keep(view, view.open_jobs[name], server)
            case _:
                return

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters and the price constants."""
        resources = self._cluster.resources
        return self._parameters.model_dump(exclude={"worker", "ps"}) | {
            "worker": self._planner.workers.constants.record(resources),
            "ps": self._planner.servers.constants.record(resources),
        }

    def slot_prices(self, view: View) -> NDArray[np.float64]:
        """Return the price of all of each server's resources in the coming slot."""
        prices = np.zeros(self._cluster.capacity.shape)
        for board in (self._planner.workers, self._planner.servers):
            shares = np.stack(
                [board.pool.shares(row) for row in view.ledger.capacity[board.servers]]
            )
            prices[board.servers] += board.server_prices(view.ledger, 0) * np.minimum(shares, 1.0)
        return prices

    def _admit(self, view: View, job: Job) -> Decision:
        self._planner.follow(view.ledger)
        offer = self._planner.best(job, view.slot, view.end, job.required)
        if offer is None or offer.payoff <= 0:  # Algorithm 1, line 4
            return Reject(job.name, explain(self._planner, view, job, offer))
        schedule = self._planner.schedule(job, view.slot, offer)
        return Commit(job.name, schedule, offer.payoff, offer.utility, offer.cost)

    def _keep(self, view: View, state: JobState, server: int | None) -> Decision:
        """Plan the work that remains of an admitted job: kept whatever it costs, if it fits."""
        self._planner.follow(view.ledger)
        job = state.job
        offer = self._planner.best(job, view.slot, view.end, state.remaining)
        if offer is not None:
            schedule = self._planner.schedule(job, view.slot, offer)
            return Commit(job.name, schedule, offer.payoff, offer.utility, offer.cost)
        why = "its plan fell short" if server is None else f"{view.cluster.names[server]} was lost"
        detail = explain(self._planner, view, job, None, state.remaining)
        return Drop(
            job.name,
            Refusal(
                Reason.SERVER_LOST if server is not None else detail.reason,
                f"{why} and the rest of the job does not fit: {detail.message}",
                bottleneck=detail.bottleneck,
            ),
        )

    def _first_constants(
        self, known: Sequence[Job] | None, with_ps: bool
    ) -> tuple[PriceConstants, PriceConstants]:
        parameters = self._parameters
        if parameters.prices == "given":
            if parameters.ps is None and with_ps and known is not None:
                raise InputError(
                    Fault(
                        "policy oasis",
                        "jobs have parameter servers",
                        "set ps.L and ps.U.<resource>",
                    )
                )
            return self._given(parameters.worker), self._given(parameters.ps)
        if parameters.prices == "offline":
            if known is None:
                raise InputError(
                    Fault(
                        "policy oasis",
                        "prices=offline needs the whole job set",
                        "use online or given",
                    )
                )
            for learner in self._learners:
                learner.learn(known)
        worker, ps = (
            learner.constants().scaled(parameters.price_scale) for learner in self._learners
        )
        return worker, ps

    def _given(self, prices: GivenPrices | None) -> PriceConstants:
        resources = self._cluster.resources
        if prices is None:
            return given_constants(0.0, {}, resources)
        for name in prices.U.keys() - set(resources):
            known = ", ".join(resources)
            raise InputError(
                Fault(f"policy oasis: U.{name}", "no server has it", f"known: {known}")
            )
        constants = given_constants(prices.L, prices.U, resources)
        return constants.scaled(self._parameters.price_scale)

    def _learn(self, job: Job, ledger: LedgerView) -> None:
        boards = (self._planner.workers, self._planner.servers)
        for learner, board in zip(self._learners, boards, strict=True):
            if learner.learn((job,)):
                constants = learner.constants().scaled(self._parameters.price_scale)
                board.reprice(constants, ledger)


def pools(
    cluster: Cluster, split: str, with_ps: bool
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the servers that carry workers and those that carry parameter servers, disjoint.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    split : {"auto", "half", "none"}
        What becomes of servers of role `any`.
    with_ps : bool
        Whether any job has parameter servers.

    Returns
    -------
    (ndarray of bool, ndarray of bool)
        Over all servers. Half of the `any` servers of each kind, the later ones, go to parameter
        servers (the odd one to workers).
    """
    workers, servers = cluster.hosts_workers.copy(), cluster.hosts_ps.copy()
    shared = np.array([role is Role.ANY for role in cluster.roles])
    if split == "none" or (split == "auto" and not with_ps):
        servers &= ~shared
        return workers, servers
    for kind in np.unique(cluster.kinds[shared]):
        rows = np.flatnonzero(shared & (cluster.kinds == kind))
        half = -(-len(rows) // 2)
        servers[rows[:half]] = False
        workers[rows[half:]] = False
    return workers, servers


def build(context: PolicyContext, parameters: OasisParameters) -> Oasis:
    """Build the policy; see `shadowprice.policies.registry`."""
    return Oasis(context, parameters)
