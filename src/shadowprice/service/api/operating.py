"""Routes for those who keep the service running: health, readiness, metrics, itself."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

import shadowprice
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.moments import parse_moment_ahead
from shadowprice.policies.registry import policy_names
from shadowprice.service.api.documents import operating as documents
from shadowprice.service.api.requests import (
    Anyone,
    Asked,
    Operator,
    answer,
    body_of,
    known_query,
    object_of,
    service_of,
)
from shadowprice.service.clock import SECOND, stamp
from shadowprice.service.settings import NOTHING
from shadowprice.service.truth.prices import kinds_of, prices
from shadowprice.service.truth.start_ups import CODE as SLOT_TOO_SHORT
from shadowprice.service.truth.timespan import ChangeTimespan
from shadowprice.service.truth.truth import Truth

router = APIRouter(tags=["operating"])


@router.get("/healthz", **documents.HEALTH)
async def healthz() -> JSONResponse:
    """Say that the process answers."""
    return answer({"status": "ok"})


@router.get("/readyz", **documents.READY)
async def readyz(request: Request) -> JSONResponse:
    """Say whether the service can do its work; 503 while it stands by or cannot write.

    With `?standby=ready` one that stands by is ready, as a replica is that can take over.
    """
    why = service_of(request).ready()
    if why is None:
        return answer({"status": "ready"})
    # Nobody has shown a token: what exactly is wrong is the operator's business.
    standby = service_of(request).driver is None
    if standby and request.query_params.get("standby") == "ready":
        return answer({"status": "standby"})
    return answer({"status": "standby" if standby else "not ready"}, 503)


@router.get("/metrics", **documents.METRICS)
async def metrics(request: Request, service: Asked, caller: Operator) -> Response:
    """Return measures as Prometheus reads them; needs an operator's token."""
    del caller
    known_query(request, ())
    driver = service.writing
    prices_now = await driver.ask(_prices)
    servers = driver.published.servers
    service.metrics.timespan_end.set((servers.ends_at or 0) / SECOND)
    service.metrics.timespan_ended.set(servers.has_ended(driver.clock.now()))
    service.metrics.start_up.set(servers.start_ups.median or 0.0)
    service.metrics.warnings.labels(SLOT_TOO_SHORT).set(servers.start_ups.too_long)
    text = service.metrics.scrape(
        driver.published.jobs.values(), driver.published.accounts.values(), prices_now
    )
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _prices(truth: Truth) -> dict[tuple[str, str], float]:
    [slot] = prices(truth, 1)["slots"]
    return {
        (kind, resource): share["price"]
        for kind, resources in slot["kinds"].items()
        for resource, share in resources.items()
        if "price" in share
    }


@router.get("/v1/service", **documents.SERVICE)
async def service(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Tell what this service is: versions, policy, slots, state of its parts."""
    known_query(request, ())
    driver = service.writing
    servers = driver.published.servers
    states: dict[str, int] = {}
    for view in driver.published.jobs.values():
        if caller.scope is None or view.tenant == caller.scope:
            states[view.state.value] = states.get(view.state.value, 0) + 1
    told = {
        "version": shadowprice.__version__,
        "policy": driver.policy,
        "policies": sorted({*policy_names(), driver.policy}),
        "executor": None if service.settings.executor == NOTHING else service.settings.executor,
        "observes": service.settings.observe,
        "now": stamp(driver.clock.now()),
        "slot_seconds": float(servers.cluster.slot_seconds),
        "horizon": servers.cluster.horizon,
        "slot": servers.slot_running,
        "coming": servers.coming,
        "coming_begins": stamp(servers.calendar.begins(servers.coming)),
        "origin": stamp(servers.calendar.origin),
        "start_up_seconds": servers.start_ups.median,
        "warnings": servers.warnings,
        "timespan": servers.timespan(driver.clock.now()),
        "pending": servers.backlog,
        "jobs": states,
        "families": sorted(service.families),
        "kinds": list(kinds_of(servers.cluster).names),
        "sequence": driver.published.sequence,
        "last_event": driver.hub.last,
        "caller": {"role": caller.role.value, "tenant": caller.tenant},
    }
    if caller.operates:
        told["trouble"] = service.ready()
        told["data"] = service.store.shown
    return answer(told)


@router.get("/v1/timespan", **documents.TIMESPAN)
async def timespan(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """Return the end of the timespan: from then on nothing runs, and no plan reaches past it."""
    del caller
    known_query(request, ())
    driver = service.writing
    return answer(driver.published.servers.timespan(driver.clock.now()))


@router.put("/v1/timespan", **documents.CHANGE_TIMESPAN)
async def change_timespan(request: Request, service: Asked, caller: Operator) -> JSONResponse:
    """Set, move or remove (`null`) the end of the timespan."""
    del caller
    known_query(request, ())
    body = object_of(await body_of(request), ("until",))
    if "until" not in body:
        raise InputError(Fault("body.until", "is missing", 'write {"until": "18:00"}, or null'))
    until, driver = body["until"], service.writing
    if until is not None and not isinstance(until, str):
        raise InputError(Fault("body.until", "is neither text nor null", 'write "18:00"'))
    at = None
    if until is not None:
        slot_seconds = driver.published.servers.cluster.slot_seconds
        at = parse_moment_ahead(until, driver.clock.now(), slot_seconds, "body.until")
    await driver.do(ChangeTimespan(at))
    return answer(driver.published.servers.timespan(driver.clock.now()))
