"""Dorm: worker counts and placements recomputed by a utilisation-maximising MILP."""

from shadowprice.policies.dorm.parameters import DormParameters
from shadowprice.policies.registry import PolicyInfo

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
