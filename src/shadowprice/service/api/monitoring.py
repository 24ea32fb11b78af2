"""Routes that only read: prices, timeline, decisions, event stream, what-if runs, comparison."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response
from starlette.responses import StreamingResponse

from shadowprice import rest
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.service.api.references import find_job
from shadowprice.service.api.requests import (
    CallerDep,
    Cursor,
    JsonBody,
    Limit,
    OperatorDep,
    ServiceDep,
    api_router,
    get_service,
    problems,
    requested_tenant,
    require_observe_mode,
)
from shadowprice.service.clock import SECOND
from shadowprice.service.problems import ProblemError
from shadowprice.service.queries import comparison as comparisons
from shadowprice.service.queries import timeline as timelines
from shadowprice.service.queries.whatif import WhatIfParameters, parse_request, workload
from shadowprice.service.state import store_queries
from shadowprice.service.state.durable_state import DurableState
from shadowprice.service.state.price_history import history
from shadowprice.service.state.prices import MAX_SLOTS
from shadowprice.service.state.prices import prices as compute_prices

router = api_router("/v1", "monitoring")
comparison_router = api_router("/v1/comparison", "comparison")

# ------------------------------------------------------------------ prices


@router.get("/prices")
async def prices(
    service: ServiceDep,
    _: CallerDep,
    slots: Annotated[int, Query(ge=1, le=MAX_SLOTS, description="number of slots")] = 24,
) -> rest.Prices:
    """Return prices and reserved shares by kind of server, over the coming slots."""
    answer = await service.require_writer().query_standing(_next_prices, slots)
    return answer.model_copy(update={"slots": answer.slots[:slots]})


def _next_prices(state: DurableState, slots: int) -> rest.Prices:
    return compute_prices(state.engine, state.calendar, state.choice.name, slots, state.next_slot)


@router.get("/prices/history")
async def price_history(
    service: ServiceDep,
    _: CallerDep,
    past_slots: Annotated[int, Query(ge=1, le=10**9)] = 24,
    limit: Limit = 500,
) -> rest.PriceHistory:
    """Return prices of past slots; older samples are further apart."""
    calendar = service.require_writer().published.servers.calendar
    since = max(0, service.require_writer().clock.now() - int(past_slots * calendar.slot))
    page = await service.read(history, calendar, since, limit)
    return rest.PriceHistory(slots=page)


# ------------------------------------------------------------------ timeline, comparison

CACHE_SECONDS: Final = 1.0  # maximum age of a cached response
MAX_CACHED_RESPONSES: Final = 64
MAX_CACHED_BYTES: Final = 64 << 20  # a timeline of 10,000 servers may have 27 MB
REFRESH_FACTOR: Final = 4.0  # minimum age after an event, as a multiple of the computing time


@dataclass(frozen=True, slots=True)
class _CachedResponse:
    content: bytes
    sequence: int  # number of the last event that the response includes
    expires: float  # monotonic time, as is ``may_refresh``
    may_refresh: float  # until then, the response is sent even if events have happened since

    def is_fresh(self, sequence: int, now: float) -> bool:
        """Return whether the response can be sent again."""
        return now < self.expires and (sequence == self.sequence or now < self.may_refresh)


def _cache_response(cache: dict[Any, _CachedResponse], key: Any, entry: _CachedResponse) -> None:
    """Cache a response; remove the others if all are too many or too large."""
    cache.pop(key, None)
    cached_bytes = sum(len(other.content) for other in cache.values())
    if len(cache) >= MAX_CACHED_RESPONSES or cached_bytes + len(entry.content) > MAX_CACHED_BYTES:
        cache.clear()
    cache[key] = entry


async def _respond(
    request: Request, key: Any, compute: Callable[[], Awaitable[rest.ApiRecord]]
) -> Response:
    """Return a response with a record, which is computed and serialized once for many readers."""
    cache: dict[Any, _CachedResponse] = request.app.state.responses
    sequence, started = get_service(request).require_writer().published.sequence, time.monotonic()
    cached = cache.get(key)
    if cached is None or not cached.is_fresh(sequence, started):
        content = (await compute()).model_dump_json().encode()
        ended = time.monotonic()
        may_refresh = ended + REFRESH_FACTOR * (ended - started)
        cached = _CachedResponse(content, sequence, ended + CACHE_SECONDS, may_refresh)
        _cache_response(cache, key, cached)
    return Response(cached.content, media_type="application/json")


@router.get("/timeline", response_model=rest.Timeline, responses=problems(404, 409))
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
    """Return past, running and promised placements; a tenant sees only names of its own jobs.

    Times are in slots since the start of slot 0 (`origin`).
    """
    if observed:
        require_observe_mode(service)
    writer = service.require_writer()
    if server is not None and server not in writer.published.servers.cluster.index:
        raise ProblemError("not-found", f"unknown server {quote_for_display(server)}")
    if job is not None:
        job = (await find_job(service, caller, job)).key

    async def compute() -> rest.Timeline:
        published, now = writer.published, writer.clock.now()
        plans = await writer.query_standing(timelines.planned_bars, future_slots)
        return await service.read(
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
                observed=observed,
            )
        )

    key = ("timeline", past_slots, future_slots, server, job, caller.scope, observed)
    return await _respond(request, key, compute)


MAX_LOOKBACK_DAYS: Final = 3_660.0


@comparison_router.get("", response_model=rest.Comparison, responses=problems(409))
async def comparison(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    days: Annotated[
        float, Query(gt=0, le=MAX_LOOKBACK_DAYS, description="how far to look back")
    ] = 7.0,
) -> Response:
    """Compare what would have been decided with what really happened, over the last days.

    Only jobs that were submitted in that time and not withdrawn count. For a tenant, only its own
    jobs count, but the used share (`utilization`) is that of all jobs.
    """
    require_observe_mode(service)
    writer = service.require_writer()

    async def compute() -> rest.Comparison:
        published, now = writer.published, writer.clock.now()
        plans = await writer.query_standing(timelines.planned_bars, 1)
        return await service.read(
            comparisons.comparison, published, plans, now=now, days=days, scope=caller.scope
        )

    return await _respond(request, ("comparison", days, caller.scope), compute)


@comparison_router.get("/jobs", responses=problems(409))
async def compared_jobs(
    service: ServiceDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 100
) -> rest.ComparedJobPage:
    """List submitted jobs with their simulated and observed results, newest first."""
    require_observe_mode(service)
    published = service.require_writer().published
    page = await service.read(
        comparisons.compare_jobs, published, before=cursor, tenant=caller.scope, limit=limit
    )
    following = page[-1].view.id if len(page) == limit else None
    return rest.ComparedJobPage(jobs=[pair.to_resource() for pair in page], next=following)


# ------------------------------------------------------------------ decisions and events


@router.get("/decisions", responses=problems(403))
async def decisions(
    service: ServiceDep,
    caller: CallerDep,
    job: Annotated[str | None, Query(description="one job only")] = None,
    tenant: Annotated[str | None, Query(description="one tenant only")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> rest.DecisionPage:
    """List the policy's decisions, newest first."""
    tenant = requested_tenant(caller, tenant)
    key = None
    if job is not None:
        try:
            key = (await find_job(service, caller, job, tenant)).key
        except ProblemError as error:
            if error.code != "not-found":
                raise
            return rest.DecisionPage(decisions=[], next=None)  # an unknown job has no decisions
    page = await service.read(
        store_queries.list_events,
        before=cursor,
        job=key,
        tenant=tenant,
        decisions=True,
        limit=limit,
    )
    return rest.DecisionPage(decisions=page, next=page[-1].id if len(page) == limit else None)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "a stream of server-sent events; the data of each is a StoredEvent",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
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
    broadcaster = service.require_writer().broadcaster
    broadcaster.check_limits(caller.scope)

    def is_allowed() -> bool:
        return service.tokens.is_valid(caller, service.require_writer().clock.now())

    return StreamingResponse(
        broadcaster.follow(caller.scope, after, is_allowed),
        headers={"X-Accel-Buffering": "no"},
        media_type="text/event-stream",
    )


# ------------------------------------------------------------------ what-if runs


@router.post("/whatif", status_code=202, responses=problems(409))
async def start_whatif(
    service: ServiceDep,
    _: OperatorDep,
    parameters: Annotated[WhatIfParameters, Depends(JsonBody(WhatIfParameters))],
) -> rest.WhatIf:
    """Simulate the last days on other servers, or under another policy.

    The response comes at once. The run continues in the background; `GET /v1/whatif/{run}` returns
    its progress.
    """
    writer = service.require_writer()
    cluster, now = writer.published.servers.cluster, writer.clock.now()
    request = parse_request(parameters, cluster, service.choice, now)
    since = request.at - int(request.question.days * 86_400 * SECOND)
    jobs = await service.read(workload, since, request.at)
    return service.whatifs.start(request, cluster, jobs, service.choice, now).resource


@router.get("/whatif")
async def list_whatif(service: ServiceDep, _: OperatorDep) -> rest.WhatIfList:
    """List what-if runs since the service started, newest first."""
    return rest.WhatIfList(runs=[run.resource for run in service.whatifs.all()])


@router.get("/whatif/{run}", responses=problems(404))
async def get_whatif(run: int, service: ServiceDep, _: OperatorDep) -> rest.WhatIf:
    """Return the progress and the result of a what-if run."""
    return service.whatifs.get(run).resource


@router.delete("/whatif/{run}", responses=problems(404))
async def cancel_whatif(run: int, service: ServiceDep, _: OperatorDep) -> rest.WhatIf:
    """Cancel a what-if run."""
    whatif = service.whatifs.get(run)
    await service.whatifs.cancel(whatif)
    return whatif.resource
