"""What an API server has of one kind of objects, known here as it changes: list, then watch.

A watch goes on from where the list ended; where the server has forgotten that place (410), or
nobody answers, all is listed again, and what changed meanwhile is told as if it had just happened.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Pauses

log = logging.getLogger("shadowprice.kubernetes")

Kept = TypeVar("Kept")

PAGE: Final = 500
"""Objects asked for at a time."""

TURN: Final = 120
"""Seconds after which a watch is begun anew, from where it was."""

SHORTEST: Final = 0.2
LONGEST: Final = 5.0
"""Seconds between tries, from the first to the last; also of watches that end as they begin."""

LASTING: Final = 1.0
"""Seconds that a watch lasts where all is well."""


class Informer(Generic[Kept]):
    """Keeps what is wanted of the objects of one kind.

    Parameters
    ----------
    connection : Connection
        To the server.
    path : str
        Of the list: ``/api/v1/pods``, ``/api/v1/namespaces/NAME/pods``.
    reduce : callable
        Returns what is kept of an object, None for one that is left out.
    changed : callable, optional
        Told of every change: key, what was kept, what is; None for what was not, or is not there.
    query : mapping, optional
        More of the list: ``labelSelector``, ``fieldSelector``.

    Attributes
    ----------
    items : dict
        What is kept, by ``NAMESPACE/NAME``, or ``NAME`` where the kind has no namespaces.
    healthy : bool
        Whether the last request was answered.
    lists, watches : int
        How often each was asked for.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        reduce: Callable[[dict[str, Any]], Kept | None],
        changed: Callable[[str, Kept | None, Kept | None], None] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> None:
        self._connection = connection
        self._path = path
        self._reduce = reduce
        self._changed = changed or (lambda *_: None)
        self._query = dict(query or {})
        self._version = ""
        self._task: asyncio.Task[None] | None = None
        self.items: dict[str, Kept] = {}
        self.healthy = False
        self.lists = self.watches = 0

    async def start(self) -> None:
        """List everything, then follow what happens until `close`.

        Raises
        ------
        ApiError
            If the first list fails.
        """
        await self._list()
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            # Not a suppressed cancellation: it may be that of who closes, which then never ended.
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # ------------------------------------------------------------------ listing

    async def _list(self) -> None:
        found: dict[str, Kept] = {}
        more: dict[str, object] = {}
        while True:
            self.lists += 1
            page = await self._connection.get(self._path, limit=PAGE, **self._query, **more)
            for item in page.get("items") or ():
                kept = self._reduce(item)
                if kept is not None:
                    found[key_of(item)] = kept
            told = page["metadata"]
            if not told.get("continue"):
                break
            more = {"continue": told["continue"]}
        self._version = told["resourceVersion"]
        self.healthy = True
        for key in self.items.keys() - found.keys():
            self._take(key, None)
        for key, kept in found.items():
            self._take(key, kept)

    def _take(self, key: str, kept: Kept | None) -> None:
        old = self.items.get(key)
        if kept is None:
            self.items.pop(key, None)
        else:
            self.items[key] = kept
        if old != kept:
            try:
                self._changed(key, old, kept)
            except Exception:
                log.exception("what %s told of %s could not be taken in", self._path, key)

    # ------------------------------------------------------------------ following

    async def _follow(self) -> None:
        pauses = Pauses(SHORTEST, LONGEST)
        while True:
            try:
                if not self._version:
                    await self._list()
                began = time.monotonic()
                await self._watch()
                if time.monotonic() - began >= LASTING:
                    pauses.succeeded()
                    continue
            except ApiError as error:
                if error.gone:
                    self._version = ""
                    log.info("%s is listed anew: %s", self._path, error)
                else:
                    self.healthy = False
                    log.info("%s is not followed: %s", self._path, error)
            except Exception:  # an object that nobody reckoned with
                log.exception("%s is listed anew", self._path)
                self._version = ""
            await asyncio.sleep(pauses.failed())

    async def _watch(self) -> None:
        self.watches += 1
        turn = random.randint(TURN * 3 // 4, TURN)
        lines = self._connection.lines(
            self._path,
            silence=turn + 20.0,
            watch=True,
            resourceVersion=self._version,
            allowWatchBookmarks=True,
            timeoutSeconds=turn,
            **dict[str, Any](self._query),
        )
        async for line in lines:
            event = json.loads(line)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                status = int(item.get("code", 500))
                raise ApiError(status, str(item.get("reason", "")), str(item.get("message", "")))
            self.healthy = True
            if kind in {"ADDED", "MODIFIED"}:
                self._take(key_of(item), self._reduce(item))
            elif kind == "DELETED":
                # What it was in the end is news of its own: how its containers ended, say.
                last = self._reduce(item)
                if last is not None and self.items.get(key_of(item)) != last:
                    self._take(key_of(item), last)
                self._take(key_of(item), None)
            self._version = item["metadata"]["resourceVersion"]
        self.healthy = True


def key_of(item: Mapping[str, Any]) -> str:
    """Return ``NAMESPACE/NAME`` of an object, ``NAME`` where it is in no namespace."""
    told = item["metadata"]
    space = told.get("namespace")
    return f"{space}/{told['name']}" if space else str(told["name"])
