"""Read-only view of the engine's state for policies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from shadowprice.core.cluster import Cluster
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import JobState
from shadowprice.core.schedule import Placement

if TYPE_CHECKING:
    from shadowprice.engine.books import Books


class EngineView:
    """Read-only view of an engine's state; implements `core.policy.View`."""

    __slots__ = ("_engine", "ledger", "open_jobs")

    def __init__(self, engine: Books) -> None:
        self._engine = engine
        self.ledger: LedgerView = LedgerView(engine.ledger)
        self.open_jobs: Mapping[str, JobState] = MappingProxyType(engine.open_jobs)

    @property
    def slot(self) -> int:
        """First slot that can still be decided."""
        return self._engine.ledger.start

    @property
    def cluster(self) -> Cluster:
        """The servers."""
        return self._engine.cluster

    @property
    def end(self) -> int:
        """First slot that no plan may use."""
        return self._engine.end

    @property
    def until(self) -> int | None:
        """End of the timespan T, None if it is open."""
        return self._engine.until

    def lost(self, server: int) -> bool:
        """Return whether a server is unavailable."""
        return server in self._engine.lost

    def pinned(self, job: str) -> bool:
        """Return whether a job must keep its placement, because it has no saved progress."""
        return self._engine.pinned(job)

    def running(self, job: str) -> Placement | None:
        """Return a job's running placement, which it keeps unless another one is decided."""
        return self._engine.running.get(job)

    def runs(self, job: str) -> bool:
        """Return whether a job runs in an unfinished slot, so that its progress is incomplete."""
        return self._engine.slot_running is not None and job in self._engine.running
