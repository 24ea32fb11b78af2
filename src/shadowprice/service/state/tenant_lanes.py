"""Queues in which tenants take turns: one tenant's many items hardly delay other tenants."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class TenantLanes(Generic[ItemT]):
    """Items that wait, in a lane for each tenant, and one for items without a tenant."""

    def __init__(self) -> None:
        self._lanes: dict[str | None, deque[ItemT]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[ItemT]:
        return chain.from_iterable(self._lanes.values())

    def count(self, tenant: str | None) -> int:
        """Return the number of a tenant's items."""
        return len(self._lanes.get(tenant, ()))

    def push(self, tenant: str | None, item: ItemT) -> None:
        """Add an item of a tenant."""
        self._lanes.setdefault(tenant, deque()).append(item)

    def pop(self) -> ItemT:
        """Remove the oldest item of the tenant that has waited for the most turns."""
        tenant = next(iter(self._lanes))
        lane = self._lanes.pop(tenant)
        item = lane.popleft()
        if lane:
            self._lanes[tenant] = lane  # behind all other tenants
        return item

    def remove(self, tenant: str | None, item: ItemT) -> None:
        """Remove an item of a tenant, if it waits."""
        lane = self._lanes.get(tenant, deque())
        if item in lane:
            lane.remove(item)
            if not lane:
                del self._lanes[tenant]
