"""Astraea: tenants with fair shares, batches, posted prices, payments for borrowed units.

BatchSche, with which it is compared, runs the same rounds with every tenant on its own servers.

Wang, Zhou, Han, Chen, Li: "Online Scheduling of Distributed Machine Learning Jobs for Incentivizing
Sharing in Multi-Tenant Systems", IEEE Transactions on Computers 72(3), 2023.
"""

from shadowprice.policies.astraea.parameters import RoundParameters
from shadowprice.policies.registry import PolicyInfo

PAPER = "Wang, Zhou, Han, Chen, Li, IEEE TC 72(3), 2023"

POLICIES = (
    PolicyInfo(
        name="astraea",
        summary="Tenants pool their shares: jobs run in batches as gangs that never move, free "
        "within their tenant's share, and at posted prices beyond it.",
        paper=f"{PAPER}: Algorithms 1-5",
        parameters=RoundParameters,
        build="shadowprice.policies.astraea.policy:build",
        counts_places=True,
        details="Servers count places ({worker: 8, ps: 1}); a job's worker and parameter server "
        "take one each. Jobs wait for their batch: the first slot in which one can run grows with "
        "lambda and with the time it arrives. No round is longer than the largest power of two "
        "within the cluster's horizon.",
    ),
    PolicyInfo(
        name="batchsche",
        summary="Each tenant runs on servers of its own, with Astraea's batches and gangs.",
        paper=f"{PAPER}, section 5.1; after Zhang et al., MobiHoc 2020",
        parameters=RoundParameters,
        build="shadowprice.policies.astraea.batchsche:build",
        counts_places=True,
        details="Shares become servers: cells as large as each share allows, parameter servers "
        "beside them. Prices depend on its own places. The original's objective, weighted "
        "completion time, is left out.",
    ),
)
