"""The cluster as it is known here: nodes and pods by informers, and what they come to."""

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
    """Nodes, pods, and servers made of them.

    Parameters
    ----------
    connection : Connection
        To the server.
    service : str
        Whose pods are not those of others.
    settings : Settings
        What holds of all jobs.
    happened : callable
        Told of every change of a pod of a service: service, key of its job, generation.
    moved : callable
        Told of a node that went, came, or is ready, or off, where it was not.

    Attributes
    ----------
    servers : dict of str to ServerSlice
        The nodes that are ready, or were a moment ago, as they were last told.
    last : dict of str to PodView
        What own pods were in the end that are not there any more.
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
        """List both, and follow them.

        Raises
        ------
        ApiError
            If the server refuses.
        """
        await self.nodes.start()
        await self.pods.start()

    async def close(self) -> None:
        """Follow no longer."""
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
        own = new or old
        if own is None or not own.service:
            return
        if own.service == self._service:
            if new is None and old is not None:
                self.last[key] = old
            else:
                self.last.pop(key, None)
        self._happened(own.service, own.job, own.generation)

    def _is_anothers(self, view: PodView) -> bool:
        """Whether a pod takes from its node what this service cannot give away."""
        return bool(view.node) and not view.over and view.service != self._service

    def used(self, node: str) -> Mapping[str, int]:
        """Return what pods of others have on a node."""
        return self._used.get(node, {})

    def gone_since(self, server: str) -> float | None:
        """Return since when a node is gone, or not ready, on the monotonic clock."""
        node = self.nodes.items.get(server)
        if node is not None and node.ready:
            self._gone.pop(server, None)
            return None
        if not self.nodes.healthy:  # nobody tells: what was known last holds
            return self._gone.get(server)
        return self._gone.setdefault(server, time.monotonic())

    def look(self, expected: Collection[str]) -> tuple[list[ServerSlice], list[str]]:
        """Return the servers that are new or other than they were, and those that are gone.

        A node that is not ready may be well: after an API server was away, its kubelet's lease is
        old until it renews it. So what was a server stays one for a while.

        Parameters
        ----------
        expected : collection of str
            What is reckoned with as a server, beside what was seen as one here.
        """
        found: dict[str, ServerSlice] = {}
        tolerations: list[Mapping[str, Any]] = list(self._settings.pod.get("tolerations", ()))
        latest = time.monotonic() - self._settings.tolerate_unready
        for name, node in self.nodes.items.items():
            since = self.gone_since(name)
            known = name in self.servers or name in expected
            if since is None or (known and not node.off and since > latest):
                found[name] = server_of(
                    node, self.used(name), gpu=self._settings.gpu, tolerations=tolerations
                )
        before, self.servers = self.servers, found
        seen = [server for name, server in found.items() if before.get(name) != server]
        return seen, sorted(before.keys() - found.keys())
