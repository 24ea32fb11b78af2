"""The offline optimum of OASiS's problem (1), the reference for online schedulers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shadowprice.policies.registry import Parameters, PolicyInfo


class OptimumParameters(Parameters):
    """Parameters of `optimum`."""

    time_limit: float = Field(
        default=60.0,
        gt=0,
        description="time limit of the solver in seconds, for the first plan and for each "
        "replanning after an unforeseen event; the best schedules so far are then used",
    )
    clock: Literal["wall", "processor"] = Field(
        default="wall",
        description="clock of time_limit: elapsed time, or processor time, which excludes time "
        "used by other processes",
    )
    gap: float = Field(
        default=1e-6,
        ge=0,
        lt=1,
        description="relative distance from the bound that counts as optimal",
    )
    max_decisions: int = Field(
        default=20_000,
        ge=1,
        description="maximum number of pairs of a job and a slot; a larger instance is refused",
    )


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
