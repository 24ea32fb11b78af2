"""The service itself: health, readiness and configuration."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from shadowprice.rest.base import ApiRecord
from shadowprice.rest.tokens import TokenRole
from shadowprice.rest.uploads import UploadLimits


class Health(ApiRecord):
    """Whether the process answers, or the service can do its work."""

    status: Literal["ok", "ready", "degraded", "not ready", "standby"]


class TokenOwner(ApiRecord):
    """The owner of the request's token."""

    role: TokenRole
    tenant: str | None


class Timespan(ApiRecord):
    """The end of the timespan: nothing runs from slot ``slot`` on."""

    until: datetime | None = Field(description="requested end")
    ends: datetime | None = Field(description="start of the first slot without jobs")
    slot: int | None
    ended: bool


class ServiceWarning(ApiRecord):
    """Something that an operator should change; further keys carry its numbers."""

    code: str
    message: str


class ServiceStatus(ApiRecord):
    """The service's configuration and its current slot."""

    version: str
    policy: str
    policies: list[str]
    executor: str | None
    host: str | None = Field(
        description="identifies the machine on which jobs run, with its files; null if there are "
        "several, or if it is unknown"
    )
    uploads: UploadLimits | None = Field(
        description="limits of the files that jobs get from their submitters; null if they get none"
    )
    observes: bool
    now: datetime
    slot_seconds: float
    horizon: int
    slot: int | None = Field(description="running slot")
    next_slot: int = Field(description="first slot that is not decided yet")
    next_slot_begins: datetime
    origin: datetime = Field(description="start of slot 0")
    timespan: Timespan
    start_up_seconds: float | None = Field(description="median time to start a job")
    warnings: list[ServiceWarning]
    pending: int
    jobs: dict[str, int] = Field(description="number of open jobs by state")
    families: list[str]
    kinds: list[str]
    sequence: int
    last_event: int
    caller: TokenOwner
    health_error: str | None = Field(default=None, description="why the service is not ready")
    data: str | None = Field(default=None, description="data directory or database")
