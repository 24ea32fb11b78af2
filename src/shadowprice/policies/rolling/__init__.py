"""The project's own policy: promises at submission, plans revised at learnt shadow prices."""

from shadowprice.policies.registry import PolicyInfo
from shadowprice.policies.rolling.parameters import RollingParameters

POLICIES = (
    PolicyInfo(
        name="rolling",
        summary="Promises a completion slot to jobs that are worth what they keep others from, "
        "revises all plans within the promises, and lets other jobs wait for spare capacity.",
        paper="this project (design/0017-rolling.md); minimum satisfactory share: Gu et al., "
        "ElasticFlow (ASPLOS 2023); prices: Agrawal, Wang, Ye (Operations Research 2014)",
        parameters=RollingParameters,
        build="shadowprice.policies.rolling.policy:build",
        live_settings={"steady": True},
        details="Online: it learns prices from the jobs that have arrived, never from the job "
        "set. A promise is kept unless servers are lost or the stated work was wrong; that of a "
        "bag of tasks but for its miss probability.",
    ),
)
