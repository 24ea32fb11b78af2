"""The baselines' parameters; light, so that listing policies compiles nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, Field

from shadowprice.core.amounts import parse_duration
from shadowprice.core.errors import InputError
from shadowprice.policies.registry import Parameters

if TYPE_CHECKING:
    from shadowprice.core.job import Job

MAX_WORKERS: Final = 30
"""Maximum of drawn worker counts: "fixed to a number within [1, 30]" (OASiS, section V)."""

FixedWorkers = Annotated[int, Field(ge=1)] | Literal["drawn", "max", "min"]

_FIXED_WORKERS = (
    "number of workers of a job, fixed while it runs: `drawn` uniformly, by seed and job name, "
    "from the numbers within [1, 30] that the job allows; the `max` or `min` that it allows; "
    "or a number, rounded to the nearest allowed one; fewer if the empty cluster can't run as many"
)


class FixedWorkersParameters(Parameters):
    """Parameters of policies that keep a job's worker count fixed."""

    workers: FixedWorkers = Field(default="drawn", description=_FIXED_WORKERS)

    def random_draws_text(self, jobs: Iterable[Job]) -> str:
        """Return what is drawn at random; empty if no job leaves a choice, or a value is set."""
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
    """Parameters of `drf`: it has none."""


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


Length = Annotated[str, AfterValidator(_length)]  # a length of time as files write it


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
        description="waiting time, as a multiple of its run time since it left, after which a job "
        "returns to the first queue; 0 disables it",
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
