"""The objects of one generation in the API server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.entry import KubernetesEntry
from shadowprice.executors.kubernetes.views import PodView, pod_view
from shadowprice.kubernetes.errors import ApiError

if TYPE_CHECKING:
    from shadowprice.executors.kubernetes.executor import KubernetesExecutor


FEW: Final = 8
"""Maximum number of pods that are read by name; more are listed by label."""


class Objects:
    """Reads, changes and deletes the objects of a generation."""

    def __init__(self, executor: KubernetesExecutor, entry: KubernetesEntry) -> None:
        self._executor = executor
        self._entry = entry

    @property
    def connection(self) -> Any:
        """The connection to the API server."""
        return self._executor.connection

    def path(self, kind: str, name: str = "") -> str:
        """Return the API path of a kind of objects, or of one object."""
        path = f"/api/v1/namespaces/{self._entry.namespace}/{kind}"
        return f"{path}/{name}" if name else path

    @property
    def name(self) -> str:
        """Name of the secret and the service."""
        return names.generation_name(self._entry.job, self._entry.number)

    async def pods(self) -> list[PodView]:
        """Return the current pods of the generation.

        To list by labels, the API server reads every pod of the namespace from its store. To list
        by a name, it reads only that pod.
        """
        parts = self._entry.parts.values()
        if not 0 < len(parts) <= FEW:
            return await self._listed()
        lists = await asyncio.gather(*(self._listed(f"metadata.name={part.pod}") for part in parts))
        return [view for views in lists for view in views]

    async def _listed(self, fields: str = "") -> list[PodView]:
        entry = self._entry
        query = {"labelSelector": names.selector(self._executor.service, entry.job, entry.number)}
        if fields:
            query["fieldSelector"] = fields
        page = await self.connection.get(self.path("pods"), **query)
        return [pod_view(item) for item in page.get("items") or ()]

    async def remove_scheduling_gates(self) -> None:
        """Remove the scheduling gates, once all pods exist."""
        for view in await self.pods():
            if view.gated:
                await self.connection.patch(
                    self.path("pods", view.name), {"spec": {"schedulingGates": None}}
                )

    async def removed(self, kind: str, name: str, body: dict[str, Any] | None = None) -> None:
        """Delete an object if it exists."""
        try:
            await self.connection.delete(self.path(kind, name), body)
        except ApiError as error:
            if not (error.not_found or error.conflict):  # conflict: a new object has this name
                raise
