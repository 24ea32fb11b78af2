"""Options that every executor is constructed with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class Election(Protocol):
    """Leader election among several services that share an executor."""

    @property
    def name(self) -> str:
        """Identifier of the election, equal for all its candidates."""

    @property
    def number(self) -> int:
        """Fencing token: increases with each leader; 0 before this service is elected."""

    def holds(self) -> bool:
        """Return whether this service still holds the lease, so that no other can lead."""


def ignore_failure(what: str) -> None:
    """Ignore a failure; the default if failures aren't counted."""
    del what


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Options that every executor is constructed with.

    ``failed`` receives the kind of every unexpected failure, in one word, for metrics.
    """

    directory: str  # absolute path of its own directory, mode 700, for its durable state
    namespace: str = "shadowprice"  # separates services that share a cluster
    address: str = ""  # of a remote cluster (`ray://...`, a kubeconfig); else empty
    settings: Mapping[str, str] = field(default_factory=dict)  # specific to the executor
    observing: bool = False  # acquire no shared lock and write nothing
    election: Election | None = None  # None if the service runs alone
    failed: Callable[[str], None] = ignore_failure
