"""Baselines: schedulers with which other policies are compared.

FIFO, DRF and RRH follow section V of OASiS. Shortest remaining time, least attained service,
backfilling and ElasticFlow follow their own papers.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import AfterValidator, Field

from shadowprice.core.amounts import parse_duration
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.policies.registry import Parameters, PolicyInfo

MAX_WORKERS: Final = 30
"""Maximum drawn number of workers: "fixed to a number within [1, 30]" (OASiS, section V)."""

FixedWorkers = Annotated[int, Field(ge=1)] | Literal["drawn", "max", "min"]

_FIXED_WORKERS = (
    "number of workers of a job, fixed while it runs: `drawn` uniformly, by seed and job name, "
    "from the numbers within [1, 30] that the job allows; the `max` or `min` that it allows; "
    "or a number, rounded to the nearest allowed one; fewer if the empty cluster can't run as many"
)


class FixedWorkersParameters(Parameters):
    """Parameters of policies that keep a job's worker count fixed."""

    workers: FixedWorkers = Field(default="drawn", description=_FIXED_WORKERS)

    def worker_count(self, job: Job, seed: int) -> int:
        """Return a job's number of workers; a drawn one only depends on the seed and its name."""
        counts, wanted = job.worker_counts, self.workers
        if wanted == "drawn":
            allowed = max(1, int(np.searchsorted(counts, MAX_WORKERS, side="right")))
            key = (seed % 2**64).to_bytes(8, "little")
            digest = blake2b(job.name.encode(), digest_size=8, key=key).digest()
            return int(counts[int.from_bytes(digest, "little") % allowed])
        if wanted == "max":
            return job.max_workers
        if wanted == "min":
            return int(counts[0])
        return int(counts[int(np.abs(counts - wanted).argmin())])

    def random_draws_text(self, jobs: Iterable[Job]) -> str:
        """Describe what is drawn at random; empty if nothing is, or no job leaves a choice."""
        has_choice = any(len(job.worker_counts) > 1 for job in jobs if job.bag is None)
        return "the numbers of workers" if self.workers == "drawn" and has_choice else ""


class FifoParameters(FixedWorkersParameters):
    """Parameters of `fifo`."""

    backfill: int = Field(
        default=0,
        ge=0,
        description="number of jobs behind a blocked head of the queue that may run before it",
    )


class DrfParameters(Parameters):
    """Parameters of `drf`, which has none of its own."""


class RrhParameters(FixedWorkersParameters):
    """Parameters of `rrh`."""

    threshold: float = Field(
        default=0.0,
        description="a job is admitted if its discounted utility minus its delay cost to other "
        "jobs is above this threshold",
    )
    alpha: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="weight of a job's utility when jobs are ranked; 1 - alpha is the weight of "
        "its delay cost to other jobs",
    )
    discount: float = Field(
        default=0.01,
        ge=0,
        description="discount of a utility by waiting time: utility / (1 + discount * slots)",
    )


def _length(text: str) -> str:
    try:
        parse_duration(text)
    except InputError as error:
        raise ValueError(str(error)) from error
    return text


Length = Annotated[str, AfterValidator(_length)]  # a duration as in files, such as 30min


class SrtfParameters(FixedWorkersParameters):
    """Parameters of `srtf`."""

    by: Literal["time", "service"] = Field(
        default="time",
        description="remaining work by which jobs are ordered: time: slots; service: slots times "
        "GPUs, which Tiresias calls SRSF",
    )


class LasParameters(FixedWorkersParameters):
    """Parameters of `las`."""

    threshold: Length = Field(
        default="3250s",
        description="GPU-time after which a job leaves the first queue, such as 1h on one GPU or "
        "30min on two; the default is that of the published code",
    )
    promote: float = Field(
        default=8.0,
        ge=0,
        allow_inf_nan=False,
        description="waiting time after which a job returns to the first queue, as a multiple of "
        "its run time; both count since it was last there; 0 disables it",
    )


class BackfillParameters(FixedWorkersParameters):
    """Parameters of `backfill`."""

    mode: Literal["easy", "conservative"] = Field(
        default="easy",
        description="waiting jobs that hold a reservation: easy: the first one; conservative: all",
    )
    rule: Literal["multifactor", "arrival", "shortest"] = Field(
        default="multifactor",
        description="order of the queue: multifactor: by priority; arrival: by arrival; shortest: "
        "by expected run time",
    )
    age_weight: float = Field(
        default=1000.0,
        allow_inf_nan=False,
        description="multifactor: weight of the waiting time, as a share of `max_age`",
    )
    max_age: Length = Field(
        default="7d",
        description="multifactor: waiting time after which the priority no longer grows",
    )
    size_weight: float = Field(
        default=0.0,
        allow_inf_nan=False,
        description="multifactor: weight of a job's dominant share of the cluster; below 0, small "
        "jobs come first",
    )
    priority_weight: float = Field(
        default=1000.0,
        allow_inf_nan=False,
        description="multifactor: weight of a job's `priority`",
    )
    depth: int = Field(
        default=500,
        ge=1,
        description="number of jobs, by priority, that are considered in a slot",
    )


class ElasticFlowParameters(Parameters):
    """Parameters of `elasticflow`."""

    slots: int = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="number of slots that are planned ahead; a later deadline counts as the last "
        "one",
    )


POLICIES = (
    PolicyInfo(
        name="fifo",
        summary="Jobs run in order of arrival, each with a fixed number of workers; the first "
        "that doesn't fit blocks the rest.",
        paper="OASiS (INFOCOM 2018), section V, scheme (i): the default of Hadoop and Spark",
        parameters=FifoParameters,
        build="shadowprice.policies.baselines.fifo:FifoPolicy",
        details="Round-robin placement. A job that loses its server returns to its place in the "
        "queue with its progress. A job whose number of workers never fits runs with fewer.",
    ),
    PolicyInfo(
        name="drf",
        summary="All jobs are admitted; their numbers of workers are max-min fair in dominant "
        "shares, computed again whenever a job arrives or leaves.",
        paper="OASiS (INFOCOM 2018), section V, scheme (ii); Ghodsi et al., Dominant Resource "
        "Fairness (NSDI 2011), Algorithm 1",
        parameters=DrfParameters,
        build="shadowprice.policies.baselines.drf:DrfPolicy",
        details="Progressive filling in whole workers, each with the parameter servers it needs, "
        "placed round robin; a job keeps its servers if its new number allows it. Only numbers of "
        "workers that are faster than every smaller one are granted. Shares are fractions of the "
        "cluster's total capacity.",
    ),
    PolicyInfo(
        name="rrh",
        summary="A job is admitted if its utility less the delay it causes is above a threshold; "
        "the most rewarding jobs run, the others pause.",
        paper="OASiS (INFOCOM 2018), section V, scheme (iii); Irwin, Grit, Chase, Balancing Risk "
        "and Reward in a Market-Based Task Service (HPDC 2004)",
        parameters=RrhParameters,
        build="shadowprice.policies.baselines.rrh:RiskRewardPolicy",
        details="Fixed numbers of workers, round-robin placement. Irwin's tasks fill a processor "
        "each; here a job delays the others by its dominant share of its remaining time. Penalties "
        "below zero, which utilities here do not have, are left out.",
    ),
    PolicyInfo(
        name="srtf",
        summary="All jobs are admitted; in each slot those with the shortest remaining time run "
        "for as long as they fit, the others pause.",
        paper="Schrage, A Proof of the Optimality of the Shortest Remaining Processing Time "
        "Discipline (Operations Research 1968); SRTF and SRSF in Gu et al., Tiresias (NSDI 2019)",
        parameters=SrtfParameters,
        build="shadowprice.policies.baselines.ranked:SrtfPolicy",
        details="Fixed numbers of workers, round-robin placement; jobs keep their servers while "
        "they run. It knows the remaining time of every job, and ignores utilities.",
    ),
    PolicyInfo(
        name="las",
        summary="All jobs are admitted; those with less GPU-time so far than a threshold run "
        "before the others, in two queues.",
        paper="Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning "
        "(NSDI 2019), discretised two-dimensional LAS",
        parameters=LasParameters,
        build="shadowprice.policies.baselines.ranked:LasPolicy",
        details="Fixed numbers of workers, round-robin placement. It doesn't know how long a job "
        "takes. Tiresias's placement by the skew of a model's tensors is left out.",
    ),
    PolicyInfo(
        name="backfill",
        summary="Jobs start in order of priority and run to their end; others may start earlier "
        "if they delay no reservation (EASY or conservative backfilling), as under Slurm.",
        paper="Lifka, The ANL/IBM SP Scheduling System (JSSPP 1995); Mu'alem, Feitelson, "
        "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM "
        "SP2 with Backfilling (TPDS 2001); Slurm's priority/multifactor and sched/backfill",
        parameters=BackfillParameters,
        build="shadowprice.policies.baselines.backfill:BackfillPolicy",
        details="Fixed numbers of workers, round-robin placement, no preemption. A job states "
        "`priority` and `walltime` in its file; without a wall time, its work at its number of "
        "workers is the estimate. Fair share, quality of service and partitions are left out.",
    ),
    PolicyInfo(
        name="elasticflow",
        summary="A job is admitted if its deadline and those of all admitted jobs can be met "
        "together; each gets the fewest workers for that, and spare ones by marginal return.",
        paper="Gu et al., ElasticFlow: An Elastic Serverless Training Platform for Distributed "
        "Deep Learning (ASPLOS 2023), Algorithms 1 and 2",
        parameters=ElasticFlowParameters,
        build="shadowprice.policies.baselines.elasticflow:ElasticFlow",
        details="The deadline is that of a deadline utility, or the target of a sigmoid; other "
        "jobs run on spare capacity. It ignores values. Plans are of sums over the cluster, as in "
        "the paper; placement is round robin, without its powers of two.",
    ),
)
