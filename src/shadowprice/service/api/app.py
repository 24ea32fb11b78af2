"""The application: routes, errors as problem details, and what holds for every request."""

from __future__ import annotations

import logging
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import shadowprice
from shadowprice.core.errors import Fault, ShadowpriceError
from shadowprice.service.api import clusters, comparing, jobs, looking, operating, tenants
from shadowprice.service.api.requests import problem, segments
from shadowprice.service.dashboard import router as dashboard
from shadowprice.service.problems import ProblemError, problem_of
from shadowprice.service.service import Service

log = logging.getLogger("shadowprice.service")

_CODES = {
    404: "not-found",
    405: "method",
    415: "media-type",
    413: "too-large",
    401: "unauthenticated",
}


def create_app(service: Service) -> FastAPI:
    """Return the application of a service."""
    app = FastAPI(
        title="Shadowprice",
        version=shadowprice.__version__,
        summary="Submit a job, get a promise, watch it run.",
        description=(
            "Every route but `/healthz` and `/readyz` needs a token: `Authorization: Bearer ...`. "
            "Errors are problem details (RFC 9457) with a `code`. Unknown fields and parameters "
            "are errors. Times are RFC 3339 in UTC."
        ),
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        redirect_slashes=False,
    )
    app.state.service = service
    for module in (jobs, looking, comparing, clusters, tenants, operating):
        app.include_router(module.router)
    app.include_router(dashboard)
    app.add_exception_handler(ShadowpriceError, _shadowprice)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unforeseen)
    app.add_middleware(Guard)
    return app


async def _shadowprice(_request: Request, error: Exception) -> Response:
    return problem(problem_of(error))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "unparsable")
    told = ProblemError(code, str(error.detail), headers=error.headers)
    if code == "method":
        allowed = ", ".join(_methods(request))
        told = ProblemError(code, f"here can be: {allowed}", headers={"Allow": allowed})
    if code == "not-found":
        told = ProblemError(code, "there is no such route; /v1/openapi.json lists them")
    return problem(told)


def _methods(request: Request) -> list[str]:
    """Return the methods of the routes at a path; each route knows of its own only."""
    found: set[str] = set()
    for template, methods in request.app.openapi()["paths"].items():
        pattern = re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, request.url.path):
            found |= {method.upper() for method in methods}
    return sorted(found or {"GET"})  # the dashboard's files are in no document


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [
        Fault(".".join(str(part) for part in one["loc"]), str(one["msg"]))
        for one in error.errors()[:50]
    ]
    return problem(ProblemError("input", "; ".join(map(str, faults)), faults=faults))


async def _unforeseen(_request: Request, error: Exception) -> Response:
    return problem(problem_of(error))


_HEADERS = [
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


_ENDLESS = "/v1/events"
"""The one route whose answer does not end, so that nobody asks for its head alone."""


class Guard:
    """What holds for every request: slashes in names are none of the path, browsers do not guess.

    Who asks for the head of what can be had is answered as if for all of it; the web server leaves
    the body out.

    Parameters
    ----------
    app : ASGIApp
        What answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
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
            scope = {**scope, "path": segments(raw)}
        if scope["method"] == "HEAD" and scope["path"] != _ENDLESS:
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, guarded)
