"""Routes of a service that only observes: what it would have done beside what really happened."""

from __future__ import annotations

import time
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import shown
from shadowprice.service.api.documents import comparing as documents
from shadowprice.service.api.requests import (
    Anyone,
    Asked,
    answer,
    check_observes,
    known_query,
    limit_of,
    whole_of,
)
from shadowprice.service.queries import comparison as comparisons
from shadowprice.service.queries import timeline as timelines

router = APIRouter(prefix="/v1/comparison", tags=["comparing"])

FRESH: Final = 2.0
"""Seconds that a comparison is told again as it was."""

LONGEST: Final = 3_660.0
"""Days looked back at, at most."""


def days_of(request: Request) -> float:
    """Return how many days of a query to look back at.

    Raises
    ------
    InputError
        If that is no number of days.
    """
    text = request.query_params.get("days", "7")
    try:
        days = float(text) if len(text) <= 20 and text.isascii() else 0.0
    except ValueError:
        days = 0.0
    if not 0 < days <= LONGEST:
        raise InputError(Fault("?days", f"{shown(text)} is no number of days", "write 7"))
    return days


@router.get("", **documents.COMPARISON)
async def comparison(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Compare what would have been decided with what really happened, over the last days.

    Jobs count that were submitted in that time, and were not withdrawn; a tenant is told of its
    own. Slots of `use` are of all jobs.
    """
    known_query(request, ("days",))
    days = days_of(request)
    check_observes(service)
    driver = service.writing
    cache: dict[Any, tuple[float, dict[str, Any]]] = request.app.state.__dict__.setdefault(
        "comparisons", {}
    )
    key = (days, caller.scope)
    known = cache.get(key)
    if known is None or time.monotonic() >= known[0]:
        published, now = driver.published, driver.clock.now()
        last = published.servers.coming + 1
        plans = await driver.ask(lambda truth: timelines.planned(truth, last))
        found = await service.read(
            lambda connection: comparisons.comparison(
                connection, published, plans, now=now, days=days, scope=caller.scope
            )
        )
        if len(cache) >= 64:
            cache.clear()
        known = cache[key] = (time.monotonic() + FRESH, found)
    return answer(known[1])


@router.get("/jobs", **documents.COMPARED_JOBS)
async def jobs(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """List submitted jobs with both of their histories, the newest first."""
    known_query(request, ("cursor", "limit"))
    limit, cursor = limit_of(request), whole_of(request, "cursor", None)
    check_observes(service)
    published = service.writing.published
    found = await service.read(
        lambda connection: comparisons.pairs(
            connection, published, before=cursor, tenant=caller.scope, limit=limit
        )
    )
    following = found[-1].view.id if len(found) == limit else None
    return answer({"jobs": [one.record() for one in found], "next": following})
