"""Applies the executor's reports of servers to the cluster, and configures its servers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.devices import without_total
from shadowprice.core.errors import EventError, InputError
from shadowprice.core.events import ServerState
from shadowprice.executors.contract import ROLE_LABEL, ServerGone, ServerInfo, ServerSeen
from shadowprice.service.state.batch import Operation
from shadowprice.service.state.durable_state import ClusterState, Withheld
from shadowprice.service.state.operations import (
    Availability,
    change_server,
    set_server_availability,
    update_servers,
)
from shadowprice.service.state.server_limits import configured_capacity, is_limiting, limit_servers
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")


class ServerDiscovery:
    """Applies the executor's server reports to the engine's cluster.

    ``stated`` are the servers of the cluster file. ``discovers`` says that the executor's capacity
    replaces the configured capacity of other servers; otherwise it only limits servers.
    """

    def __init__(self, writer: Writer, stated: Collection[str], *, discovers: bool) -> None:
        self._writer = writer
        self._stated = frozenset(stated)
        self._discovers = discovers
        self._seen: set[str] = set()  # servers that were reported since this process started
        # Drained and cordoned servers are closed: they take no new work.
        self._closed_before_loss: dict[str, bool] = {}  # true for drained, false for cordoned
        self._closed: set[str] = set()  # by the executor; an operator may have closed others

    async def apply_report(self, report: ServerSeen | ServerGone) -> None:
        """Add, change, close, lose or restore a server, as a report implies."""
        servers = self._writer.published.servers
        if isinstance(report, ServerGone):
            name = report.server
            closed = servers.drained | servers.cordoned
            # `unavailable` contains closed servers too; its other servers are lost already.
            if name in servers.cluster.index and name not in servers.unavailable - closed:
                if name in closed:
                    self._closed_before_loss[name] = name in servers.drained
                await self._try(set_server_availability(name))
            return
        name = report.server.name
        if name not in servers.cluster.index:
            state = to_server_spec(report.server, servers.cluster)
            if any(state.capacity.values()) and report.server.takes_work:
                await self._try(update_servers({name: state}, "joined"))
            return
        if name in servers.unavailable - servers.drained - servers.cordoned:
            await self._try(set_server_availability(name, back=True))
            if name in self._closed_before_loss:
                drained = self._closed_before_loss.pop(name)
                await self._set_state(name, drained=drained, cordoned=not drained)
            servers = self._writer.published.servers
        # After the restoration above, because only a server that is back can be closed again.
        if not report.server.takes_work or name in self._closed:
            servers = await self._open_or_close(report.server)
        self._seen.add(name)
        if name not in self._stated and self._discovers:
            row = servers.cluster.index[name]
            state = to_server_spec(report.server, servers.cluster)
            state = replace(
                state,
                role=servers.cluster.roles[row],
                drained=name in servers.drained,
                cordoned=name in servers.cordoned,
            )
            if to_server_infos(servers.cluster)[row].capacity != state.capacity:
                await self._try(update_servers({name: state}, "changed"))
        else:
            await self.limit({name: _counted_amounts(report.server)})

    async def limit(self, available: Mapping[str, Mapping[str, int]]) -> None:
        """Limit servers to the amounts that the executor has; see `limit_servers`."""
        servers = self._writer.published.servers
        if is_limiting(servers.cluster, servers.withheld, available):
            await self._try(limit_servers(available))

    async def _open_or_close(self, server: ServerInfo) -> ClusterState:
        """Close or open a server like the executor, unless an operator closed it."""
        servers, name = self._writer.published.servers, server.name
        is_drained, is_cordoned = name in servers.drained, name in servers.cordoned
        drains = server.evicts and not server.takes_work
        cordons = not server.evicts and not server.takes_work
        if (is_drained, is_cordoned) == (drains, cordons):
            if name not in self._seen and not server.takes_work:
                self._closed.add(name)  # closed by the executor before this process started
            return servers
        if (is_drained or is_cordoned) and name not in self._closed:
            return servers
        await self._set_state(name, drained=drains, cordoned=cordons)
        if server.takes_work:
            self._closed.discard(name)
        else:
            self._closed.add(name)
        return self._writer.published.servers

    async def _set_state(self, name: str, *, drained: bool, cordoned: bool) -> None:
        availability: Availability = "drained" if drained else "cordoned" if cordoned else "up"
        await self._try(change_server(name, availability))

    async def _try(self, operation: Operation[Any]) -> None:
        try:
            await self._writer.do(operation)
        except (InputError, EventError) as error:  # retries can't succeed; other errors are retried
            log.warning("%s was left out: %s", operation, error)


def to_server_spec(server: ServerInfo, cluster: Cluster) -> ServerState:
    """Return a discovered server's state. GPUs count by kind if the cluster has their kind."""
    capacity = {
        name: amount
        for name, amount in server.capacity.items()
        if amount and name in cluster.column
    }
    if any(name.startswith("gpu/") for name in capacity):
        capacity.pop("gpu", None)
    label = server.labels.get(ROLE_LABEL, Role.ANY.value)
    role = Role(label) if label in {role.value for role in Role} else Role.ANY
    return ServerState(role, capacity)


def _counted_amounts(server: ServerInfo) -> Mapping[str, int]:
    """Return a server's amounts with the total of GPUs, which is 0 if it reports none."""
    if "gpu" in server.capacity:
        return server.capacity
    gpus = sum(amount for name, amount in server.capacity.items() if name.startswith("gpu/"))
    return {**server.capacity, "gpu": gpus}


def to_server_infos(cluster: Cluster, withheld: Withheld | None = None) -> Sequence[ServerInfo]:
    """Return the servers as an executor's configuration.

    Capacities are those of the cluster plus the ``withheld`` amounts, without unlimited resources.
    """
    infos = []
    for name in cluster.names:
        amounts = configured_capacity(cluster, name, (withheld or {}).get(name, {}))
        finite = {key: amount for key, amount in amounts.items() if 0 < amount < UNLIMITED}
        infos.append(ServerInfo(name, without_total(finite)))
    return infos
