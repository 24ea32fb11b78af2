"""The objects of one generation in the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.pod_logs import PodLogFollower
from shadowprice.executors.kubernetes.session import KubernetesSession
from shadowprice.executors.kubernetes.tracked_generation import KubernetesGeneration, PodProcess
from shadowprice.executors.kubernetes.views import PodView, pod_view
from shadowprice.kubernetes.errors import ApiError

MAX_PODS_READ_BY_NAME: Final = 8
"""Maximum number of pods that are read by name; more are listed by label."""


class GenerationObjects:
    """Reads, changes and deletes the objects of a generation."""

    def __init__(self, session: KubernetesSession, entry: KubernetesGeneration) -> None:
        self._session = session
        self._entry = entry
        self.connection = session.connection
        self.uids: dict[str, str] = {}
        """Uids of the generation's own secret and service, by kind."""

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
        if not 0 < len(parts) <= MAX_PODS_READ_BY_NAME:
            return await self._list()
        lists = await asyncio.gather(*(self._list(f"metadata.name={part.pod}") for part in parts))
        return [view for views in lists for view in views]

    async def _list(self, fields: str = "") -> list[PodView]:
        entry = self._entry
        query = {"labelSelector": self._session.identity.selector(entry.job, entry.number)}
        if fields:
            query["fieldSelector"] = fields
        page = await self.connection.get(self.path("pods"), **query)
        return [pod_view(item) for item in page.get("items") or ()]

    def is_own(self, item: Mapping[str, Any], execution: str = "") -> bool:
        """Return whether an object of the generation's name is the generation's.

        ``execution`` is the launch that has to have created it; empty for any.
        """
        entry, meta = self._entry, item["metadata"]
        labels = self._session.identity.labels(entry.job, entry.number)
        owner = (entry.state.get("plan") or {}).get("owner")
        return (
            labels.items() <= (meta.get("labels") or {}).items()
            and (
                owner is None
                or owner["uid"] in {one.get("uid") for one in meta.get("ownerReferences") or ()}
            )
            and execution in {"", (meta.get("annotations") or {}).get(names.EXECUTION)}
        )

    def follower(self, part: PodProcess) -> PodLogFollower:
        """Return the follower of a process's log, created on first use."""
        if part.follower is None:
            part.follower = PodLogFollower(
                self.connection,
                self.path("pods", part.pod),
                self._entry.generation.logs,
                part.process,
                self._session.settings.log_bytes,
                self._entry.token,
            )
        return part.follower

    async def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object by its name, None if it doesn't exist."""
        if kind == "pods":  # a list needs no right beyond those for following pods
            page = await self.connection.get(self.path(kind), fieldSelector=f"metadata.name={name}")
            items = page.get("items") or ()
            return dict(items[0]) if items else None
        try:
            item: dict[str, Any] = await self.connection.get(self.path(kind, name))
        except ApiError as error:
            if not error.not_found:
                raise
            return None
        return item

    async def remove_scheduling_gates(self) -> None:
        """Remove the scheduling gates, once all pods exist."""
        for view in await self.pods():
            if view.gated:
                try:
                    await self.connection.patch(
                        self.path("pods", view.name), {"spec": {"schedulingGates": None}}
                    )
                except ApiError as error:
                    if not error.not_found:  # deleted meanwhile, which is reported as its end
                        raise

    async def delete_named(self, kind: str) -> None:
        """Delete the generation's secret or service, if it exists and is the generation's."""
        uid = self.uids.get(kind)
        if uid is None:
            item = await self.find(kind, self.name)
            if item is None or not self.is_own(item):
                return
            uid = self.uids[kind] = str(item["metadata"]["uid"])
        await self.delete(kind, self.name, uid)

    async def delete(
        self, kind: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> None:
        """Delete an object of the generation if it exists."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self.connection.delete(self.path(kind, name), body)
        except ApiError as error:
            if not (error.not_found or error.conflict):  # conflict: a new object has this name
                raise
