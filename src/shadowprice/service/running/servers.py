"""What an executor finds of servers, and what it is told of them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import EventError, InputError
from shadowprice.core.events import ServerState
from shadowprice.executors.contract import ServerGone, ServerSeen, ServerSlice
from shadowprice.service.driver import Driver
from shadowprice.service.truth.operations import ChangeServers, LoseServer
from shadowprice.service.truth.outcome import Servers

log = logging.getLogger("shadowprice.service")

ROLE_LABEL: Final = "shadowprice.io/role"
"""Label of a server that says what may run there: worker, ps or any."""


class FoundServers:
    """Lets servers that join, change, leave or come back be such for the engine.

    Parameters
    ----------
    driver : Driver
        Who knows what servers there are.
    stated : collection of str
        Servers of the cluster file: they have what it says, not what an executor finds there.
    discovers : bool
        Whether the executor finds servers, rather than being told of them.
    """

    def __init__(self, driver: Driver, stated: Collection[str], *, discovers: bool) -> None:
        self._driver = driver
        self._stated = frozenset(stated)
        self._discovers = discovers
        self._closed: set[str] = set()

    async def take(self, report: ServerSeen | ServerGone) -> None:
        """Let servers that join, change, leave or come back be such for the engine."""
        servers = self._driver.published.servers
        if isinstance(report, ServerGone):
            if report.server in servers.cluster.index and report.server not in servers.lost:
                await self._try(LoseServer(report.server))
            return
        name = report.server.name
        if name not in servers.cluster.index:
            state = found_state(report.server, servers.cluster)
            if any(state.capacity.values()) and report.server.takes_work:
                await self._try(ChangeServers({name: state}, "joined"))
            return
        if not report.server.takes_work or name in self._closed:
            servers = await self._opened_or_closed(report.server)
        if name in servers.lost and name not in servers.drained:
            await self._try(LoseServer(name, back=True))
        if name not in self._stated and self._discovers:
            row = servers.cluster.index[name]
            state = found_state(report.server, servers.cluster)
            state = replace(state, role=servers.cluster.roles[row], drained=name in servers.drained)
            if slices(servers.cluster)[row].capacity != state.capacity:
                await self._try(ChangeServers({name: state}, "changed"))

    async def _opened_or_closed(self, server: ServerSlice) -> Servers:
        """Drain a server that takes nothing new any more, or take it back; return all servers.

        What an operator of the service drained stays so.
        """
        servers = self._driver.published.servers
        row = servers.cluster.index[server.name]
        drained = server.name in servers.drained
        if drained != server.takes_work:
            return servers
        capacity = slices(servers.cluster)[row].capacity
        state = ServerState(servers.cluster.roles[row], capacity, drained=not drained)
        await self._try(ChangeServers({server.name: state}, "closed" if not drained else "opened"))
        if server.takes_work:
            self._closed.discard(server.name)
        else:
            self._closed.add(server.name)
        return self._driver.published.servers

    async def _try(self, operation: LoseServer | ChangeServers) -> None:
        try:
            await self._driver.do(operation)
        except (InputError, EventError) as error:  # it never will be; all else is tried again
            log.warning("%s was left out: %s", operation, error)


def found_state(server: ServerSlice, cluster: Cluster) -> ServerState:
    """Return what a server that an executor found is to a cluster, in what that counts.

    A cluster that tells kinds of GPUs apart counts a server's by kind, another as GPUs.
    """
    counted = {name: n for name, n in server.capacity.items() if n and name in cluster.column}
    if any(name.startswith("gpu/") for name in counted):
        counted.pop("gpu", None)
    told = server.labels.get(ROLE_LABEL, Role.ANY.value)
    role = Role(told) if told in {one.value for one in Role} else Role.ANY
    return ServerState(role, counted)


def slices(cluster: Cluster) -> Sequence[ServerSlice]:
    """Return the servers of a cluster as executors are told of them."""
    return [
        ServerSlice(
            name,
            {
                resource: amount
                for resource, amount in zip(cluster.resources, row, strict=True)
                if 0 < amount < UNLIMITED
            },
        )
        for name, row in zip(cluster.names, cluster.capacity.tolist(), strict=True)
    ]
