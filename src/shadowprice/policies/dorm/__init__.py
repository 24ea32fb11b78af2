"""Dorm: worker counts and placements recomputed by a utilisation-maximising MILP."""

from __future__ import annotations

from pydantic import Field

from shadowprice.policies.registry import Parameters, PolicyInfo


class DormParameters(Parameters):
    """Parameters of `dorm`."""

    fairness_loss: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="theta_1: the differences of jobs' dominant shares from the fair ones sum to "
        "at most ceil(theta_1 * 2 * resources)",
    )
    adjustment_overhead: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="theta_2: ceil(theta_2 * running jobs) of the running jobs may be adjusted "
        "at once",
    )
    window: int = Field(
        default=8, ge=1, description="queued jobs that enter the program, in order of arrival"
    )
    adjustable: int = Field(
        default=8,
        ge=0,
        description="running jobs that the program may adjust, those farthest from their fair "
        "share first; the others stay as they are",
    )
    exact_servers: int = Field(
        default=8,
        ge=0,
        description="maximum number of servers that the program treats one by one. On larger "
        "clusters it treats groups of equal servers, or of one role if there are too many groups; "
        "jobs are then placed by best fit",
    )
    node_limit: int = Field(
        default=100,
        ge=1,
        description="branch-and-bound nodes after which the best solution is taken; a time limit "
        "would make runs differ",
    )
    gap: float = Field(
        default=1e-2,
        ge=0,
        lt=1,
        description="relative gap of the utilisation to its bound at which a solution counts as "
        "optimal",
    )


POLICIES = (
    PolicyInfo(
        name="dorm",
        summary="All jobs are admitted. Whenever a job arrives or leaves, an MILP computes worker "
        "counts that maximise utilisation within limits on unfairness and on adjustments.",
        paper="OASiS (INFOCOM 2018), section V, scheme (iv); Sun et al., Towards Distributed "
        "Machine Learning in Shared Clusters: A Dynamically-Partitioned Approach (SMARTCOMP 2017)",
        parameters=DormParameters,
        build="shadowprice.policies.dorm.policy:Dorm",
        details="A running job keeps at least its minimum of workers until it is done. On clusters "
        "of more than `exact_servers` servers the MILP is over classes of equal servers, and the "
        "result is placed afterwards. Queued jobs beyond `window` wait, and running ones beyond "
        "`adjustable` don't change. `statistics` counts programs that stopped at the node limit, "
        "and jobs that couldn't be placed as in the solution.",
    ),
)
