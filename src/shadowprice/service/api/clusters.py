"""Routes of servers and tokens."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from shadowprice.core.amounts import UNLIMITED, Dimension, format_amount, parse_span
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import ServerState
from shadowprice.core.specs import validate
from shadowprice.core.specs.cluster import ServerSpec
from shadowprice.core.specs.fields import plain
from shadowprice.core.wording import closest, shown
from shadowprice.service.api.documents import clusters as documents
from shadowprice.service.api.requests import (
    Anyone,
    Asked,
    Operator,
    answer,
    body_of,
    known_query,
    object_of,
)
from shadowprice.service.auth import (
    CreateToken,
    RevokeToken,
    new_token,
    token_record,
    valid_first,
)
from shadowprice.service.auth import Role as TokenRole
from shadowprice.service.clock import SECOND, stamp
from shadowprice.service.problems import ProblemError
from shadowprice.service.service import Service
from shadowprice.service.truth.operations import ChangeServers
from shadowprice.service.truth.submission import not_addressed

router = APIRouter(prefix="/v1")

LONGEST: Final = 10 * 365 * 86_400
"""Seconds that a token is valid, at most."""

# ------------------------------------------------------------------ servers


def _amounts(cluster: Cluster, row: int) -> dict[str, str]:
    return {
        name: "unlimited" if amount >= UNLIMITED else format_amount(amount, dimension)
        for name, amount, dimension in zip(
            cluster.resources, cluster.capacity[row].tolist(), cluster.dimensions, strict=True
        )
        if amount
    }


def _servers(service: Service) -> list[dict[str, Any]]:
    """Return all servers, with what runs on them."""
    published = service.writing.published
    servers = published.servers
    cluster = servers.cluster
    jobs: dict[str, list[dict[str, Any]]] = {}
    for name, order in published.running.items():
        placement = order.placement
        entries = zip(order.servers, placement.workers, placement.ps, strict=True)
        for server, workers, ps in entries:
            jobs.setdefault(server, []).append({"job": name, "workers": workers, "ps": ps})
    return [
        {
            "name": name,
            "role": cluster.roles[row].value,
            "state": "drained"
            if name in servers.drained
            else "lost"
            if name in servers.lost
            else "up",
            "capacity": _amounts(cluster, row),
            "jobs": jobs.get(name, []),
        }
        for row, name in enumerate(cluster.names)
    ]


@router.get("/servers", tags=["servers"], **documents.LIST_SERVERS)
async def list_servers(request: Request, service: Asked, caller: Anyone) -> JSONResponse:
    """List servers with what runs on them; tenants see names of their own jobs only."""
    known_query(request, ())
    found = _servers(service)
    if caller.scope is not None:
        jobs = service.writing.published.jobs
        for server in found:
            for entry in server["jobs"]:
                view = jobs.get(entry["job"])
                if view is None or view.tenant != caller.scope:
                    entry["job"] = None
    servers = service.writing.published.servers
    calendar = servers.calendar
    running = servers.slot_running
    return answer(
        {
            "servers": found,
            "slot": {
                "seconds": float(servers.cluster.slot_seconds),
                "horizon": servers.cluster.horizon,
                "running": running,
                "coming": servers.coming,
                "coming_begins": stamp(calendar.begins(servers.coming)),
            },
        }
    )


@router.post("/servers", status_code=201, tags=["servers"], **documents.ADD_SERVERS)
async def add_servers(request: Request, service: Asked, caller: Operator) -> JSONResponse:
    """Add a server, or `count` equal ones, as in a cluster file."""
    del caller
    known_query(request, ())
    spec, faults = validate(ServerSpec, await body_of(request), "server")
    if spec is None:
        raise InputError(faults)
    cluster = service.writing.published.servers.cluster
    taken = [name for name in spec.names() if name in cluster.index]
    if taken:
        raise ProblemError("conflict", f"there is a server {shown(taken[0])} already")
    state = ServerState(Role(spec.role), checked_amounts(spec.capacity, cluster), cost=spec.cost)
    await service.writing.do(ChangeServers(dict.fromkeys(spec.names(), state), "added"))
    return answer({"servers": _named(service, spec.names())}, 201)


def checked_amounts(capacity: Any, cluster: Cluster) -> dict[str, int]:
    """Return amounts that a cluster counts as they are given."""
    faults = []
    for name, amount in capacity.items():
        if name not in cluster.column:
            close = closest(name, cluster.resources)
            mend = f"did you mean {close!r}?" if close else f"known: {', '.join(cluster.resources)}"
            faults.append(Fault(f"server.capacity.{shown(name)}", "no server has that", mend))
        elif amount.value and amount.dimension is not cluster.dimensions[cluster.column[name]]:
            wanted: Dimension = cluster.dimensions[cluster.column[name]]
            mend = f"write it like {format_amount(8 * 10**9, wanted)}"
            faults.append(Fault(f"server.capacity.{name}", "is in another unit", mend))
    if faults:
        raise InputError(faults)
    return plain(capacity)


def _named(service: Service, names: list[str]) -> list[dict[str, Any]]:
    wanted = set(names)
    return [server for server in _servers(service) if server["name"] in wanted]


def _row(cluster: Cluster, name: str) -> int:
    if name not in cluster.index:
        close = closest(name, cluster.names)
        hint = f"; did you mean {close!r}?" if close else ""
        raise ProblemError("not-found", f"there is no server {shown(name)}{hint}")
    return cluster.index[name]


@router.patch("/servers/{name:name}", tags=["servers"], **documents.CHANGE_SERVER)
async def change_server(
    name: str, request: Request, service: Asked, caller: Operator
) -> JSONResponse:
    """Drain a server (``{"drain": true}``), let it take work again, or change its capacity."""
    del caller
    known_query(request, ())
    body = object_of(await body_of(request), ("drain", "capacity", "role", "cost"))
    if not body:
        raise InputError(Fault("body", "changes nothing", 'write {"drain": true}'))
    servers = service.writing.published.servers
    cluster, row = servers.cluster, _row(servers.cluster, name)
    drain = body.get("drain", name in servers.drained)
    if not isinstance(drain, bool):
        raise InputError(Fault("body.drain", "is neither true nor false"))
    amounts = dict(zip(cluster.resources, cluster.capacity[row].tolist(), strict=True))
    role, cost = cluster.roles[row], None
    if {"capacity", "role", "cost"} & body.keys():
        limited = {
            resource: text
            for resource, text in _amounts(cluster, row).items()
            if text != "unlimited"
        }
        asked = {"name": name, "role": role.value, "capacity": limited}
        asked |= {key: value for key, value in body.items() if key != "drain"}
        spec, faults = validate(ServerSpec, asked, "server")
        if spec is None:
            raise InputError(faults)
        role, cost = Role(spec.role), spec.cost
        if "capacity" in body:
            amounts = checked_amounts(spec.capacity, cluster)
    what = "changed" if body.keys() - {"drain"} else "drained" if drain else "takes work"
    state = ServerState(role, amounts, drained=drain, cost=cost)
    await service.writing.do(ChangeServers({name: state}, what))
    return answer(_named(service, [name])[0])


@router.delete("/servers/{name:name}", status_code=204, tags=["servers"], **documents.REMOVE_SERVER)
async def remove_server(name: str, request: Request, service: Asked, caller: Operator) -> Response:
    """Remove a server; what runs there is stopped and planned anew."""
    del caller
    known_query(request, ())
    _row(service.writing.published.servers.cluster, name)
    await service.writing.do(ChangeServers({name: None}, "removed"))
    return Response(status_code=204)


# ------------------------------------------------------------------ tokens


@router.get("/tokens", tags=["tokens"], **documents.LIST_TOKENS)
async def list_tokens(request: Request, service: Asked, caller: Operator) -> JSONResponse:
    """List tokens, without what they are: those that are valid first, at most 1,000."""
    del caller
    known_query(request, ())
    query = valid_first(service.writing.clock.now()).limit(1_000)
    rows = await service.read(lambda connection: connection.execute(query).all())
    return answer({"tokens": [token_record(row) for row in rows]})


@router.post("/tokens", status_code=201, tags=["tokens"], **documents.CREATE_TOKEN)
async def create_token(request: Request, service: Asked, caller: Operator) -> JSONResponse:
    """Hand out a token; it is shown this once."""
    del caller
    known_query(request, ())
    body = object_of(await body_of(request), ("role", "tenant", "expires", "note"))
    role, tenant, note = body.get("role", "tenant"), body.get("tenant"), body.get("note", "")
    faults = []
    if role not in ("operator", "tenant"):  # a tuple: what was sent need not be hashable
        faults.append(Fault("body.role", "is neither operator nor tenant"))
    if isinstance(tenant, str) and 0 < len(tenant) <= 200:
        faults += not_addressed(tenant, "body.tenant")
    elif role == "tenant":
        faults.append(Fault("body.tenant", "is missing", "name the tenant"))
    if role == "operator" and tenant is not None:
        faults.append(Fault("body.tenant", "an operator's token is no tenant's", "leave it out"))
    if not isinstance(note, str) or len(note) > 200:
        faults.append(Fault("body.note", "is no text of at most 200 characters"))
    cluster = service.writing.published.servers.cluster
    if isinstance(tenant, str) and cluster.tenants and tenant not in cluster.tenant_index:
        close = closest(tenant, cluster.tenant_index)
        mend = f"did you mean {close!r}?" if close else "add it first: PUT /v1/tenants/NAME"
        faults.append(Fault("body.tenant", f"there is no tenant {shown(tenant)}", mend))
    if faults:
        raise InputError(faults)
    expires = None
    if body.get("expires") is not None:
        span = parse_span(body["expires"], "body.expires", "90d")
        if span > LONGEST:
            raise InputError(Fault("body.expires", "is longer than ten years", "write 90d"))
        expires = service.writing.clock.now() + int(span * SECOND)
    token = new_token()
    operation = CreateToken(token, TokenRole(role), tenant, note, expires)
    number = await service.writing.do(operation)
    service.tokens.made(number, operation)
    told = {"id": number, "token": token, "role": role, "tenant": tenant, "note": note}
    return answer({**told, "expires": None if expires is None else stamp(expires)}, 201)


@router.delete("/tokens/{number}", status_code=204, tags=["tokens"], **documents.REVOKE_TOKEN)
async def revoke_token(number: int, request: Request, service: Asked, caller: Operator) -> Response:
    """Take a token back, at once."""
    known_query(request, ())
    if number == caller.id:
        raise ProblemError("conflict", "a token does not revoke itself; use another operator's")
    if not 0 < number < 2**53:
        raise ProblemError("not-found", f"there is no valid token {number}")
    try:
        await service.writing.do(RevokeToken(number))
    except ProblemError as error:
        if error.code == "not-found":  # the answer that told of it may have been lost
            service.tokens.revoked(number)
        raise
    service.tokens.revoked(number)
    return Response(status_code=204)
