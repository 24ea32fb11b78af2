"""The decisions of an observing service beside what another scheduler ran."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from shadowprice.rest.base import ApiPage, ApiRecord
from shadowprice.rest.jobs import JobReason, JobState

ObservedState = Literal["not seen", "running", "failed", "ended"]


class SimulatedTotals(ApiRecord):
    """Totals of the jobs under this service's decisions."""

    utility: float
    finished: int
    running: int
    waiting: int
    refused: int
    failed: int


class ObservedTotals(ApiRecord):
    """Totals of the jobs as they really ran."""

    utility: float
    finished: int
    running: int
    waiting: int
    failed: int
    assumed_completed: int = Field(description="ended jobs with an unknown exit status")
    unknown_utility: int = Field(description="ended jobs with an unknown utility")


class CompletedInBoth(ApiRecord):
    """Jobs that completed on both sides, and their mean completion times."""

    jobs: int
    simulated_seconds: float | None
    observed_seconds: float | None


class ComparedPromises(ApiRecord):
    """Promised jobs, and those that really completed in time."""

    jobs: int
    observed_in_time: int


class UnmanagedJob(ApiRecord):
    """A job that ran and was never submitted."""

    name: str
    tenant: str | None
    started: datetime
    completion: datetime | None
    state: ObservedState
    utility: float | None


class UnmanagedJobs(ApiRecord):
    """Jobs that ran and were never submitted."""

    count: int
    newest: list[UnmanagedJob]


class ComparedUtilization(ApiRecord):
    """Used share of the cluster in every slot from ``first`` on."""

    first: int
    simulated: list[float]
    observed: list[float]
    unknown_jobs: int
    unknown_servers: list[str]
    incomplete: bool


class ComparisonTotals(ApiRecord):
    """Totals of the submitted jobs on both sides; withdrawn jobs count on neither."""

    jobs: int
    withdrawn: int
    simulated: SimulatedTotals
    observed: ObservedTotals
    both: CompletedInBoth
    promises: ComparedPromises


class Comparison(ComparisonTotals):
    """The jobs of the last days on both sides."""

    days: float
    last_observation: datetime | None = Field(description="time of the last observation")
    incomplete: bool
    unmanaged_jobs: UnmanagedJobs
    utilization: ComparedUtilization


class SimulatedJob(ApiRecord):
    """A job under this service's decisions."""

    state: JobState
    started: datetime | None
    promise: datetime | None
    completion: datetime | None
    utility: float | None
    reason: JobReason | None


class ObservedJob(ApiRecord):
    """A job as it really ran."""

    state: ObservedState
    started: datetime | None
    completion: datetime | None
    utility: float | None
    runs: int


class ComparedJob(ApiRecord):
    """A job on both sides; ``gain`` is the difference of the utilities."""

    id: int
    name: str
    tenant: str | None
    submitted: datetime
    simulated: SimulatedJob
    observed: ObservedJob
    gain: float | None


class ComparedJobPage(ApiPage):
    """A page of compared jobs, newest first."""

    jobs: list[ComparedJob]
