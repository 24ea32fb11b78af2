"""Algorithm 1: admit a job when its payoff is positive, and post new prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.policy import PolicyContext
from shadowprice.policies.oasis.parameters import OasisParameters
from shadowprice.policies.oasis.planner import Planner
from shadowprice.policies.oasis.quotes import OasisPlanner
from shadowprice.policies.pricing.admission import PricedAdmission, first_constants
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import Carries, ConstantsLearner, Pool


class Oasis(PricedAdmission):
    """The online algorithm (Algorithm 1).

    Parameters
    ----------
    context : PolicyContext
        The cluster, and the job set for offline price constants.
    parameters : OasisParameters
        How prices are formed and work is counted.
    """

    capabilities = replace(PricedAdmission.capabilities, runs_bags=True)

    def __init__(self, context: PolicyContext, parameters: OasisParameters) -> None:
        cluster, known = context.cluster, context.known_jobs
        with_ps = known is None or any(job.ps is not None for job in known)
        if parameters.prices == "given" and parameters.ps is None and with_ps and known is not None:
            raise InputError(
                Fault("policy oasis", "jobs have parameter servers", "set ps.L and ps.U.<resource>")
            )
        hosts_workers, hosts_ps = pools(cluster, parameters.split, with_ps)
        kinds: tuple[tuple[NDArray[np.bool_], Carries], ...] = (
            (hosts_workers, "workers"),
            (hosts_ps, "ps"),
        )
        learners = [
            ConstantsLearner(
                Pool.of(cluster, members),
                carries,
                cluster.horizon,
                context.until,
                parameters.lower == "clearing",
                parameters.prices == "offline",
            )
            for members, carries in kinds
        ]
        constants = first_constants(
            "oasis", context, parameters, learners, (parameters.worker, parameters.ps)
        )
        workers, servers = (
            PriceBoard(cluster, learner.pool, constant, cluster.horizon)
            for learner, constant in zip(learners, constants, strict=True)
        )
        planner = Planner(
            workers, servers, cluster.slot_seconds, literal=parameters.chunks == "literal"
        )
        super().__init__(OasisPlanner(planner), learners, parameters, cluster)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters and the price constants."""
        resources = self._cluster.resources
        workers, servers = self._planner.boards
        return self._parameters.model_dump(exclude={"worker", "ps"}) | {
            "worker": workers.constants.record(resources),
            "ps": servers.constants.record(resources),
        }


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
