"""Cached state of the cluster: informers of nodes and pods, and servers derived from them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from shadowprice.executors.contract import ServerInfo
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.settings import KubernetesSettings
from shadowprice.executors.kubernetes.views import (
    NodeView,
    PodView,
    node_view,
    pod_view,
    to_server_info,
)
from shadowprice.executors.processes import PlacementError
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.informer import Informer

# Seconds after which a pod without a generation counts as a stray. Events of pods may be later than
# the end of their generation.
STRAY_SECONDS: Final = 5.0


class ClusterCache:
    """Nodes, pods, and the servers derived from them.

    ``happened`` receives key and generation of every changed own pod. ``moved`` receives the name
    of a node that appeared, disappeared, or changed its readiness.
    """

    def __init__(
        self,
        connection: ApiClient,
        service: ServiceId,
        settings: KubernetesSettings,
        happened: Callable[[str, int], None],
        moved: Callable[[str], None],
    ) -> None:
        self._service = service
        self.settings = settings
        self._on_pod_changed = happened
        self._on_node_changed = moved
        self._used: dict[str, Counter[str]] = {}
        self._gone: dict[str, float] = {}
        self.servers: dict[str, ServerInfo] = {}  # of ready and recently ready nodes
        self.last: dict[str, PodView] = {}  # last states of own pods that no longer exist
        self.own: dict[str, PodView] = {}  # own pods by namespace and name
        self._stray_since: dict[str, float] = {}
        self._used_by_strays: dict[str, Counter[str]] = {}
        self.nodes: Informer[NodeView] = Informer(
            connection, "/api/v1/nodes", node_view, self._node_changed
        )
        self.pods: Informer[PodView] = Informer(connection, "/api/v1/pods", pod_view, self._changed)

    async def start(self) -> None:
        """Start both informers; raise `ApiError` if the first list fails."""
        await self.nodes.start()
        await self.pods.start()

    async def close(self) -> None:
        """Stop both informers."""
        await self.nodes.close()
        await self.pods.close()

    def _node_changed(self, name: str, old: NodeView | None, new: NodeView | None) -> None:
        if old is None or new is None or (old.ready, old.off) != (new.ready, new.off):
            self._on_node_changed(name)

    def _changed(self, key: str, old: PodView | None, new: PodView | None) -> None:
        for view, sign in ((old, -1), (new, 1)):
            if view is not None and self._is_foreign(view):
                used = self._used.setdefault(view.node, Counter())
                for name, amount in view.takes.items():
                    used[name] += sign * amount
        current = new or old
        if current is None or current.service != self._service:
            self.own.pop(key, None)
            return
        if new is None:
            self.own.pop(key, None)
            self.last[key] = current
        else:
            self.own[key] = new
            self.last.pop(key, None)
        self._on_pod_changed(current.job, current.generation)

    def _is_foreign(self, view: PodView) -> bool:
        """Return whether a pod uses capacity of its node that this service can't allocate."""
        return bool(view.node) and not view.over and view.service != self._service

    def used(self, node: str) -> Mapping[str, int]:
        """Return the resources on a node that other pods and strays use."""
        used = self._used.get(node, Counter())
        strays = self._used_by_strays.get(node)
        return used if strays is None else used + strays

    # ------------------------------------------------------------------ strays

    def strays(self) -> Iterator[tuple[str, PodView]]:
        """Yield the pods that run on after the end of their generation; by namespace and name."""
        latest = time.monotonic() - STRAY_SECONDS
        for key, since in self._stray_since.items():
            view = self.own.get(key)
            if view is not None and since <= latest:
                yield key, view

    def leave(self, pods: Iterable[PodView]) -> None:
        """Count pods as strays from now on."""
        for view in pods:
            self._stray_since[f"{view.namespace}/{view.name}"] = -math.inf

    def find_strays(self, live: Collection[tuple[str, int]]) -> None:
        """Update the strays; ``live`` are keys and numbers of unfinished generations."""
        now, previous = time.monotonic(), self._stray_since
        self._stray_since = {
            key: previous.get(key, now)
            for key, view in self.own.items()
            if view.node
            and view.may_run
            and (not view.deleting or previous.get(key) == -math.inf)
            and (view.job, view.generation) not in live
        }
        self._used_by_strays = {}
        for _, view in self.strays():
            self._used_by_strays.setdefault(view.node, Counter()).update(view.takes)

    def node(self, server: str) -> NodeView:
        """Return a node; raise `PlacementError` if it doesn't exist."""
        node = self.nodes.items.get(server)
        if node is None:
            raise PlacementError(f"the node {server} has left the cluster")
        return node

    def is_lost(self, server: str) -> bool:
        """Return whether the processes on a node count as lost."""
        since, node = self.gone_since(server), self.nodes.items.get(server)
        return since is not None and (
            time.monotonic() - since > self.settings.lost_after or (node is not None and node.off)
        )

    def gone_since(self, server: str) -> float | None:
        """Return the monotonic time since which a node is missing or not ready, or None."""
        node = self.nodes.items.get(server)
        if node is not None and node.ready:
            self._gone.pop(server, None)
            return None
        if not self.nodes.healthy:  # no watch: keep the last known state
            return self._gone.get(server)
        return self._gone.setdefault(server, time.monotonic())

    def refresh_servers(self, expected: Collection[str]) -> None:
        """Derive the servers from the nodes.

        A node that isn't ready may be healthy: after an outage of the API server, its kubelet first
        has to renew its lease. So a known server is kept for `tolerate_unready` seconds.
        ``expected`` are names that count as known servers too.
        """
        servers: dict[str, ServerInfo] = {}
        tolerations: list[Mapping[str, Any]] = list(self.settings.pod.get("tolerations", ()))
        latest = time.monotonic() - self.settings.tolerate_unready
        for name, node in self.nodes.items.items():
            since = self.gone_since(name)
            was_server = name in self.servers or name in expected
            if since is None or (was_server and not node.off and since > latest):
                servers[name] = to_server_info(
                    node, self.used(name), gpu=self.settings.gpu, tolerations=tolerations
                )
        self.servers = servers
