"""Servers, and the slot that they run."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from shadowprice.rest.base import ApiRecord


class ServerJob(ApiRecord):
    """The processes of one job on a server; tenants get no names of others' jobs."""

    job: str | None
    job_id: int | None
    workers: int
    ps: int


class Server(ApiRecord):
    """A server and the jobs on it."""

    name: str
    kind: str = Field(description="name of the group of servers with equal role and capacity")
    role: Literal["worker", "ps", "any"]
    state: Literal["up", "cordoned", "drained", "lost"]
    capacity: dict[str, str]
    jobs: list[ServerJob]


class ServerSlot(ApiRecord):
    """The slot that runs and the one that is decided next."""

    seconds: float
    horizon: int
    running: int | None
    next_slot: int
    next_slot_begins: datetime


class ServerList(ApiRecord):
    """Servers."""

    servers: list[Server]


class Cluster(ServerList):
    """All servers, and the slot."""

    slot: ServerSlot
