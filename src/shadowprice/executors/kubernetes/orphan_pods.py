"""Garbage collection of orphaned pods, which a delayed request may have created."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from shadowprice.core.job_keys import key_digest
from shadowprice.executors.generations.generation import TERMINAL_PHASES
from shadowprice.executors.kubernetes.session import KubernetesSession
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Backoff

ORPHAN_CHECK_SECONDS: Final = 10.0
MAX_CHECK_BACKOFF_SECONDS: Final = 320.0
"""Seconds between sweeps, and maximum backoff in seconds of checks of one pod."""


class OrphanPodCollector:
    """Garbage collector of a service's orphaned pods, with a backoff for each pod."""

    def __init__(self) -> None:
        self._orphans: dict[str, Backoff] = {}
        self.refusals: dict[str, str] = {}
        """Why orphans couldn't be deleted, by namespace and name."""

    async def delete_orphans(
        self, session: KubernetesSession, live: Collection[tuple[str, int]]
    ) -> None:
        """Delete pods of generations that have ended.

        Before a pod is deleted, the current record of its job is read. ``live`` are job keys and
        numbers of the generations that haven't ended. Raises `ApiError` if a record can't be read.
        """
        orphans: dict[str, Backoff] = {}
        for key, view in tuple(session.cluster.own.items()):  # it changes during requests
            if (view.job, view.generation) in live:
                continue
            orphans[key] = self._orphans.get(key) or Backoff(
                ORPHAN_CHECK_SECONDS, MAX_CHECK_BACKOFF_SECONDS
            )
            if key not in self._orphans:
                orphans[key].record_failure()  # its generation may become live in a moment
            if not orphans[key].over or key_digest(view.outer[0]) != view.job:
                continue
            orphans[key].record_failure()
            record = await session.records.read(view.outer[0])
            state = record.generations.get(view.generation)
            if state is not None and state["phase"] not in TERMINAL_PHASES:
                continue
            path = f"/api/v1/namespaces/{view.namespace}/pods/{view.name}"
            body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1}
            try:
                await session.connection.delete(path, {**body, "preconditions": {"uid": view.uid}})
            except ApiError as error:
                self.refusals[key] = str(error)
        self._orphans = orphans
        self.refusals = {key: text for key, text in self.refusals.items() if key in orphans}
