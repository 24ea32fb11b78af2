"""Server capacity that is configured but that the executor doesn't have."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from shadowprice.core.amounts import UNLIMITED, format_amount
from shadowprice.core.cluster import Cluster
from shadowprice.core.devices import GPU, gpus_of_kinds, is_device, without_total
from shadowprice.core.events import CapacityChanged, ServerState
from shadowprice.engine.engine import Engine
from shadowprice.service.state.batch import Batch, operation
from shadowprice.service.state.durable_state import Withheld
from shadowprice.service.state.engine_events import apply_event

log = logging.getLogger("shadowprice.service")

KEY: Final = "withheld"  # key of the withheld amounts in the store


def configured_capacity(cluster: Cluster, name: str, withheld: Mapping[str, int]) -> dict[str, int]:
    """Return a server's configured capacity by resource: the present plus the withheld amounts."""
    amounts = cluster.capacity[cluster.index[name]].tolist()
    return {
        resource: amount + withheld.get(resource, 0)
        for resource, amount in zip(cluster.resources, amounts, strict=True)
    }


def present_server(engine: Engine, name: str) -> ServerState:
    """Return a server as it is now."""
    cluster, row = engine.cluster, engine.cluster.index[name]
    drained, cordoned = row in engine.state.drained, row in engine.state.cordoned
    capacity = configured_capacity(cluster, name, {})
    return ServerState(cluster.roles[row], capacity, drained=drained, cordoned=cordoned)


@operation
def limit_servers(batch: Batch, available: Mapping[str, Mapping[str, int]]) -> None:
    """Limit servers to the capacity that the executor has; restore capacity that it has again.

    ``available`` holds the executor's amounts by server and resource. Resources that are left out
    aren't limited. GPUs of all kinds are limited together by the amount of ``gpu``.
    """
    cluster, state = batch.engine.cluster, batch.state
    withheld = dict(state.withheld)
    servers: dict[str, ServerState | None] = {}
    for name in available.keys() & cluster.index.keys():
        configured = configured_capacity(cluster, name, withheld.pop(name, {}))
        limited = limited_capacity(configured, available[name])
        missing = {
            resource: amount - limited[resource]
            for resource, amount in configured.items()
            if limited[resource] < amount
        }
        if missing:
            withheld[name] = missing
        if limited != configured_capacity(cluster, name, {}):
            servers[name] = replace(present_server(batch.engine, name), capacity=limited)
    if withheld != state.withheld:
        _store_withheld(batch, withheld)
    if not servers:
        return
    apply_event(batch, CapacityChanged(state.next_slot, dict(sorted(servers.items()))))
    for name in sorted(servers):
        what = _describe(cluster, withheld.get(name, {}))
        log.warning("server %s: %s", name, what)
        batch.emit("server", server=name, what=what)


def is_limiting(cluster: Cluster, withheld: Withheld, available: Withheld) -> bool:
    """Return whether `limit_servers` would change anything."""
    for name in available.keys() & cluster.index.keys():
        configured = configured_capacity(cluster, name, withheld.get(name, {}))
        limited = limited_capacity(configured, available[name])
        if limited != configured_capacity(cluster, name, {}):
            return True
    return False


def limited_capacity(configured: Mapping[str, int], available: Mapping[str, int]) -> dict[str, int]:
    """Return the capacity that is both configured and available."""
    limited = {
        resource: min(amount, available.get(resource, amount)) if amount < UNLIMITED else amount
        for resource, amount in configured.items()
    }
    gpus = available.get("gpu")
    if gpus is None:
        return limited
    # Executors don't know the configured kinds of GPUs, so all kinds share the total.
    for resource, amount in without_total(configured).items():
        if is_device(resource):
            limited[resource] = min(amount, gpus)
            gpus -= limited[resource]
    if GPU in configured and gpus_of_kinds(configured):
        limited[GPU] = gpus_of_kinds(limited)
    return limited


def clear_withheld(batch: Batch, servers: Collection[str]) -> None:
    """Clear the withheld amounts of servers whose configured capacity has changed."""
    withheld = {name: item for name, item in batch.state.withheld.items() if name not in servers}
    if len(withheld) < len(batch.state.withheld):
        _store_withheld(batch, withheld)


def _store_withheld(batch: Batch, withheld: Withheld) -> None:
    batch.undo.assign(batch.state, "withheld", withheld)
    batch.set_value(KEY, json.dumps(withheld, sort_keys=True))


def _describe(cluster: Cluster, missing: Mapping[str, int]) -> str:
    if not missing:
        return "the executor has all of the configured capacity again"
    amounts = ", ".join(
        f"{format_amount(amount, cluster.dimensions[cluster.column[resource]])} {resource}"
        for resource, amount in without_total(missing).items()
    )
    return f"the executor has less than its capacity: {amounts} missing"
