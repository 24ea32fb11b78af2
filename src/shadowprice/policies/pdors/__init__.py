"""PD-ORS: online primal-dual admission with co-located workers and parameter servers."""

from shadowprice.policies.pdors.parameters import PdorsParameters
from shadowprice.policies.registry import PolicyInfo

POLICIES = (
    PolicyInfo(
        name="pdors",
        summary="Admits a job when its utility exceeds the price of what it would use, and puts "
        "its workers and parameter servers on one machine if that pays.",
        paper="Yu: Toward efficient online scheduling for large-scale distributed machine "
        "learning systems (MSc thesis, Iowa State University 2019)",
        parameters=PdorsParameters,
        build="shadowprice.policies.pdors.policy:Pdors",
        details="All servers form one pool. In a slot in which all of a job is on one machine "
        "it communicates at its `internal_bandwidth`, otherwise at its workers' bandwidth. Every "
        "job is decided when it arrives, and an admitted job keeps its plan. Servers of role "
        "`worker` or `ps` carry only their kind.",
    ),
)
