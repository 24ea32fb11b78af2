"""Servers: as an executor is told of them, and as it tells of those that it discovers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerSlice:
    """A server as an executor is told of it, or tells of it.

    Parameters
    ----------
    name : str
        Its name in the cluster.
    capacity : mapping of str to int
        What it has by resource, in the units of `core.amounts`.
    labels : mapping of str to str
        What else is known of it.
    takes_work : bool
        Whether anything new may be placed there; what runs there runs on.
    """

    name: str
    capacity: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    takes_work: bool = True


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A server is there, new or changed; only from executors that discover servers."""

    server: ServerSlice
    at: float


@dataclass(frozen=True, slots=True)
class ServerGone:
    """A server is not there any more; what ran on it is reported `Ended` as lost."""

    server: str
    at: float
    reason: str = ""
