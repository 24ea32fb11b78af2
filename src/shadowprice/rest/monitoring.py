"""REST models of prices, the timeline, decisions and what-if runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from shadowprice.rest.base import ApiPage, ApiRecord
from shadowprice.rest.jobs import JobState, StoredEvent


class ResourcePrice(TypedDict, total=False):
    """Reserved share of a resource, and the mean price of one server's total amount of it.

    Absent keys are unknown.
    """

    used: float
    price: float


class PriceSlot(ApiRecord):
    """Prices in one slot, by kind of server and resource."""

    slot: int
    begins: datetime
    kinds: dict[str, dict[str, ResourcePrice]]


class ServerKind(ApiRecord):
    """Servers of equal role and capacity."""

    name: str
    servers: list[str]
    role: Literal["worker", "ps", "any"]


class Prices(ApiRecord):
    """Prices of the coming slots."""

    priced: bool = Field(description="whether the policy has prices")
    policy: str
    kinds: list[ServerKind]
    slots: list[PriceSlot]


class PriceHistory(ApiRecord):
    """Prices of past slots."""

    slots: list[PriceSlot]


class TimelineJob(ApiRecord):
    """A job of the timeline; all fields are null if it belongs to another tenant."""

    job: str | None
    job_id: int | None
    tenant: str | None
    state: JobState | None


class TimelineBars(ApiRecord):
    """Runs and reservations as columns; times are in slots since ``origin``."""

    job: list[int] = Field(description="index into `jobs`")
    server: list[str]
    start: list[float]
    end: list[float]
    workers: list[int]
    ps: list[int]
    kind: list[int] = Field(
        description="0: the job ran; 1: reserved by the plan; 2: expected at the current rate, if "
        "the policy decides slot by slot"
    )
    share: list[float] = Field(description="share of the server's scarcest resource")


class Timeline(ApiRecord):
    """Past, running and planned placements."""

    slot_seconds: float
    origin: datetime
    now: float = Field(description="current time, in slots since `origin`")
    first: int = Field(description="first slot shown")
    last: int = Field(description="slot after the last one shown")
    running: int | None = Field(description="running slot")
    next_slot: int = Field(description="first slot that can still be decided")
    servers: list[str]
    incomplete: bool = Field(description="whether old bars are omitted, because there are too many")
    levels: str | None = Field(
        default=None,
        description="base64 of one byte per slot in [first, last), server by server: used share of "
        "the scarcest resource, 255 if all is used; null if the query names one job",
    )
    jobs: list[TimelineJob] | None
    bars: TimelineBars | None = Field(
        description="null above 4,000 bars: query one server or one job"
    )
    promises: list[tuple[int, int]] | None = Field(
        description="[index into `jobs`, promised slot] of jobs without a placement"
    )


class DecisionPage(ApiPage):
    """A page of the policy's decisions, newest first."""

    decisions: list[StoredEvent]


WhatIfState = Literal["waiting", "running", "done", "failed", "cancelled"]


class WhatIfProgress(ApiRecord):
    """Finished simulations of a what-if run."""

    done: int = Field(description="finished simulations")
    of: int = Field(description="simulations of the run")


class WhatIfQuestion(ApiRecord):
    """The change that a what-if run simulates."""

    days: float
    at: datetime = Field(description="end of these days")
    servers: dict[str, int]
    policy: str
    set: dict[str, Any] = Field(description="policy parameters that the run changes")


class WhatIfTimes(ApiRecord):
    """Differences in time between the simulations; negative means sooner."""

    mean_jct_seconds: float | None = Field(
        description="change of the mean completion time of jobs that both finished"
    )
    mean_wait_seconds: float | None = Field(
        description="change of the mean wait, from submission to first start, of jobs that ran in "
        "both"
    )
    waiting_saved_hours: float = Field(description="waiting saved by these jobs, in total")
    jobs: int = Field(description="number of these jobs")


class WhatIf(ApiRecord):
    """A what-if run: the recent jobs simulated on the cluster as it is, and changed."""

    id: int
    requested_at: datetime
    state: WhatIfState
    progress: WhatIfProgress
    jobs: int
    question: WhatIfQuestion
    as_is: dict[str, Any] | None = Field(description="summary on the cluster as it is")
    changed: dict[str, Any] | None = Field(description="summary with the change")
    gain: float | None = Field(description="total utility of `changed` less that of `as_is`")
    times: WhatIfTimes | None = Field(description="differences in completion and waiting times")
    reason: str | None = Field(description="why the run failed")


class WhatIfList(ApiRecord):
    """What-if runs since the service started, newest first."""

    runs: list[WhatIf]
