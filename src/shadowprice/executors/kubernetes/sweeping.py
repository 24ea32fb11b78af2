"""Pods that nobody knows of any more are removed: what an old request brought late."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from typing import Final

from shadowprice.executors.generations.generation import OVER
from shadowprice.executors.generations.store import key_of
from shadowprice.executors.kubernetes.records import Records
from shadowprice.executors.kubernetes.views import PodView
from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Pauses

SWEEP: Final = 10.0
SELDOM: Final = 320.0
"""Seconds between looks for pods that nobody knows of; and of one of them, in the end."""


class Sweeper:
    """Remembers which pods are strange, and when each is looked at again.

    Parameters
    ----------
    service : str
        Label of the service whose pods are looked at.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._strangers: dict[str, Pauses] = {}

    async def sweep(
        self,
        connection: Connection,
        records: Records,
        pods: Iterable[tuple[str, PodView]],
        live: Collection[tuple[str, int]],
    ) -> None:
        """Remove pods of generations that are over.

        Parameters
        ----------
        connection : Connection
            To the server.
        records : Records
            What it remembers: asked of each stranger before it goes.
        pods : iterable of (str, PodView)
            All that are known, by namespace and name.
        live : collection of (str, int)
            Keys and numbers of the generations that are not over.

        Raises
        ------
        ApiError
            If a record cannot be read.
        """
        found: dict[str, Pauses] = {}
        for key, view in tuple(pods):  # others come while it is asked
            if view.service != self._service or (view.job, view.generation) in live:
                continue
            found[key] = self._strangers.get(key) or Pauses(SWEEP, SELDOM)
            if key not in self._strangers:
                found[key].failed()  # whose it is may be known in a moment
            if not found[key].over or key_of(view.outer[0]) != view.job:
                continue
            found[key].failed()
            record = await records.read(view.outer[0])
            state = record.generations.get(view.generation)
            if state is not None and state["phase"] not in OVER:
                continue
            path = f"/api/v1/namespaces/{view.namespace}/pods/{view.name}"
            body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1}
            with contextlib.suppress(ApiError):
                await connection.delete(path, {**body, "preconditions": {"uid": view.uid}})
        self._strangers = found
