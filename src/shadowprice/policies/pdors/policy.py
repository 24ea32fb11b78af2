"""PD-ORS's Algorithm 1 on one pool of servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.policies.pdors.parameters import THEOREM, PdorsParameters
from shadowprice.policies.pdors.planner import PdorsPlanner, PdorsPricedJob
from shadowprice.policies.pricing.admission import PricedAdmission, initial_constants
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import ConstantsLearner, LowerConstant, PricePool
from shadowprice.policies.pricing.offers import PricedJob


class Pdors(PricedAdmission):
    """Algorithm 1 on one pool of servers.

    Raises `InputError` if a job has parameter servers and no server may host them.
    """

    capabilities = replace(PricedAdmission.capabilities, runs_bags=True)

    def __init__(self, context: PolicyContext, parameters: PdorsParameters) -> None:
        parameters = parameters.for_jobs(context.known_jobs)
        cluster = context.cluster
        if not cluster.hosts_workers.any():
            raise InputError(
                Fault(
                    "policy pdors",
                    "no server of the cluster carries workers",
                    "give servers the role any or worker",
                )
            )
        with_ps = [job.name for job in context.known_jobs or () if job.ps is not None]
        if with_ps and not cluster.hosts_ps.any():
            raise InputError(
                Fault(
                    "policy pdors",
                    f"{len(with_ps)} jobs ({with_ps[0]!r} first) have parameter servers, and no "
                    "server of the cluster carries any",
                    "give servers the role any, or leave `ps` out for all-reduce training",
                )
            )
        everything = np.ones(cluster.servers, dtype=np.bool_)
        learner = ConstantsLearner(
            PricePool.of(cluster, everything),
            "both",
            cluster.horizon,
            context.until,
            LowerConstant(parameters.lower, _alone(cluster, parameters)),
            parameters.prices == "offline",
        )
        constants = initial_constants("pdors", context, parameters, [learner], [parameters.given])
        board = PriceBoard(cluster, learner.pool, constants[0], cluster.horizon)
        planner = PdorsPlanner(board, cluster, parameters, context.seed)
        self._seed = context.seed
        self._was_repaired = False
        """Whether some placement for a decided job was repaired or searched, not rounded."""
        super().__init__(planner, [learner], parameters, context)

    def _follow(self, cluster: Cluster) -> None:
        (learner,), (board,) = self._learners, self._planner.boards
        assert isinstance(self._parameters, PdorsParameters)
        learner = learner.moved(
            PricePool.of(cluster, np.ones(cluster.servers, dtype=np.bool_)),
            _alone(cluster, self._parameters),
        )
        constants = board.constants
        if self._parameters.prices == "online":
            constants = self._parameters.scaled(learner.constants())
        self._learners = (learner,)
        board = PriceBoard(cluster, learner.pool, constants, cluster.horizon)
        self._planner = PdorsPlanner(board, cluster, self._parameters, self._seed)

    def _alone(self) -> StandaloneValue:
        assert isinstance(self._parameters, PdorsParameters)
        return _alone(self._cluster, self._parameters)

    def _ratio_over_alpha(self) -> float:
        """Return 6 G / delta of Theorem 3, with the largest G of Theorem 2 (W_1 = 1).

        Exact placements aren't rounded, so the factor is 2. Nothing is proved for greedy ones, so
        it is infinite.
        """
        assert isinstance(self._parameters, PdorsParameters)
        if self._parameters.placement != "randomised":
            return 2.0 if self._parameters.placement == "exact" else math.inf
        logarithm = math.log(6.0 / self._parameters.delta)
        gain = 1.0 + logarithm + math.sqrt(logarithm**2 + 2.0 * logarithm)
        return 6.0 * gain / self._parameters.delta

    def _premises(self, jobs: Sequence[Job]) -> dict[str, bool]:
        assert isinstance(self._parameters, PdorsParameters)
        premises = super()._premises(jobs)
        if self._parameters.placement == "randomised":
            premises["gain_is_theorem_2"] = self._parameters.gain == THEOREM
            # Theorem 2 bounds the cost of a rounding that succeeds.
            premises["no_placement_repaired"] = not self._was_repaired
        return premises

    def _observe(self, quote: PricedJob) -> None:
        if isinstance(quote, PdorsPricedJob):
            self._was_repaired |= quote.was_repaired

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters and the price constants."""
        (board,) = self._planner.boards
        record = board.constants.record(self._cluster.resources)
        return self._parameters.model_dump(exclude={"L", "U"}) | record


def _alone(cluster: Cluster, parameters: PdorsParameters) -> StandaloneValue:
    colocated = parameters.bandwidth == "internal"
    return StandaloneValue(cluster, cluster.hosts_workers, cluster.hosts_ps, colocated=colocated)
