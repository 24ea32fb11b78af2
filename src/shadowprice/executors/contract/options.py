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

    Parameters
    ----------
    directory : str
        Absolute path of the executor's own directory, mode 700, for its durable state.
    namespace : str
        Separates the jobs of services that share a cluster.
    address : str
        Endpoint of a remote cluster (``ray://...``, a kubeconfig); otherwise empty.
    settings : mapping of str to str
        Settings that are specific to the executor.
    observing : bool
        Whether the executor only observes: it acquires no shared lock and writes nothing.
    election : Election or None
        The leader election of the service; None if the service runs alone.
    failed : callable
        Receives the kind of every unexpected failure, in one word, for metrics.
    """

    directory: str
    namespace: str = "shadowprice"
    address: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    observing: bool = False
    election: Election | None = None
    failed: Callable[[str], None] = ignore_failure
