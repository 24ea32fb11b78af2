"""The accepted jobs that wait for a decision.

Tenants take turns, so that one tenant's batch of thousands doesn't delay those of the others.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator


class Backlog:
    """Keys of jobs in a lane for each tenant; iterates in the order of their arrival."""

    def __init__(self, jobs: Iterable[tuple[str | None, str]] = ()) -> None:
        self._lanes: dict[str | None, deque[tuple[int, str]]] = {}
        self._size = self._arrived = 0
        self.extend(jobs)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        return (key for _, key in heapq.merge(*self._lanes.values()))

    def extend(self, jobs: Iterable[tuple[str | None, str]]) -> None:
        """Add jobs, each with its tenant."""
        for tenant, key in jobs:
            self._lanes.setdefault(tenant, deque()).append((self._arrived, key))
            self._arrived += 1
            self._size += 1

    def pop(self) -> str:
        """Remove the oldest job of the tenant that has waited for the most turns."""
        tenant, lane = next(iter(self._lanes.items()))
        del self._lanes[tenant]
        _, key = lane.popleft()
        if lane:
            self._lanes[tenant] = lane  # behind all other tenants
        self._size -= 1
        return key
