"""Astraea: tenants own shares of the cluster, and pay posted prices for borrowed units.

BatchSche, with which it is compared, runs the same rounds with every tenant on its own servers.

Wang, Zhou, Han, Chen, Li: "Online Scheduling of Distributed Machine Learning Jobs for Incentivizing
Sharing in Multi-Tenant Systems", IEEE Transactions on Computers 72(3), 2023.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from shadowprice.core.specs import LimitedModel
from shadowprice.policies.registry import Parameters, PolicyInfo

Above1 = Annotated[float, Field(gt=1, allow_inf_nan=False)]


class Theta(LimitedModel):
    """theta of price function (8): 1 plus the price of a place when all of its type are taken."""

    source: Literal["known", "online", "given"] = Field(
        default="known",
        description="known: computed over the known jobs, or `online` if none are known; online: "
        "computed over open jobs, and finished jobs that arrived within the last horizon; given: "
        "`worker` and `ps`",
    )
    worker: Above1 | None = Field(default=None, description="theta of workers, all types")
    ps: Above1 | None = Field(default=None, description="theta of parameter servers, all types")
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=1.0, description="factor on theta, to study wrong estimates (Fig. 11)"
    )

    @model_validator(mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"source": value}
        if isinstance(value, dict) and "source" not in value and {"worker", "ps"} & value.keys():
            return {"source": "given", **value}
        return value

    @model_validator(mode="after")
    def _complete(self) -> Theta:
        if self.source == "given" and (self.worker is None or self.ps is None):
            raise ValueError("give both theta.worker and theta.ps")
        if self.source != "given" and (self.worker is not None or self.ps is not None):
            raise ValueError(f"theta.worker and theta.ps take the place of theta={self.source}")
        return self


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


class RoundParameters(Parameters):
    """Parameters of policies that schedule jobs in Astraea's rounds."""

    rounds: Annotated[
        Annotated[int, Field(ge=1, le=1000)] | Literal["lemma"], BeforeValidator(_number)
    ] = Field(
        default=2,
        alias="lambda",
        description="rounds of a batch, the paper's lambda; `lemma` takes Lemma 1's value over "
        "the known jobs (about a hundred at realistic prices); unused with calendar=demand",
    )
    calendar: Literal["auto", "doubling", "demand"] = Field(
        default="auto",
        description="when rounds begin. doubling: at the paper's intervals, counted from slot 0; "
        "demand: when jobs wait and no round is in progress, for as long as they need; auto: "
        "doubling if jobs are known in advance, as in a simulation, else demand",
    )
    theta: Theta = Field(default=Theta(), description="constants of the price function, see below")
    workers: Literal["elastic", "rigid"] = Field(
        default="elastic",
        description="elastic: a job may get any allowed number of workers (Algorithm 3); rigid: "
        "always its maximum number, as in the paper's example",
    )
    clock: Literal["round", "arrival"] = Field(
        default="round",
        description="time from which utilities count in a round. round: its beginning, as in the "
        "paper's ideal revenue; arrival: the job's arrival, as in the utility that it earns",
    )
    ties: Literal["spread", "pack"] = Field(
        default="spread",
        description="order of servers with equally many free places. spread: the least used one "
        "of the round first; pack: the most used one first",
    )


PAPER = "Wang, Zhou, Han, Chen, Li, IEEE TC 72(3), 2023"

POLICIES = (
    PolicyInfo(
        name="astraea",
        summary="Tenants pool their shares: jobs run in batches as gangs that never move, free "
        "within their tenant's share, and at posted prices beyond it.",
        paper=f"{PAPER}: Algorithms 1-5",
        parameters=RoundParameters,
        build="shadowprice.policies.astraea.rounds:build_astraea",
        counts_places=True,
        details="Servers state places ({worker: 8, ps: 1}); each worker and each parameter server "
        "takes one. Jobs wait for their batch: the first slot in which a job can run grows with "
        "lambda and with its arrival time. No round is longer than the largest power of two within "
        "the cluster's horizon.",
    ),
    PolicyInfo(
        name="batchsche",
        summary="Each tenant runs on servers of its own, with Astraea's batches and gangs.",
        paper=f"{PAPER}, section 5.1; after Zhang et al., MobiHoc 2020",
        parameters=RoundParameters,
        build="shadowprice.policies.astraea.rounds:build_batchsche",
        counts_places=True,
        details="Each tenant gets parts of servers: cells as large as its share allows, and "
        "parameter servers near its workers. Prices depend on its own places. The original's "
        "objective, weighted completion time, is left out.",
    ),
)
