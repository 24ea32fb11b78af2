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
        while name in classes:
            name += "'"
        classes[name] = members
    return classes


class _Replacing:
    """An object for a policy, with some attributes of another object replaced."""

    def __init__(self, original: object, **replaced: Any) -> None:
        self._original = original
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _later_view(view: View, later: int) -> Any:
    """Return a view whose ledger's window starts some slots later."""
    used, versions = view.ledger.used, view.ledger.versions
    ledger = _Replacing(
        view.ledger,
        start=view.ledger.start + later,
        used=used[later:] if later < len(used) else np.zeros_like(used[:1]),
        versions=versions[min(later, len(versions) - 1) :],
    )
    return _Replacing(view, slot=view.slot + later, ledger=ledger)


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

    ``next_slot`` is the first slot that can still be decided, if it is later than the engine's own:
    an engine without jobs skips slots, but learnt prices fall in them.
    """
    cluster, ledger = engine.cluster, engine.ledger
    kinds = build_server_classes(cluster)
    posts = engine.capabilities.prices
    policy = as_priced_policy(engine.policy)
    found_slots: list[PriceSlot] = []
    limited = (cluster.capacity > 0) & (cluster.capacity < UNLIMITED)
    window = len(ledger.used)
    # A policy that doesn't plan ahead prices later slots, but has no reservations in them.
    count = slots if posts and not engine.capabilities.plans_ahead else min(slots, window)
    skipped = 0 if next_slot is None else max(0, next_slot - ledger.start)
    for later in range(skipped, skipped + min(count, MAX_SLOTS)):
        slot = ledger.start + later
        posted = None if policy is None else policy.slot_prices(_later_view(engine.view, later))
        used = ledger.used[later] if later < window else None
        if used is None and skipped and engine.slot_running is None:
            # The window has passed without jobs, so nothing was planned beyond it.
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
        found_slots.append(PriceSlot(slot=slot, begins=start, kinds=by_kind))
    return Prices(
        priced=posts,
        policy=policy_name,
        kinds=[
            ServerKind(
                name=name,
                servers=[cluster.names[row] for row in members.tolist()],
                role=cluster.roles[int(members[0])].value,
            )
            for name, members in kinds.items()
        ],
        slots=found_slots,
    )


def placement_costs(
    policy: PricedPolicy, view: View, placements: Mapping[str, tuple[Job, Placement]]
) -> dict[str, float]:
    """Return the costs of jobs' placements in the slot of a view, by job.

    The cost is that of posted prices without the placement itself. An admission may cost more:
    `rolling` has a minimum for the dominant share, and prices for each tenant with a share. The
    price of a server depends on the use of that server only, so placements on different servers
    are priced together.
    """
    capacity = view.cluster.capacity
    limited = (capacity > 0) & (capacity < UNLIMITED)
    costs: dict[str, float] = {}
    remaining = placements
    while remaining:
        use = np.zeros_like(capacity)
        taken: set[int] = set()
        later: dict[str, tuple[Job, Placement]] = {}
        for name, (job, placement) in remaining.items():
            if not taken.isdisjoint(placement.servers):
                later[name] = job, placement
                continue
            taken.update(placement.servers)
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
            if name in later:
                continue
            rows = sorted(placement.servers)
            is_priced = (use[rows] > 0) & limited[rows]
            shares = use[rows][is_priced] / capacity[rows][is_priced]
            costs[name] = float(prices[rows][is_priced] @ shares)
        remaining = later
    return {name: costs[name] for name in placements}


def prices_by_kind(prices: Prices) -> Mapping[tuple[str, str], float]:
    """Return the prices of the first slot by kind of server and resource."""
    kinds = prices.slots[0].kinds if prices.slots else {}
    return {
        (kind, resource): share["price"]
        for kind, resources in kinds.items()
        for resource, share in resources.items()
        if "price" in share
    }
