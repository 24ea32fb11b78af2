"""Cached state of the cluster: informers of nodes and pods, and servers derived from them.

A *stray* is a pod of this service that runs on after the end of its generation.
"""

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

# Seconds after which a pod without a live generation counts as a stray. The event of a pod's end
# may be later than the end of its generation.
STRAY_SECONDS: Final = 5.0


class ClusterCache:
    """Nodes, pods, and the servers derived from them.

    ``on_pod_changed`` receives the job's key and the generation of every changed pod of this
    service. ``on_node_changed`` receives the name of a node that appeared, disappeared, or changed
    its readiness.
    """

    def __init__(
        self,
        connection: ApiClient,
        service: ServiceId,
        settings: KubernetesSettings,
        on_pod_changed: Callable[[str, int], None],
        on_node_changed: Callable[[str], None],
    ) -> None:
        self._service = service
        self.settings = settings
        self._on_pod_changed = on_pod_changed
        self._on_node_changed = on_node_changed
        self._used: dict[str, Counter[str]] = {}  # by other pods, by node
        self._unready_since: dict[str, float] = {}  # monotonic, by node
        self.servers: dict[str, ServerInfo] = {}  # of ready and recently ready nodes
        self.own: dict[str, PodView] = {}  # pods of this service by namespace/name
        self.last_views: dict[str, PodView] = {}  # last states of deleted pods of this service
        self._stray_since: dict[str, float] = {}  # monotonic; minus infinity if marked
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
        if (
            old is None
            or new is None
            or (old.ready, old.out_of_service) != (new.ready, new.out_of_service)
        ):
            self._on_node_changed(name)

    def _changed(self, key: str, old: PodView | None, new: PodView | None) -> None:
        for view, sign in ((old, -1), (new, 1)):
            if view is not None and self._uses_capacity(view):
                used = self._used.setdefault(view.node, Counter())
                for name, amount in view.requests.items():
                    used[name] += sign * amount
        current = new or old
        if current is None or current.service != self._service:
            self.own.pop(key, None)
            return
        if new is None:
            self.own.pop(key, None)
            self.last_views[key] = current
        else:
            self.own[key] = new
            self.last_views.pop(key, None)
        self._on_pod_changed(current.job, current.generation)

    def _uses_capacity(self, view: PodView) -> bool:
        """Return whether a pod of another service, or of none, uses capacity of its node."""
        return bool(view.node) and not view.is_finished and view.service != self._service

    def used(self, node: str) -> Mapping[str, int]:
        """Return the resources on a node that other pods and strays use."""
        used = self._used.get(node, Counter())
        strays = self._used_by_strays.get(node)
        return used if strays is None else used + strays

    # ------------------------------------------------------------------ strays

    def strays(self) -> Iterator[tuple[str, PodView]]:
        """Yield the strays with their namespace/name."""
        latest = time.monotonic() - STRAY_SECONDS
        for key, since in self._stray_since.items():
            view = self.own.get(key)
            if view is not None and since <= latest:
                yield key, view

    def mark_strays(self, pods: Iterable[PodView]) -> None:
        """Count pods as strays from now on, even while they are being deleted."""
        for view in pods:
            self._stray_since[f"{view.namespace}/{view.name}"] = -math.inf

    def find_strays(self, live: Collection[tuple[str, int]]) -> None:
        """Update the strays; ``live`` has the key and number of every unfinished generation."""
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
            self._used_by_strays.setdefault(view.node, Counter()).update(view.requests)

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
            time.monotonic() - since > self.settings.lost_after
            or (node is not None and node.out_of_service)
        )

    def gone_since(self, server: str) -> float | None:
        """Return the monotonic time since which a node is missing or not ready, or None."""
        node = self.nodes.items.get(server)
        if node is not None and node.ready:
            self._unready_since.pop(server, None)
            return None
        if not self.nodes.healthy:  # without a watch, the cached readiness may be outdated
            return self._unready_since.get(server)
        return self._unready_since.setdefault(server, time.monotonic())

    def refresh_servers(self, expected: Collection[str]) -> None:
        """Derive the servers from the nodes.

        A node that isn't ready may be healthy: after an outage of the API server, its kubelet first
        has to renew its lease. So a previous server stays one for `tolerate_unready` seconds.
        ``expected`` are names that count as previous servers too.
        """
        servers: dict[str, ServerInfo] = {}
        tolerations: list[Mapping[str, Any]] = list(self.settings.pod.get("tolerations", ()))
        latest = time.monotonic() - self.settings.tolerate_unready
        for name, node in self.nodes.items.items():
            since = self.gone_since(name)
            was_server = name in self.servers or name in expected
            if since is None or (was_server and not node.out_of_service and since > latest):
                servers[name] = to_server_info(
                    node, self.used(name), gpu=self.settings.gpu, tolerations=tolerations
                )
        self.servers = servers
