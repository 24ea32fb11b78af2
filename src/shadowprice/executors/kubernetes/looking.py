"""Cached state of the cluster: informers of nodes and pods, and servers derived from them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from shadowprice.executors.contract import ServerSlice
from shadowprice.executors.kubernetes.nodes import NodeView, node_view, server_of
from shadowprice.executors.kubernetes.settings import Settings
from shadowprice.executors.kubernetes.views import PodView, pod_view
from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.informer import Informer


class Cluster:
    """Nodes, pods, and the servers derived from them.

    Parameters
    ----------
    service : str
        Label of this service, which distinguishes its pods from others.
    happened : callable
        Receives every change of a service's pod: service, key of the job, generation.
    moved : callable
        Receives the name of a node that appeared, disappeared, or changed its readiness.

    Attributes
    ----------
    servers : dict of str to ServerSlice
        Servers of nodes that are, or recently were, ready, as last reported.
    last : dict of str to PodView
        Last states of own pods that no longer exist.
    """

    def __init__(
        self,
        connection: Connection,
        service: str,
        settings: Settings,
        happened: Callable[[str, str, int], None],
        moved: Callable[[str], None],
    ) -> None:
        self._service = service
        self._settings = settings
        self._happened = happened
        self._moved = moved
        self._used: dict[str, Counter[str]] = {}
        self._gone: dict[str, float] = {}
        self.servers: dict[str, ServerSlice] = {}
        self.last: dict[str, PodView] = {}
        self.nodes: Informer[NodeView] = Informer(
            connection, "/api/v1/nodes", node_view, self._node_changed
        )
        self.pods: Informer[PodView] = Informer(connection, "/api/v1/pods", pod_view, self._changed)

    async def start(self) -> None:
        """Start both informers.

        Raises
        ------
        ApiError
            If the first list fails.
        """
        await self.nodes.start()
        await self.pods.start()

    async def close(self) -> None:
        """Stop both informers."""
        await self.nodes.close()
        await self.pods.close()

    def _node_changed(self, name: str, old: NodeView | None, new: NodeView | None) -> None:
        if old is None or new is None or (old.ready, old.off) != (new.ready, new.off):
            self._moved(name)

    def _changed(self, key: str, old: PodView | None, new: PodView | None) -> None:
        for view, sign in ((old, -1), (new, 1)):
            if view is not None and self._is_anothers(view):
                used = self._used.setdefault(view.node, Counter())
                for name, amount in view.takes.items():
                    used[name] += sign * amount
        current = new or old
        if current is None or not current.service:
            return
        if current.service == self._service:
            if new is None and old is not None:
                self.last[key] = old
            else:
                self.last.pop(key, None)
        self._happened(current.service, current.job, current.generation)

    def _is_anothers(self, view: PodView) -> bool:
        """Return whether a pod uses capacity of its node that this service can't allocate."""
        return bool(view.node) and not view.over and view.service != self._service

    def used(self, node: str) -> Mapping[str, int]:
        """Return the resources that other pods use on a node."""
        return self._used.get(node, {})

    def gone_since(self, server: str) -> float | None:
        """Return the monotonic time since which a node is missing or not ready, or None."""
        node = self.nodes.items.get(server)
        if node is not None and node.ready:
            self._gone.pop(server, None)
            return None
        if not self.nodes.healthy:  # no watch: keep the last known state
            return self._gone.get(server)
        return self._gone.setdefault(server, time.monotonic())

    def look(self, expected: Collection[str]) -> tuple[list[ServerSlice], list[str]]:
        """Update the servers; return new or changed ones, and the names of lost ones.

        A node that isn't ready may be healthy: after an outage of the API server, its kubelet first
        has to renew its lease. So a known server is kept for `tolerate_unready` seconds.
        ``expected`` are names that count as known servers too.
        """
        servers: dict[str, ServerSlice] = {}
        tolerations: list[Mapping[str, Any]] = list(self._settings.pod.get("tolerations", ()))
        latest = time.monotonic() - self._settings.tolerate_unready
        for name, node in self.nodes.items.items():
            since = self.gone_since(name)
            was_server = name in self.servers or name in expected
            if since is None or (was_server and not node.off and since > latest):
                servers[name] = server_of(
                    node, self.used(name), gpu=self._settings.gpu, tolerations=tolerations
                )
        previous, self.servers = self.servers, servers
        changed = [server for name, server in servers.items() if previous.get(name) != server]
        return changed, sorted(previous.keys() - servers.keys())
