"""Prices of coming slots, by kind of server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import PricedPolicy, View, as_priced_policy
from shadowprice.core.schedule import Placement
from shadowprice.engine.engine import Engine
from shadowprice.rest import Prices, PriceSlot, ResourcePrice, ServerKind
from shadowprice.service.clock import SlotCalendar, to_datetime

MAX_SLOTS: Final = 1_000  # maximum number of slots in one query


ServerClasses = Mapping[str, NDArray[np.int64]]
"""Rows of the servers with an equal role and capacity, by the name of that kind."""


def build_server_classes(cluster: Cluster) -> ServerClasses:
    """Return the kinds of servers, each named after its first server without its number."""
    classes: dict[str, NDArray[np.int64]] = {}
    for kind in dict.fromkeys(cluster.kinds.tolist()):
        members = np.flatnonzero(cluster.kinds == kind)
        first = cluster.names[int(members[0])]
        head, _, tail = first.rpartition("-")
        name = head if head and tail.isdigit() else first
        while name in classes:  # kinds whose first servers only differ in their number
            name += "'"
        classes[name] = members
    return classes


class _Replacing:
    """A view of an object with some attributes replaced, for queries of a policy."""

    def __init__(self, original: object, **replaced: Any) -> None:
        self._original = original
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _later_view(view: View, offset: int) -> Any:
    """Return a view whose ledger's window starts ``offset`` slots later."""
    used, versions = view.ledger.used, view.ledger.versions
    ledger = _Replacing(
        view.ledger,
        start=view.ledger.start + offset,
        used=used[offset:] if offset < len(used) else np.zeros_like(used[:1]),
        versions=versions[min(offset, len(versions) - 1) :],
    )
    return _Replacing(view, slot=view.slot + offset, ledger=ledger)


def prices(
    engine: Engine,
    calendar: SlotCalendar,
    policy_name: str,
    slots: int,
    next_slot: int | None = None,
) -> Prices:
    """Return prices and reserved shares by slot, kind and resource; call it between batches.

    A price is that of a whole server's amount of the resource. The result has fewer slots than
    ``slots`` if the policy doesn't plan that far ahead.

    ``next_slot`` is the first slot that can still be decided, if the engine's own slot is earlier.
    An engine without jobs skips slots, but learnt prices fall with each of them.
    """
    cluster, ledger = engine.cluster, engine.ledger
    kinds = build_server_classes(cluster)
    has_prices = engine.capabilities.prices
    policy = as_priced_policy(engine.policy)
    price_slots: list[PriceSlot] = []
    limited = (cluster.capacity > 0) & (cluster.capacity < UNLIMITED)
    window = len(ledger.used)
    # A policy that doesn't plan ahead prices later slots, but has no reservations in them.
    count = slots if has_prices and not engine.capabilities.plans_ahead else min(slots, window)
    skipped = 0 if next_slot is None else max(0, next_slot - ledger.start)
    for offset in range(skipped, skipped + min(count, MAX_SLOTS)):
        slot = ledger.start + offset
        posted = None if policy is None else policy.slot_prices(_later_view(engine.view, offset))
        used = ledger.used[offset] if offset < window else None
        if used is None and skipped and engine.slot_running is None:
            # Slots were skipped because there are no jobs, so nothing is used beyond the window.
            used = np.zeros_like(ledger.used[0])
        if used is not None:
            used = used.copy()
            cluster.count_kinds(used, np.arange(cluster.servers))
        by_kind: dict[str, dict[str, ResourcePrice]] = {}
        for name, members in kinds.items():
            entry: dict[str, ResourcePrice] = {}
            for column, resource in enumerate(cluster.resources):
                if not limited[members, column].any():
                    continue
                share: ResourcePrice = {}
                if used is not None:
                    total = int(cluster.capacity[members, column].sum())
                    share["used"] = round(int(used[members, column].sum()) / total, 6)
                if posted is not None:
                    share["price"] = float(posted[members, column].mean())
                entry[resource] = share
            by_kind[name] = entry
        start = to_datetime(calendar.begins(slot))
        price_slots.append(PriceSlot(slot=slot, begins=start, kinds=by_kind))
    return Prices(
        priced=has_prices,
        policy=policy_name,
        kinds=[
            ServerKind(
                name=name,
                servers=[cluster.names[row] for row in members.tolist()],
                role=cluster.roles[int(members[0])].value,
            )
            for name, members in kinds.items()
        ],
        slots=price_slots,
    )


def placement_costs(
    policy: PricedPolicy, view: View, placements: Mapping[str, tuple[Job, Placement]]
) -> dict[str, float]:
    """Return the costs of jobs' placements in the slot of a view, by job.

    The posted prices are those without the placement itself. An admission may cost more: `rolling`
    has a minimum for the dominant share, and prices for each tenant with a share. The price of a
    server only depends on the use of this server. So one query of the policy prices placements that
    share no server, and the others wait for the next query.
    """
    capacity = view.cluster.capacity
    limited = (capacity > 0) & (capacity < UNLIMITED)
    costs: dict[str, float] = {}
    remaining = placements
    while remaining:
        use = np.zeros_like(capacity)
        queried: set[int] = set()
        postponed: dict[str, tuple[Job, Placement]] = {}
        for name, (job, placement) in remaining.items():
            if not queried.isdisjoint(placement.servers):
                postponed[name] = job, placement
                continue
            queried.update(placement.servers)
            for row, workers, ps in zip(
                placement.servers, placement.workers, placement.ps, strict=True
            ):
                use[row] = workers * job.worker
                if job.ps is not None:
                    use[row] += ps * job.ps
        used_by_others = np.maximum(0, view.ledger.used[:1] - use)
        others: Any = _Replacing(view, ledger=_Replacing(view.ledger, used=used_by_others))
        prices = policy.slot_prices(others)
        for name, (_, placement) in remaining.items():
            if name in postponed:
                continue
            rows = sorted(placement.servers)
            is_priced = (use[rows] > 0) & limited[rows]
            shares = use[rows][is_priced] / capacity[rows][is_priced]
            costs[name] = float(prices[rows][is_priced] @ shares)
        remaining = postponed
    return {name: costs[name] for name in placements}  # in the order of the placements


def prices_by_kind(prices: Prices) -> Mapping[tuple[str, str], float]:
    """Return the prices of the first slot by kind of server and resource."""
    kinds = prices.slots[0].kinds if prices.slots else {}
    return {
        (kind, resource): share["price"]
        for kind, resources in kinds.items()
        for resource, share in resources.items()
        if "price" in share
    }
