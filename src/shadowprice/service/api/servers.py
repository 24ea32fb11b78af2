"""Routes of servers."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends
from pydantic import field_validator

from shadowprice import rest
from shadowprice.core import bounds
from shadowprice.core.amounts import (
    EXAMPLE_AMOUNTS,
    UNLIMITED,
    Amount,
    Dimension,
    format_amount,
)
from shadowprice.core.cluster import Cluster as EngineCluster
from shadowprice.core.cluster import Role
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import ServerState
from shadowprice.core.job_keys import name_of_key
from shadowprice.core.specs.cluster import ServerSpec, some_capacity, total_faults
from shadowprice.core.specs.fields import (
    AmountsField,
    NonNegative,
    StrictSpec,
    max_value,
    to_integer_amounts,
)
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.service.api.requests import (
    CallerDep,
    JsonBody,
    OperatorDep,
    ServiceDep,
    api_router,
    problems,
)
from shadowprice.service.clock import to_datetime
from shadowprice.service.problems import ProblemError
from shadowprice.service.service import Service
from shadowprice.service.state import operations
from shadowprice.service.state.prices import build_server_classes

router = api_router("/v1", "servers")


class ServerChange(StrictSpec):
    """Changes of a server; absent keys stay unchanged."""

    drain: bool | None = None
    cordon: bool | None = None
    capacity: AmountsField | None = None
    role: Literal["worker", "ps", "any"] | None = None
    cost: Annotated[NonNegative, max_value(bounds.NUMBER)] | None = None

    _some_capacity = field_validator("capacity")(some_capacity)


def _amounts(cluster: EngineCluster, row: int) -> dict[str, str]:
    return {
        name: "unlimited" if amount >= UNLIMITED else format_amount(amount, dimension)
        for name, amount, dimension in zip(
            cluster.resources, cluster.capacity[row].tolist(), cluster.dimensions, strict=True
        )
        if amount
    }


def _servers(service: Service, scope: str | None = None) -> list[rest.Server]:
    """Return all servers; if ``scope`` names a tenant, without names of other tenants' jobs."""
    published = service.require_writer().published
    servers = published.servers
    cluster = servers.cluster
    kinds = build_server_classes(cluster)
    kind_of = {row: name for name, rows in kinds.items() for row in rows.tolist()}
    jobs: dict[str, list[rest.ServerJob]] = {}
    for name, command in published.desired.items():
        view = published.jobs.get(name)
        visible = scope is None or (view is not None and view.tenant == scope)
        placement = command.placement
        entries = zip(command.servers, placement.workers, placement.ps, strict=True)
        for server, workers, ps in entries:
            entry = rest.ServerJob(
                job=name_of_key(name) if visible else None,
                job_id=view.id if visible and view is not None else None,
                workers=workers,
                ps=ps,
            )
            jobs.setdefault(server, []).append(entry)
    return [
        rest.Server(
            name=name,
            kind=kind_of[row],
            role=cluster.roles[row].value,
            state="drained"
            if name in servers.drained
            else "cordoned"
            if name in servers.cordoned
            else "lost"
            if name in servers.unavailable
            else "up",
            capacity=_amounts(cluster, row),
            jobs=jobs.get(name, []),
        )
        for row, name in enumerate(cluster.names)
    ]


@router.get("/servers")
async def list_servers(service: ServiceDep, caller: CallerDep) -> rest.Cluster:
    """List servers with their jobs; a tenant sees only the names of its own jobs."""
    servers = service.require_writer().published.servers
    next_slot = servers.next_slot_at(service.require_writer().clock.now())
    return rest.Cluster(
        servers=_servers(service, caller.scope),
        slot=rest.ServerSlot(
            seconds=float(servers.cluster.slot_seconds),
            horizon=servers.cluster.horizon,
            running=servers.slot_running,
            next_slot=next_slot,
            next_slot_begins=to_datetime(servers.calendar.begins(next_slot)),
        ),
    )


@router.post("/servers", status_code=201, responses=problems(409))
async def add_servers(
    service: ServiceDep, _: OperatorDep, spec: Annotated[ServerSpec, Depends(JsonBody(ServerSpec))]
) -> rest.ServerList:
    """Add a server, or `count` equal ones, as in a cluster file."""
    amounts = _checked_capacity(spec.capacity, service.require_writer().published.servers.cluster)
    state = ServerState(Role(spec.role), amounts, cost=spec.cost)
    await service.require_writer().do(operations.add_servers(dict.fromkeys(spec.names(), state)))
    names = set(spec.names())
    return rest.ServerList(servers=[server for server in _servers(service) if server.name in names])


def checked_amounts(
    capacity: dict[str, Amount], cluster: EngineCluster, location: str
) -> dict[str, int]:
    """Return amounts as integers; raise `InputError` for unknown resources or wrong units."""
    faults = []
    for name, amount in capacity.items():
        if name not in cluster.column:
            hint = hint_for_unknown(name, cluster.resources)
            message = "no server has this resource"
            faults.append(Fault(f"{location}.{quote_for_display(name)}", message, hint))
        elif amount.value and amount.dimension is not cluster.dimensions[cluster.column[name]]:
            dimension: Dimension = cluster.dimensions[cluster.column[name]]
            hint = f"write it like {EXAMPLE_AMOUNTS[dimension]}"
            faults.append(Fault(f"{location}.{name}", "is in another unit", hint))
    if faults:
        raise InputError(faults)
    return to_integer_amounts(capacity)


def _checked_capacity(capacity: dict[str, Amount], cluster: EngineCluster) -> dict[str, int]:
    faults = total_faults("body.capacity", capacity)
    if faults:
        raise InputError(faults)
    return checked_amounts(capacity, cluster, "body.capacity")


@router.patch("/servers/{name:name}", responses=problems(404, 409))
async def change_server(
    name: str,
    service: ServiceDep,
    _: OperatorDep,
    change: Annotated[ServerChange, Depends(JsonBody(ServerChange))],
) -> rest.Server:
    """Drain or cordon a server, return it to service, or change its capacity, role or cost.

    Jobs leave a drained server (`{"drain": true}`) at the end of their slot. They stay on a
    cordoned server (`{"cordon": true}`) until they end. Neither takes new work. `{"drain": false}`
    and `{"cordon": false}` return a server to service.
    """
    if not change.model_fields_set:
        raise InputError(Fault("body", "contains no change", 'write {"drain": true}'))
    if change.drain and change.cordon:
        raise InputError(Fault("body", "drain and cordon exclude each other", "give one of them"))
    availability: operations.Availability | None = None
    if change.drain is not None or change.cordon is not None:
        availability = "drained" if change.drain else "cordoned" if change.cordon else "up"
    capacity = None
    if change.capacity is not None:
        cluster = service.require_writer().published.servers.cluster
        capacity = _checked_capacity(change.capacity, cluster)
    role = None if change.role is None else Role(change.role)
    await service.require_writer().do(
        operations.change_server(name, availability, capacity, role, change.cost)
    )
    for server in _servers(service):
        if server.name == name:
            return server
    raise ProblemError("not-found", f"the server {quote_for_display(name)} was removed meanwhile")


@router.delete("/servers/{name:name}", status_code=204, responses=problems(404, 409))
async def remove_server(name: str, service: ServiceDep, _: OperatorDep) -> None:
    """Remove a server; jobs there are stopped and replanned."""
    await service.require_writer().do(operations.remove_server(name))
