"""Routes of an observing service: its decisions beside what really ran."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from fastapi import Query, Request

from shadowprice.rest.comparison import ComparedJobPage, Comparison
from shadowprice.service.api.openapi import problems
from shadowprice.service.api.requests import (
    CallerDep,
    Cursor,
    Limit,
    ServiceDep,
    api_router,
    require_observe_mode,
)
from shadowprice.service.queries import comparison as comparisons
from shadowprice.service.queries import timeline as timelines

router = api_router("/v1/comparison", "comparison")

COMPARISON_CACHE_SECONDS: Final = 2.0
MAX_CACHED_COMPARISONS: Final = 64
MAX_LOOKBACK_DAYS: Final = 3_660.0


@router.get("", responses=problems(409))
async def comparison(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    days: Annotated[
        float, Query(gt=0, le=MAX_LOOKBACK_DAYS, description="how far to look back")
    ] = 7.0,
) -> Comparison:
    """Compare what would have been decided with what really happened, over the last days.

    Counts jobs that were submitted in that time and not withdrawn; a tenant's own only. The used
    share (`utilization`) is that of all jobs.
    """
    require_observe_mode(service)
    writer = service.writing
    cache: dict[Any, tuple[float, Comparison]] = request.app.state.__dict__.setdefault(
        "comparisons", {}
    )
    key = (days, caller.scope)
    cached = cache.get(key)
    if cached is None or time.monotonic() >= cached[0]:
        published, now = writer.published, writer.clock.now()
        plans = await writer.query_standing(timelines.planned_bars, 1)
        result = await service.read(
            lambda connection: comparisons.comparison(
                connection, published, plans, now=now, days=days, scope=caller.scope
            )
        )
        if len(cache) >= MAX_CACHED_COMPARISONS:
            cache.clear()
        cached = cache[key] = (time.monotonic() + COMPARISON_CACHE_SECONDS, result)
    return cached[1]


@router.get("/jobs", responses=problems(409))
async def compared_jobs(
    service: ServiceDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 100
) -> ComparedJobPage:
    """List submitted jobs with both of their histories, newest first."""
    require_observe_mode(service)
    published = service.writing.published
    page = await service.read(
        lambda connection: comparisons.compare_jobs(
            connection, published, before=cursor, tenant=caller.scope, limit=limit
        )
    )
    following = page[-1].view.id if len(page) == limit else None
    return ComparedJobPage(jobs=[pair.to_resource() for pair in page], next=following)
