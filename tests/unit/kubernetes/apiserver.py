"""A server with the faults of an API server: late responses, errors, and histories that expire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from shadowprice.kubernetes.connection import ApiClient


class Scripted:
    """Objects of one kind, their history, and pending faults."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.version = 100
        self.oldest = 0
        self.faults: list[web.Response] = []
        self.requests: list[str] = []
        self.cut: asyncio.Event = asyncio.Event()
        self.page = 2

    def put(self, name: str, value: int) -> None:
        """Create or change an object."""
        self.version += 1
        kind = "MODIFIED" if name in self.objects else "ADDED"
        meta = {"name": name, "namespace": "n", "resourceVersion": str(self.version)}
        self.objects[name] = {"metadata": meta, "value": value}
        self.history.append((self.version, kind, self.objects[name]))

    def remove(self, name: str, value: int) -> None:
        """Delete an object with its last value."""
        self.version += 1
        last = self.objects.pop(name)
        meta = {**last["metadata"], "resourceVersion": str(self.version)}
        self.history.append((self.version, "DELETED", {"metadata": meta, "value": value}))

    def forget(self) -> None:
        """Compact the history: watches can't resume from before."""
        self.oldest = self.version + 1
        self.version += 1

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Respond to a list request, or to a watch."""
        self.requests.append(f"{request.method} {request.rel_url}")
        if self.faults:
            return self.faults.pop(0)
        if request.query.get("watch"):
            return await self._follow(request)
        names = sorted(self.objects)
        begin = int(request.query.get("continue", 0))
        page = [self.objects[name] for name in names[begin : begin + self.page]]
        meta = {"resourceVersion": str(self.version)}
        if begin + self.page < len(names):
            meta["continue"] = str(begin + self.page)
        return web.json_response({"metadata": meta, "items": page})

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        at = int(request.query["resourceVersion"])

        async def tell(kind: str, item: dict[str, Any]) -> None:
            await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")

        if at < self.oldest:
            await tell("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})
            return response
        self.cut = asyncio.Event()
        cut = self.cut
        while not cut.is_set():
            for version, kind, item in self.history:
                if version > at:
                    at = version
                    await tell(kind, item)
            if self.version > at:
                at = self.version
                await tell("BOOKMARK", {"metadata": {"resourceVersion": str(at)}})
            await asyncio.sleep(0.01)
        assert request.transport is not None
        request.transport.abort()
        return response


class Leases:
    """A server of one lease, which keeps the newest write and refuses older ones."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self.version = 0
        self.down = False

    async def answer(self, request: web.Request) -> web.Response:
        if self.down:
            return web.Response(status=503)
        if request.method == "GET":
            return web.json_response(self.held, status=200 if self.held else 404)
        body = await request.json()
        if request.method == "POST" and self.held:
            return web.json_response({"reason": "AlreadyExists"}, status=409)
        if body["metadata"].get("resourceVersion", "0") != str(self.version):
            return web.json_response({"reason": "Conflict"}, status=409)
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.held = body
        return web.json_response(body)


@asynccontextmanager
async def served(
    scripted: Scripted, folder: Path, user: dict[str, Any] | None = None
) -> AsyncIterator[ApiClient]:
    """Run it, and connect to it by a kubeconfig with a user's credentials."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await scripted.answer(request)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    user = user or {"token": "secret"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "own"}}
        ],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    connection = await ApiClient.open(str(path))
    try:
        yield connection
    finally:
        await connection.close()
        scripted.cut.set()
        await runner.cleanup()
