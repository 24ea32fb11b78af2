"""OASiS: online primal-dual admission with elastic workers and parameter servers."""

from shadowprice.policies.oasis.parameters import OasisParameters
from shadowprice.policies.registry import PolicyInfo

POLICIES = (
    PolicyInfo(
        name="oasis",
        summary="Admits a job when its utility exceeds the price of what it would use, and plans "
        "its workers slot by slot. Runs bags of tasks too.",
        paper="Bao, Peng, Wu, Li: Online Job Scheduling in Distributed Machine Learning Clusters "
        "(INFOCOM 2018)",
        parameters=OasisParameters,
        build="shadowprice.policies.oasis.policy:OasisPolicy",
        details="Every job is decided when it arrives, by the exact optimum of (27) at the prices "
        "of that moment; an admitted job keeps its plan. Workers and parameter servers use "
        "different servers: those of role `any` are split between the two. The start "
        "and the copies of a bag of tasks are chosen at the prices of the slots.",
    ),
)
