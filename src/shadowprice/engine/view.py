"""Read-only view of the engine's state for policies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shadowprice.core.cluster import Cluster
from shadowprice.core.ledger import LedgerView
from shadowprice.core.policy import JobState
from shadowprice.core.schedule import Placement
from shadowprice.engine.state import EngineState
from shadowprice.engine.unstoppable import is_unstoppable, may_have_unstoppable_jobs


class EngineView:
    """Read-only view of an engine's state; implements `core.policy.View`."""

    __slots__ = ("_state", "ledger", "open_jobs")

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self.ledger: LedgerView = LedgerView(state.ledger)
        self.open_jobs: Mapping[str, JobState] = MappingProxyType(state.open_jobs)

    @property
    def slot(self) -> int:
        """First slot that a policy can still decide: during `SlotBegan`, the slot that begins."""
        return self._state.ledger.start

    @property
    def cluster(self) -> Cluster:
        """The servers."""
        return self._state.cluster

    @property
    def end(self) -> int:
        """First slot that no plan may use."""
        return self._state.end

    @property
    def until(self) -> int | None:
        """End of the timespan T, None if it is open."""
        return self._state.until

    def is_lost(self, server: int) -> bool:
        """Return whether a server is unavailable for new work."""
        return server in self._state.lost

    @property
    def may_have_unstoppable_jobs(self) -> bool:
        """True if running jobs can be unstoppable: in a live service, or on cordoned servers."""
        return may_have_unstoppable_jobs(self._state)

    def is_unstoppable(self, job: str) -> bool:
        """Return whether a job must keep its placement; see `engine.unstoppable`."""
        return is_unstoppable(self._state, job)

    def running_placement(self, job: str) -> Placement | None:
        """Return a job's running placement, which it keeps unless another one is decided."""
        return self._state.running.get(job)

    def runs(self, job: str) -> bool:
        """Return whether a job runs in an unfinished slot, so that its progress is incomplete."""
        return self._state.slot_running is not None and job in self._state.running
