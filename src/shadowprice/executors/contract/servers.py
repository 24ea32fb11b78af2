"""Servers, as configured by the service or discovered by the executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's name in the cluster, its capacity and its labels.

    ``capacity`` is by resource, in the units of `core.amounts`. If ``takes_work`` is false, running
    processes continue but nothing new may be placed on the server.
    """

    name: str
    capacity: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    takes_work: bool = True


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A server is new or changed; only from executors that discover servers."""

    server: ServerInfo
    at: float


@dataclass(frozen=True, slots=True)
class ServerGone:
    """A server is lost; its generations are reported `Ended` as lost."""

    server: str
    at: float
    reason: str = ""
