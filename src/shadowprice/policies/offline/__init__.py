"""The offline optimum of OASiS's problem (1), the reference for online schedulers."""

from shadowprice.policies.offline.parameters import OptimumParameters
from shadowprice.policies.registry import PolicyInfo

POLICIES = (
    PolicyInfo(
        name="optimum",
        summary="Knows all jobs beforehand and schedules them for the largest total utility.",
        paper="OASiS (INFOCOM 2018), problem (1)-(13) and the offline optimum of Fig. 5",
        parameters=OptimumParameters,
        build="shadowprice.policies.offline.policy:Optimum",
        knows_all_jobs=True,
        details="For small instances, such as 10 jobs over 10 slots: the problem is NP-hard. If "
        "the time limit ends the search, the parameters in force report the bound and the "
        "remaining gap. Lost and changed servers and revised jobs are unforeseen events: the jobs "
        "that they displace are replanned together with future jobs, around the other plans.",
    ),
)
