"""A cache of one kind of objects in an API server: list, then watch.

A watch continues from the version of the list. If the server has dropped this version (410), the
objects are listed again, and differences are reported like events. Other failures only restart the
watch.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Backoff

log = logging.getLogger("shadowprice.kubernetes")

CachedT = TypeVar("CachedT")

WATCH_TIMEOUT_SECONDS: Final = 120  # of one watch; the next one continues from its version
WATCH_SILENCE_MARGIN_SECONDS: Final = 20.0  # the server ends a watch; without it, the client does
INITIAL_BACKOFF_SECONDS: Final = 0.2  # of failures, and of watches that end at once
MAX_BACKOFF_SECONDS: Final = 5.0

MIN_HEALTHY_WATCH_SECONDS: Final = 1.0  # seconds after which a watch counts as successful


@dataclass(eq=False)
class Informer(Generic[CachedT]):
    """Caches a reduced form of all objects of one kind, by ``NAMESPACE/NAME`` or ``NAME``.

    ``reduce`` returns the cached form of an object, None to omit it. ``changed`` receives the key,
    old and new form of every changed object; a form is None if the object is absent. ``path`` and
    ``query`` are those of the list request. ``healthy`` is true if the last request succeeded.
    """

    connection: ApiClient
    path: str
    reduce: Callable[[dict[str, Any]], CachedT | None]
    changed: Callable[[str, CachedT | None, CachedT | None], None] = lambda *_: None
    query: Mapping[str, object] = field(default_factory=dict)
    items: dict[str, CachedT] = field(default_factory=dict, init=False)
    healthy: bool = False
    lists: int = 0  # number of requests
    watches: int = 0
    _version: str = ""
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """List all objects, then watch them until `close`; raise `ApiError` if the list fails."""
        await self._list()
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            # Don't suppress CancelledError here: the caller itself may be cancelled.
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _list(self) -> None:
        items: dict[str, CachedT] = {}
        async for page in self.connection.pages(self.path, **self.query):
            self.lists += 1
            for item in page.get("items") or ():
                reduced = self.reduce(item)
                if reduced is not None:
                    items[object_key(item)] = reduced
        self._version = page["metadata"]["resourceVersion"]
        self.healthy = True
        for key in self.items.keys() - items.keys():
            self._store(key, None)
        for key, reduced in items.items():
            self._store(key, reduced)

    def _store(self, key: str, reduced: CachedT | None) -> None:
        old = self.items.get(key)
        if reduced is None:
            self.items.pop(key, None)
        else:
            self.items[key] = reduced
        if old != reduced:
            try:
                self.changed(key, old, reduced)
            except Exception:
                log.exception("failed to process an event of %s on %s", self.path, key)

    async def _follow(self) -> None:
        backoff = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while True:
            try:
                if not self._version:
                    await self._list()
                started = time.monotonic()
                await self._watch()
                if time.monotonic() - started >= MIN_HEALTHY_WATCH_SECONDS:
                    backoff.reset()
                    continue
            except ApiError as error:
                if error.gone:
                    self._version = ""
                    log.info("listing %s again: %s", self.path, error)
                else:
                    self.healthy = False
                    log.info("failed to watch %s: %s", self.path, error)
            except Exception:  # an object that `reduce` can't process
                log.exception("listing %s again", self.path)
                self._version = ""
            await asyncio.sleep(backoff.record_failure())

    async def _watch(self) -> None:
        self.watches += 1
        # Random, so that the watches of many informers don't restart together.
        timeout = random.randint(WATCH_TIMEOUT_SECONDS * 3 // 4, WATCH_TIMEOUT_SECONDS)
        source = self.connection.lines(
            self.path,
            silence=timeout + WATCH_SILENCE_MARGIN_SECONDS,
            watch=True,
            resourceVersion=self._version,
            allowWatchBookmarks=True,
            timeoutSeconds=timeout,
            **dict[str, Any](self.query),
        )
        async with aclosing(source) as lines:
            async for line in lines:
                event = json.loads(line)
                kind, item = event["type"], event["object"]
                if kind == "ERROR":
                    status = int(item.get("code", 500))
                    raise ApiError(
                        status, str(item.get("reason", "")), str(item.get("message", ""))
                    )
                self.healthy = True
                if kind in {"ADDED", "MODIFIED"}:
                    self._store(object_key(item), self.reduce(item))
                elif kind == "DELETED":
                    # The last state may be new, such as the exit of containers, so report it first.
                    last = self.reduce(item)
                    if last is not None and self.items.get(object_key(item)) != last:
                        self._store(object_key(item), last)
                    self._store(object_key(item), None)
                self._version = item["metadata"]["resourceVersion"]
        self.healthy = True


def object_key(item: Mapping[str, Any]) -> str:
    """Return ``NAMESPACE/NAME`` of an object, or ``NAME`` if it has no namespace."""
    meta = item["metadata"]
    namespace = meta.get("namespace")
    return f"{namespace}/{meta['name']}" if namespace else str(meta["name"])
