"""Routes that only look: prices, decisions, the event stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, StreamingResponse

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import shown
from shadowprice.service import reading
from shadowprice.service.api import documents
from shadowprice.service.api.requests import (
    Anyone,
    Asked,
    answer,
    known_query,
    limit_of,
    whole_of,
)
from shadowprice.service.events import VIEWERS
from shadowprice.service.prices import prices as prices_of
from shadowprice.service.problems import ProblemError

router = APIRouter(prefix="/v1", tags=["looking"])


@router.get("/prices", **documents.PRICES)
async def prices(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return prices by kind of server over slots to come, and how much of each is reserved."""
    del caller
    known_query(request, ("slots",))
    slots = whole_of(request, "slots", 24, 1, 1_000) or 24
    driver = service.writing
    key = (driver.published.sequence, slots)
    cache: dict[tuple[int, int], bytes] = request.app.state.__dict__.setdefault("prices", {})
    if key not in cache:
        found = await driver.ask(lambda truth: prices_of(truth, slots))
        cache.clear()
        cache[key] = json.dumps(found).encode()
    return answer(json.loads(cache[key]))


@router.get("/decisions", **documents.DECISIONS)
async def decisions(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """List what the policy decided, the newest first."""
    known_query(request, ("job", "tenant", "cursor", "limit"))
    tenant = request.query_params.get("tenant")
    if caller.scope is not None:
        if tenant is not None and tenant != caller.scope:
            raise ProblemError("forbidden", "a tenant lists its own decisions only")
        tenant = caller.scope
    job, limit = request.query_params.get("job"), limit_of(request)
    cursor = whole_of(request, "cursor", None)
    found = await service.read(
        lambda connection: reading.list_events(
            connection, before=cursor, job=job, tenant=tenant, decisions=True, limit=limit
        )
    )
    following = found[-1]["id"] if len(found) == limit else None
    return answer({"decisions": found, "next": following})


@router.get("/events", **documents.EVENTS)
async def events(request: Request, service: Asked, caller: Anyone) -> StreamingResponse:
    """Follow what happens (server-sent events).

    `Last-Event-ID` (or `?after=`) resumes where a stream broke off; without it, the stream begins
    now. Entries without an id (`slot`) are for the moment only.
    """
    known_query(request, ("after",))
    after = whole_of(request, "after", None)
    resumed = request.headers.get("last-event-id")
    if resumed is not None:
        if not (resumed.isascii() and resumed.isdigit()) or len(resumed) > 16:
            raise InputError(Fault("Last-Event-ID", f"{shown(resumed)} is no whole number"))
        after = int(resumed)
    hub = service.writing.hub
    if hub.viewers >= VIEWERS:
        raise ProblemError("too-many", f"{VIEWERS} viewers follow the stream already")
    service.metrics.viewers.set(hub.viewers + 1)

    async def stream() -> AsyncIterator[bytes]:
        try:
            async for chunk in hub.follow(caller.scope, after):
                yield chunk
        finally:
            service.metrics.viewers.set(hub.viewers)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream(), headers=headers, media_type="text/event-stream")
