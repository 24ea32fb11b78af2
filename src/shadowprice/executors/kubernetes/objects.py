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
"""Pods of a generation that are asked for by their names; more, by its labels at once."""


class Objects:
    """Asks for them, and takes them away.

    Parameters
    ----------
    executor : KubernetesExecutor
        Whose they are.
    entry : KubernetesEntry
        The generation.
    """

    def __init__(self, executor: KubernetesExecutor, entry: KubernetesEntry) -> None:
        self._executor = executor
        self._entry = entry

    @property
    def connection(self) -> Any:
        """The connection to the server."""
        return self._executor.connection

    def path(self, kind: str, name: str = "") -> str:
        """Return where objects of a kind are, or one of them."""
        path = f"/api/v1/namespaces/{self._entry.namespace}/{kind}"
        return f"{path}/{name}" if name else path

    @property
    def name(self) -> str:
        """What its secret and its service are called."""
        return names.generation_name(self._entry.job, self._entry.number)

    async def pods(self) -> list[PodView]:
        """Return the generation's pods as they are now.

        For a list by labels a server reads every pod of the namespace from its store; of a list by
        one name it reads that pod. A generation's pods have no names but those of its processes.
        """
        parts = self._entry.parts.values()
        if not 0 < len(parts) <= FEW:
            return await self._listed()
        found = await asyncio.gather(*(self._listed(f"metadata.name={one.pod}") for one in parts))
        return [view for views in found for view in views]

    async def _listed(self, fields: str = "") -> list[PodView]:
        entry = self._entry
        query = {"labelSelector": names.selector(self._executor.service, entry.job, entry.number)}
        if fields:
            query["fieldSelector"] = fields
        found = await self.connection.get(self.path("pods"), **query)
        return [pod_view(item) for item in found.get("items") or ()]

    async def ungate(self) -> None:
        """Let pods be placed, now that all are there."""
        for view in await self.pods():
            if view.gated:
                await self.connection.patch(
                    self.path("pods", view.name), {"spec": {"schedulingGates": None}}
                )

    async def removed(self, kind: str, name: str, body: dict[str, Any] | None = None) -> None:
        """Delete an object, there or not."""
        try:
            await self.connection.delete(self.path(kind, name), body)
        except ApiError as error:
            if not (error.not_found or error.conflict):  # another is called so now
                raise
