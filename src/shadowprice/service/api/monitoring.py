"""Routes that only read: prices, the timeline, decisions, the event stream, what-if runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response
from starlette.responses import StreamingResponse

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.rest.monitoring import (
    DecisionPage,
    PriceHistory,
    Prices,
    Timeline,
    WhatIf,
    WhatIfList,
)
from shadowprice.service.api.openapi import problems
from shadowprice.service.api.references import find_job
from shadowprice.service.api.requests import (
    CallerDep,
    Cursor,
    JsonBody,
    Limit,
    OperatorDep,
    ServiceDep,
    api_router,
    requested_tenant,
    require_observe_mode,
)
from shadowprice.service.clock import SECOND
from shadowprice.service.problems import ProblemError
from shadowprice.service.queries import timeline as timelines
from shadowprice.service.queries.comparison import observed_bars
from shadowprice.service.queries.whatif import WhatIfParameters, parse_request, workload
from shadowprice.service.state import store_queries
from shadowprice.service.state.durable_state import DurableState
from shadowprice.service.state.price_history import history
from shadowprice.service.state.prices import MAX_SLOTS
from shadowprice.service.state.prices import prices as prices_of

router = api_router("/v1", "monitoring")

# ------------------------------------------------------------------ prices


@router.get("/prices")
async def prices(
    service: ServiceDep,
    caller: CallerDep,
    slots: Annotated[int, Query(ge=1, le=MAX_SLOTS, description="number of slots")] = 24,
) -> Prices:
    """Return prices and reserved shares by kind of server, over the coming slots."""
    del caller
    answer = await service.writing.query_standing(_next_prices, slots)
    return answer.model_copy(update={"slots": answer.slots[:slots]})


def _next_prices(state: DurableState, slots: int) -> Prices:
    return prices_of(state.engine, state.calendar, state.choice.name, slots, state.next_slot)


@router.get("/prices/history")
async def price_history(
    service: ServiceDep,
    caller: CallerDep,
    past_slots: Annotated[int, Query(ge=1, le=10**9)] = 24,
    limit: Limit = 500,
) -> PriceHistory:
    """Return prices of past slots; long ago, samples are further apart."""
    del caller
    calendar = service.writing.published.servers.calendar
    since = max(0, service.writing.clock.now() - int(past_slots * calendar.slot))
    page = await service.read(lambda connection: history(connection, calendar, since, limit))
    return PriceHistory(slots=page)


# ------------------------------------------------------------------ timeline

TIMELINE_CACHE_SECONDS: Final = 1.0
MAX_CACHED_TIMELINES: Final = 64

MAX_CACHED_BYTES: Final = 64 << 20
"""Maximum bytes of the cached timelines; one of 10,000 servers may have 27 MB."""

REFRESH_FACTOR: Final = 4.0
"""After an event, a timeline is computed again no sooner than this multiple of its duration."""


@dataclass(frozen=True, slots=True)
class _CachedTimeline:
    content: bytes
    sequence: int
    expires: float
    may_refresh: float

    def is_fresh(self, sequence: int, now: float) -> bool:
        """Return whether the timeline can be sent again."""
        return now < self.expires and (sequence == self.sequence or now < self.may_refresh)


def _cache_timeline(cache: dict[Any, _CachedTimeline], key: Any, entry: _CachedTimeline) -> None:
    """Cache a timeline; drop the others if they are too many or too large."""
    cache.pop(key, None)
    cached_bytes = sum(len(other.content) for other in cache.values())
    if len(cache) >= MAX_CACHED_TIMELINES or cached_bytes + len(entry.content) > MAX_CACHED_BYTES:
        cache.clear()
    cache[key] = entry


@router.get("/timeline", response_model=Timeline, responses=problems(404, 409))
async def timeline(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    past_slots: Annotated[int, Query(ge=0, le=timelines.MAX_SLOTS)] = 24,
    future_slots: Annotated[int, Query(ge=1, le=timelines.MAX_SLOTS)] = 24,
    server: Annotated[str | None, Query(description="one server only")] = None,
    job: Annotated[str | None, Query(description="one job only")] = None,
    observed: Annotated[bool, Query(description="what ran, if the service only observes")] = False,
) -> Response:
    """Return past, running and promised placements; tenants see names of their own jobs only.

    Times are in slots since the start of slot 0 (`origin`).
    """
    if observed:
        require_observe_mode(service)
    writer = service.writing
    published = writer.published
    if server is not None and server not in published.servers.cluster.index:
        raise ProblemError("not-found", f"unknown server {quote_for_display(server)}")
    if job is not None:
        job = (await find_job(service, caller, job)).key
    cache: dict[Any, _CachedTimeline] = request.app.state.__dict__.setdefault("timelines", {})
    key = (past_slots, future_slots, server, job, caller.scope, observed)
    cached = cache.get(key)
    started = time.monotonic()
    if cached is None or not cached.is_fresh(published.sequence, started):
        sequence, now = published.sequence, writer.clock.now()
        plans = await writer.query_standing(timelines.planned_bars, future_slots)
        result = await service.read(
            lambda connection: timelines.timeline(
                connection,
                published,
                plans,
                now=now,
                back=past_slots,
                slots=future_slots,
                server=server,
                job=job,
                scope=caller.scope,
                past=observed_bars if observed else timelines.past_bars,
                real=observed,
            )
        )
        content = result.model_dump_json().encode()
        ended = time.monotonic()
        cached = _CachedTimeline(
            content,
            sequence,
            ended + TIMELINE_CACHE_SECONDS,
            ended + REFRESH_FACTOR * (ended - started),
        )
        _cache_timeline(cache, key, cached)
    # Serialized once for many readers.
    return Response(cached.content, media_type="application/json")


# ------------------------------------------------------------------ decisions and events


@router.get("/decisions", responses=problems(403))
async def decisions(
    service: ServiceDep,
    caller: CallerDep,
    job: Annotated[str | None, Query(description="one job only")] = None,
    tenant: Annotated[str | None, Query(description="one tenant only")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> DecisionPage:
    """List the policy's decisions, newest first."""
    tenant = requested_tenant(caller, tenant)
    key = None
    if job is not None:
        try:
            key = (await find_job(service, caller, job, tenant)).key
        except ProblemError as error:
            if error.code != "not-found":
                raise
            return DecisionPage(decisions=[], next=None)  # an unknown job has no decisions
    page = await service.read(
        lambda connection: store_queries.list_events(
            connection, before=cursor, job=key, tenant=tenant, decisions=True, limit=limit
        )
    )
    return DecisionPage(decisions=page, next=page[-1].id if len(page) == limit else None)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "a stream of server-sent events: the data are those of StoredEvent",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    },
)
async def events(
    service: ServiceDep,
    caller: CallerDep,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="as Last-Event-ID")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Stream events (server-sent events).

    `Last-Event-ID` (or `after`) resumes a stream; without it, the stream starts with the next
    event. Events without an id (`slot`) are not stored. The stream ends when its token becomes
    invalid.
    """
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit()) or len(last_event_id) > 16:
            message = f"expected an integer, got {quote_for_display(last_event_id)}"
            raise InputError(Fault("Last-Event-ID", message))
        after = int(last_event_id)
    hub = service.writing.hub
    hub.check_limits(caller.scope)

    def is_allowed() -> bool:
        return service.tokens.holds(caller, service.writing.clock.now())

    return StreamingResponse(
        hub.follow(caller.scope, after, is_allowed),
        headers={"X-Accel-Buffering": "no"},
        media_type="text/event-stream",
    )


# ------------------------------------------------------------------ what-if runs


@router.post("/whatif", status_code=202, responses=problems(409))
async def start_whatif(
    service: ServiceDep,
    caller: OperatorDep,
    parameters: Annotated[WhatIfParameters, Depends(JsonBody(WhatIfParameters))],
) -> WhatIf:
    """Simulate the last days on other servers, or under another policy.

    The response comes at once. The run continues in the background; `GET /v1/whatif/{run}` returns
    its progress.
    """
    del caller
    writer = service.writing
    cluster, now = writer.published.servers.cluster, writer.clock.now()
    request = parse_request(parameters, cluster, service.choice, now)
    since = request.at - int(request.days * 86_400 * SECOND)
    jobs = await service.read(lambda connection: workload(connection, since, request.at))
    return service.whatifs.start(request, cluster, jobs, service.choice, now).to_resource()


@router.get("/whatif")
async def list_whatif(service: ServiceDep, caller: OperatorDep) -> WhatIfList:
    """List what-if runs since the service started, newest first."""
    del caller
    return WhatIfList(runs=[run.to_resource() for run in service.whatifs.all()])


@router.get("/whatif/{run}", responses=problems(404))
async def get_whatif(run: int, service: ServiceDep, caller: OperatorDep) -> WhatIf:
    """Return the progress and the result of a what-if run."""
    del caller
    return service.whatifs.get(run).to_resource()


@router.delete("/whatif/{run}", responses=problems(404))
async def cancel_whatif(run: int, service: ServiceDep, caller: OperatorDep) -> WhatIf:
    """Cancel a what-if run."""
    del caller
    whatif = service.whatifs.get(run)
    await service.whatifs.cancel(whatif)
    return whatif.to_resource()
