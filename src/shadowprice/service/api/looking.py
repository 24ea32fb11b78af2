"""Routes that only look: prices, decisions, the event stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, StreamingResponse

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import shown
from shadowprice.service.api.documents import looking as documents
from shadowprice.service.api.jobs import own_job
from shadowprice.service.api.requests import (
    Anyone,
    Asked,
    Operator,
    answer,
    body_of,
    check_observes,
    known_query,
    limit_of,
    object_of,
    truth_of,
    whole_of,
)
from shadowprice.service.clock import SECOND
from shadowprice.service.events import VIEWERS
from shadowprice.service.problems import ProblemError
from shadowprice.service.queries import timeline as timelines
from shadowprice.service.queries.comparison import seen
from shadowprice.service.queries.whatif import read_question, workload
from shadowprice.service.truth import reading
from shadowprice.service.truth.price_history import history
from shadowprice.service.truth.prices import prices as prices_of

router = APIRouter(prefix="/v1", tags=["looking"])


@router.get("/prices", **documents.PRICES)
async def prices(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return prices by kind of server over slots to come, and how much of each is reserved."""
    del caller
    known_query(request, ("slots",))
    slots = whole_of(request, "slots", 24, 1, 1_000) or 24
    driver = service.writing
    known: _Prices = request.app.state.__dict__.setdefault("prices", _Prices())
    async with known.asking:  # who waited is told what was found meanwhile
        sequence = driver.published.sequence
        if known.sequence != sequence or known.slots < slots:
            known.found = await driver.ask(lambda truth: prices_of(truth, slots))
            known.sequence, known.slots = sequence, slots
        found = known.found
    return answer({**found, "slots": found["slots"][:slots]})


@dataclass(slots=True)
class _Prices:
    """Prices of so many slots, as they were after some event: many ask for the same."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    sequence: int = -1
    slots: int = 0
    found: dict[str, Any] = field(default_factory=dict)


@router.get("/prices/history", **documents.PRICE_HISTORY)
async def price_history(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return prices of past slots, a sample a slot and fewer of long ago."""
    del caller
    known_query(request, ("back", "limit"))
    back = whole_of(request, "back", 24, 1, 10**9) or 24
    limit = limit_of(request, 500)
    calendar = service.writing.published.servers.calendar
    since = max(0, service.writing.clock.now() - int(back * calendar.slot))
    found = await service.read(lambda connection: history(connection, calendar, since, limit))
    return answer({"slots": found})


FRESH: Final = 1.0
"""Seconds that a timeline is told again as it was, to many who look at it; where something happened
meanwhile, four times as long as it took to put together, if that is less."""


@router.get("/timeline", **documents.TIMELINE)
async def timeline(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return what ran, runs and is promised where; tenants see names of their own jobs only.

    Times are in slots since the beginning of slot 0 (`origin`). Where the service only observes,
    `real=true` tells what was seen to run, in place of what it decided.
    """
    known_query(request, ("back", "slots", "server", "job", "real"))
    real = truth_of(request, "real")
    if real:
        check_observes(service)
    back = whole_of(request, "back", 24, 0, timelines.MOST) or 0
    slots = whole_of(request, "slots", 24, 1, timelines.MOST) or 24
    server, job = request.query_params.get("server"), request.query_params.get("job")
    driver = service.writing
    published = driver.published
    if server is not None and server not in published.servers.cluster.index:
        raise ProblemError("not-found", f"there is no server {shown(server)}")
    if job is not None:
        await own_job(service, caller, job)
    cache: dict[Any, tuple[float, float, int, bytes]] = request.app.state.__dict__.setdefault(
        "timelines", {}
    )
    key = (back, slots, server, job, caller.scope, real)
    known = cache.get(key)
    began = time.monotonic()
    if known is None or began >= known[0] or (began >= known[1] and known[2] != published.sequence):
        sequence, now = published.sequence, driver.clock.now()
        last = max(published.servers.calendar.slot_at(now) + 1, published.servers.coming) + slots
        plans = await driver.ask(lambda truth: timelines.planned(truth, last))
        found = await service.read(
            lambda connection: timelines.timeline(
                connection,
                published,
                plans,
                now=now,
                back=back,
                slots=slots,
                server=server,
                job=job,
                scope=caller.scope,
                past=seen if real else timelines.ran,
                real=real,
            )
        )
        if len(cache) >= 64:
            cache.clear()
        text = json.dumps(found, separators=(",", ":")).encode()
        ended = time.monotonic()
        known = cache[key] = (ended + FRESH, ended + 4 * (ended - began), sequence, text)
    return JsonText(known[3], headers={"Cache-Control": "no-store"})


class JsonText(JSONResponse):
    """JSON that is text already."""

    def render(self, content: Any) -> bytes:
        """Return it as it is."""
        return bytes(content)


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
    now. Entries without an id (`slot`) are for the moment only. The stream ends with its token.
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

    def allowed() -> bool:
        return service.tokens.holds(caller, service.writing.clock.now())

    async def stream() -> AsyncIterator[bytes]:
        try:
            async for chunk in hub.follow(caller.scope, after, allowed):
                yield chunk
        finally:
            service.metrics.viewers.set(hub.viewers)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream(), headers=headers, media_type="text/event-stream")


@router.post("/whatif", status_code=202, **documents.ASK_WHATIF)
async def ask_whatif(request: Request, service: Asked, caller: Operator) -> JSONResponse:
    """Ask what the last days would have earned on other servers, or under another policy.

    Answers at once; the run goes on in the background, and `GET /v1/whatif/{run}` tells how far.
    """
    del caller
    known_query(request, ())
    body = object_of(await body_of(request), ("days", "servers", "policy", "set"))
    driver = service.writing
    cluster, now = driver.published.servers.cluster, driver.clock.now()
    question = read_question(body, cluster, service.choice)
    since = now - int(question.days * 86_400 * SECOND)
    jobs = await service.read(lambda connection: workload(connection, since))
    run = service.whatifs.ask(question, cluster, jobs, service.choice, now)
    return answer(run.record(), 202)


@router.get("/whatif", **documents.LIST_WHATIF)
async def list_whatif(request: Request, service: Asked, caller: Operator) -> JSONResponse:
    """List what was asked since the service was started, the newest first."""
    del caller
    known_query(request, ())
    return answer({"runs": [run.record() for run in service.whatifs.all()]})


@router.get("/whatif/{run}", **documents.GET_WHATIF)
async def get_whatif(run: int, request: Request, service: Asked, caller: Operator) -> JSONResponse:
    """Tell how far a what-if is, and what came of it."""
    del caller
    known_query(request, ())
    return answer(service.whatifs.get(run).record())


@router.delete("/whatif/{run}", **documents.CANCEL_WHATIF)
async def cancel_whatif(
    run: int, request: Request, service: Asked, caller: Operator
) -> JSONResponse:
    """End a what-if."""
    del caller
    known_query(request, ())
    found = service.whatifs.get(run)
    await service.whatifs.cancel(found)
    return answer(found.record())
