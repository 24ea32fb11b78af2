"""The OpenAPI document: FastAPI's, with request bodies and problem details of every route.

FastAPI describes parameters and responses from the handlers' signatures. Bodies come from
`JsonBody`, and the problems of a route follow from its dependencies; a route declares only the
problems of its own, as ``responses=problems(404)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from shadowprice import rest
from shadowprice.service.api.requests import REFERENCE, JsonBody, authenticate_operator, check_query
from shadowprice.service.problems import MEDIA_TYPE

_BODY_PROBLEMS: Final = (400, 413, 415)
_TOKEN_PROBLEMS: Final = (401, 429, 500, 503)
"""Problems of every route that needs a token: no valid token, too many requests, an unexpected
error, and an instance or a store that can't answer now."""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return ``responses`` of a route that answers with these problems."""
    return {status: _problem(status) for status in statuses}


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{rest.Problem.__name__}"}
    return {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}


def document(app: FastAPI, routers: Sequence[APIRouter]) -> dict[str, Any]:
    """Return the OpenAPI document of an application with these routers."""
    result = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
    )
    schemas = result["components"]["schemas"]
    # FastAPI's own error model, which no route answers with.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = rest.Problem.model_json_schema(ref_template=REFERENCE)
    schemas |= problem.pop("$defs") | {rest.Problem.__name__: problem}
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute):
            for method in route.methods or ():
                _complete(result["paths"][route.path_format][method.lower()], route, schemas)
    return result


def _complete(operation: dict[str, Any], route: APIRoute, schemas: dict[str, Any]) -> None:
    statuses: set[int] = set()
    for call in _calls(route.dependant):
        if call is check_query:
            statuses.add(422)
        elif isinstance(call, HTTPBearer):
            statuses.update(_TOKEN_PROBLEMS)
        elif call is authenticate_operator:
            statuses.add(403)
        elif isinstance(call, JsonBody):
            statuses |= {*_BODY_PROBLEMS, 422}
            schema = call.schema()
            for name, definition in schema.pop("$defs", {}).items():
                schemas.setdefault(name, definition)
            content = {"application/json": {"schema": schema}}
            operation["requestBody"] = {"required": True, "content": content}
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's, in another form
    for status in sorted(statuses):
        responses.setdefault(str(status), _problem(status))


def _calls(dependant: Dependant) -> Iterator[Any]:
    for dependency in dependant.dependencies:
        yield dependency.call
        yield from _calls(dependency)
