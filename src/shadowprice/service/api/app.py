"""The FastAPI application: routers, OpenAPI document, problem details, rules for every request.

FastAPI describes parameters and responses from the handlers' signatures. `_document` adds the
bodies (`JsonBody`) and the problems that follow from a route's dependencies. So a route declares
only its other problems, as ``responses=problems(404)``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import shadowprice
from shadowprice import rest
from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.specs.faults import issue_text
from shadowprice.core.wording import escape_controls
from shadowprice.service.api import jobs, monitoring, ops, servers, tenants, tokens, uploads
from shadowprice.service.api.requests import (
    REFERENCE,
    JsonBody,
    authenticate_operator,
    check_query,
    problem_response,
    problems,
    split_path,
)
from shadowprice.service.auth import verify_progress_token
from shadowprice.service.connections import max_connections
from shadowprice.service.dashboard import router as dashboard
from shadowprice.service.problems import ProblemError, problem_from_error
from shadowprice.service.service import Service
from shadowprice.service.turns import requester

log = logging.getLogger("shadowprice.service")

_CODES = {  # problem codes by HTTP status
    404: "not-found",
    405: "method-not-allowed",
    415: "unsupported-media-type",
    413: "too-large",
    401: "unauthenticated",
}


_ROUTERS = (
    *(module.router for module in (jobs, uploads, monitoring)),
    monitoring.comparison_router,
    *(module.router for module in (servers, tokens, tenants, ops)),
)


class Application(FastAPI):
    """The application of a service."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, generated at the first call."""
        if self.openapi_schema is None:
            self.openapi_schema = _document(self, (*_ROUTERS, ops.probes))
        return self.openapi_schema


def create_app(service: Service) -> FastAPI:
    """Return the application of a service."""
    app = Application(
        title="Shadowprice",
        version=shadowprice.__version__,
        summary="Submit a job, get a promise, watch it run.",
        description=(
            "Every route but `/healthz`, `/readyz`, this document and the dashboard's files needs "
            "a token: `Authorization: Bearer ...`. Errors are problem details (RFC 9457) with a "
            "`code`. Unknown fields and parameters are errors. Times are RFC 3339 in UTC."
        ),
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.responses = {}  # cache of `monitoring`
    for router in (*_ROUTERS, ops.probes, dashboard):
        app.include_router(router)
    app.add_exception_handler(ShadowpriceError, _error_response)
    app.add_exception_handler(MemoryError, _error_response)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(Exception, _error_response)
    app.add_middleware(RequestGuard, connections=max_connections())
    return app


# ------------------------------------------------------------------ OpenAPI document

_BODY_PROBLEMS: Final = (400, 413, 415)
_TOKEN_PROBLEMS: Final = (401, 429, 500, 503)
"""Problems of every route that needs a token.

They are: no valid token, too many requests, an unexpected error, and an instance or a store that
can't answer now.
"""


def _document(app: FastAPI, routers: Sequence[APIRouter]) -> dict[str, Any]:
    """Return the OpenAPI document of an application; ``routers`` are those to describe."""
    result = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
    )
    schemas = result["components"]["schemas"]
    # FastAPI's own error model, which no route uses.
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
    """Add the body and the problems that follow from a route's dependencies to an operation."""
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
    responses.pop("422", None)  # FastAPI's own, which isn't problem details
    for status in sorted(statuses):
        responses.setdefault(str(status), problems(status)[status])


def _calls(dependant: Dependant) -> Iterator[Any]:
    """Yield the functions of all dependencies, recursively."""
    for dependency in dependant.dependencies:
        yield dependency.call
        yield from _calls(dependency)


# ------------------------------------------------------------------ problems


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, MemoryError):
        log.error("out of memory in %s %s", request.method, escape_controls(request.url.path[:200]))
    return problem_response(problem_from_error(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "malformed")
    problem = ProblemError(code, str(error.detail), headers=error.headers)
    if code == "method-not-allowed":
        allowed = ", ".join(_methods(request))
        problem = ProblemError(code, f"allowed: {allowed}", headers={"Allow": allowed})
    if code == "not-found":
        problem = ProblemError(code, "unknown route; see /v1/openapi.json")
    return problem_response(problem)


def _methods(request: Request) -> list[str]:
    """Return the methods of all routes at a path; FastAPI's error has those of one route only."""
    allowed: set[str] = set()
    for template, methods in request.app.openapi()["paths"].items():
        pattern = re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, request.url.path):
            allowed |= {method.upper() for method in methods}
    return sorted(allowed or {"GET"})  # the dashboard's files are not in the document


async def _invalid_parameters(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_response(
        problem_from_error(InputError([_fault(issue) for issue in error.errors()[:50]]))
    )


def _fault(issue: Any) -> Fault:
    """Return a diagnostic for an error of pydantic in a parameter of the query or the path."""
    source, *names = issue["loc"]
    location = ("?" if source == "query" else f"{source}.") + ".".join(map(str, names))
    return Fault(location, *issue_text(issue))


_HEADERS = [  # of every response
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        (
            b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
            b"frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
        ),
    ),
]


_ENDLESS = "/v1/events"  # path without HEAD, because the handler of its GET doesn't end
_PUBLIC = re.compile(r"/|/assets/.*|/healthz|/readyz|/v1/openapi\.json", re.DOTALL)
"""Paths that need no token, because they reveal nothing about tenants."""

_PROGRESS = re.compile(r"/v1/jobs/([^/]+)/progress")  # path whose POST needs a progress token


class RequestGuard:
    """ASGI middleware: authentication, security headers, encoded slashes, and HEAD for GET routes.

    It also limits the concurrent requests of a tenant. Authentication comes before routing, so that
    an anonymous client doesn't learn which paths exist. HEAD runs the handler of GET, and the web
    server drops the body.
    """

    def __init__(self, app: ASGIApp, connections: int) -> None:
        self._app = app
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[Any] = message.setdefault("headers", [])
                present = {name for name, _ in headers}
                headers += [(name, value) for name, value in _HEADERS if name not in present]
            await send(message)

        raw = scope.get("raw_path")
        if raw:
            scope = {**scope, "path": split_path(raw)}
        if scope["method"] == "HEAD" and scope["path"] != _ENDLESS:
            scope = {**scope, "method": "GET"}
        try:
            tenant, usage_key = _requesting_tenant(scope)
            requester.set(tenant)
            if usage_key is None:
                await self._app(scope, receive, guarded)
                return
            service: Service = scope["app"].state.service
            with service.require_writer().usage.handle(usage_key, self._connections):
                await self._app(scope, receive, guarded)
        except ProblemError as error:  # from here; the application handles errors of its routes
            await problem_response(error)(scope, receive, guarded)


def _requesting_tenant(scope: Scope) -> tuple[str | None, str | None]:
    """Return the tenant whose token a request has, and the key under which its use is counted.

    Both are None for an operator or a public path. A progress token belongs to the tenant of its
    job. Progress reports are counted under a key of their own, so that event streams and slow
    requests of the tenant don't use up their limit. Raise `ProblemError` without a valid token.
    """
    path = scope["path"]
    if _PUBLIC.fullmatch(path):
        return None, None
    service: Service = scope["app"].state.service
    header = Headers(scope=scope).get("authorization")
    writer = service.require_writer()
    if _PROGRESS.fullmatch(path) is not None and scope["method"] == "POST":
        key, _ = verify_progress_token(service.key, header)
        view = writer.published.cached_job(key)
        if view is None:  # a progress token stays valid after its job was closed
            return None, f"reports of {key}"
        return view.tenant, None if view.tenant is None else f"reports of {view.tenant}"
    tenant = service.tokens.caller(header, writer.clock.now()).scope
    return tenant, tenant
