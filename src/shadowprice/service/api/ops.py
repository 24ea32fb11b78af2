"""Routes for operating the service: health, readiness, metrics, timespan, status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.responses import PlainTextResponse

import shadowprice
from shadowprice import rest
from shadowprice.core.job_keys import name_of_key
from shadowprice.core.moments import parse_moment_ahead
from shadowprice.core.specs.fields import StrictSpec
from shadowprice.core.wording import escape_controls
from shadowprice.policies.registry import policy_names
from shadowprice.service.api.jobs import describe_obstacle
from shadowprice.service.api.requests import (
    CallerDep,
    JsonBody,
    OperatorDep,
    ServiceDep,
    api_router,
    get_service,
    problems,
)
from shadowprice.service.auth import Caller
from shadowprice.service.clock import SECOND, to_datetime
from shadowprice.service.service import Service
from shadowprice.service.settings import NO_EXECUTOR
from shadowprice.service.state.prices import build_server_classes
from shadowprice.service.state.start_ups import CODE as SLOT_TOO_SHORT
from shadowprice.service.state.timespan import set_timespan_end
from shadowprice.uploads.archive import MAX_ENTRIES
from shadowprice.uploads.host import host_identity

router = api_router("", "operations")

# Codes of warnings:
OBSTRUCTED: Final = "generation-obstructed"
NOT_FOLLOWED: Final = "trainingjobs-not-followed"

probes = APIRouter(tags=["operations"])  # a router of its own, because probes may add any query


@probes.get("/healthz")
async def healthz() -> rest.Health:
    """Return `ok`: the process responds."""
    return rest.Health(status="ok")


@probes.get("/readyz", responses={503: {"model": rest.Health}})
async def readyz(
    request: Request,
    response: Response,
    standby: Annotated[str, Query(description="`ready`: a standby instance is ready")] = "",
) -> rest.Health:
    """Return whether the service can do its work; 503 for a standby, or if it can't write.

    `degraded`, with 200, means that some generations can't be started or ended, or that
    TrainingJobs aren't followed; `/v1/service` says why. With `?standby=ready`, a standby is ready
    too, because it can take over.
    """
    service = get_service(request)
    if service.ready() is None:
        # Still ready, because a tenant may cause obstacles, and others need the service.
        degraded = service.trainingjobs_error is not None or service.obstacles()
        return rest.Health(status="degraded" if degraded else "ready")
    # Without the reason, because probes need no token.
    if service.writer is not None or standby != "ready":
        response.status_code = 503
    return rest.Health(status="standby" if service.writer is None else "not ready")


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: ServiceDep, _: OperatorDep) -> Response:
    """Return metrics in Prometheus' text format."""
    writer = service.require_writer()
    servers = writer.published.servers
    service.metrics.timespan_end.set((servers.ends_at or 0) / SECOND)
    service.metrics.timespan_ended.set(servers.has_ended(writer.clock.now()))
    service.metrics.event_subscribers.set(writer.broadcaster.subscribers)
    service.metrics.start_up.set(servers.start_ups.median or 0.0)
    service.metrics.warnings.labels(SLOT_TOO_SHORT).set(servers.start_ups.too_long)
    service.metrics.warnings.labels(OBSTRUCTED).set(bool(service.obstacles()))
    service.metrics.warnings.labels(NOT_FOLLOWED).set(service.trainingjobs_error is not None)
    text = service.metrics.scrape(writer.published.accounts.values(), writer.published.prices)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


class TimespanChange(StrictSpec):
    """The end of the timespan; null removes it."""

    until: str | None = Field(
        description="a span from now (6h, 20 slots), the next clock time (18:00), or a date with "
        "or without a time; null removes the end",
        examples=["18:00"],
    )


@router.get("/v1/timespan")
async def timespan(service: ServiceDep, _: CallerDep) -> rest.Timespan:
    """Return the end of the timespan, after which nothing runs or is planned."""
    writer = service.require_writer()
    return writer.published.servers.timespan(writer.clock.now())


@router.put("/v1/timespan", responses=problems(409))
async def change_timespan(
    service: ServiceDep,
    _: OperatorDep,
    change: Annotated[TimespanChange, Depends(JsonBody(TimespanChange))],
) -> rest.Timespan:
    """Set, move or remove (`null`) the end of the timespan."""
    writer, at = service.require_writer(), None
    if change.until is not None:
        slot_seconds = writer.published.servers.cluster.slot_seconds
        at = parse_moment_ahead(change.until, writer.clock.now(), slot_seconds, "body.until")
    await writer.do(set_timespan_end(at))
    return writer.published.servers.timespan(writer.clock.now())


def _warnings(service: Service, caller: Caller) -> Iterator[dict[str, Any]]:
    """Yield warnings about what the service can't do now; a tenant's are about its own jobs."""
    if service.trainingjobs_error is not None and caller.is_operator:
        message = f"TrainingJobs are not watched: {service.trainingjobs_error}"
        yield {"code": NOT_FOLLOWED, "message": escape_controls(message)}
    published = service.require_writer().published
    for obstacle in service.obstacles():
        view = published.cached_job(obstacle.job)
        if not (caller.is_operator or (view is not None and view.tenant == caller.tenant)):
            continue
        job = name_of_key(obstacle.job)
        yield {
            "code": OBSTRUCTED,
            "message": describe_obstacle(obstacle),
            "job": job,
            "job_id": None if view is None else view.id,
            "generation": obstacle.generation,
            "servers": list(obstacle.servers),
        }


def _host(service: Service) -> str | None:
    """Return the identity of the machine that runs the jobs; None if several or unknown."""
    if service.execution is None or service.execution.executor.capabilities.several_machines:
        return None
    return (host_identity() or None) if service.settings.executor == "local" else None


@router.get("/v1/service")
async def service_status(service: ServiceDep, caller: CallerDep) -> rest.ServiceStatus:
    """Return the service's configuration, its current slot and the number of jobs by state."""
    writer, uploads = service.require_writer(), service.upload_store
    servers = writer.published.servers
    next_slot = servers.next_slot_at(writer.clock.now())
    states = Counter(
        view.state.value
        for view in writer.published.jobs.values()
        if caller.scope is None or view.tenant == caller.scope
    )
    return rest.ServiceStatus(
        version=shadowprice.__version__,
        policy=writer.policy,
        policies=sorted({*policy_names(), writer.policy}),
        executor=None if service.settings.executor == NO_EXECUTOR else service.settings.executor,
        host=_host(service),
        uploads=None
        if uploads is None
        else rest.UploadLimits(max_bytes=uploads.max_bytes, max_entries=MAX_ENTRIES),
        observes=service.settings.observe,
        now=to_datetime(writer.clock.now()),
        slot_seconds=float(servers.cluster.slot_seconds),
        horizon=servers.cluster.horizon,
        slot=servers.slot_running,
        next_slot=next_slot,
        next_slot_begins=to_datetime(servers.calendar.begins(next_slot)),
        origin=to_datetime(servers.calendar.origin),
        timespan=servers.timespan(writer.clock.now()),
        start_up_seconds=servers.start_ups.median,
        warnings=[
            rest.ServiceWarning.model_validate(warning)
            for warning in (*servers.warnings, *_warnings(service, caller))
        ],
        pending=servers.backlog,
        jobs=states,
        families=sorted(service.families),
        kinds=list(build_server_classes(servers.cluster)),
        sequence=writer.published.sequence,
        last_event=writer.broadcaster.last,
        caller=rest.TokenOwner(role=caller.role, tenant=caller.tenant),
        health_error=service.ready() if caller.is_operator else None,
        data=service.store.shown if caller.is_operator else None,
    )
