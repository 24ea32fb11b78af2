"""Shared parts of handlers: the caller, strict JSON bodies, query parameters, problem responses."""

from __future__ import annotations

import asyncio
import json
import json.scanner
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, unquote

from fastapi import APIRouter, Depends, Query, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import TypeAdapter
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from shadowprice import rest
from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.specs import validate
from shadowprice.core.wording import (
    hint_for_unknown,
    parse_error_text,
    quote_for_display,
    text_problem,
)
from shadowprice.service.auth import Caller
from shadowprice.service.problems import MEDIA_TYPE, ProblemError
from shadowprice.service.service import Service
from shadowprice.service.settings import MAX_BODY_BYTES
from shadowprice.service.turns import requester

T = TypeVar("T")
MAX_PAGE_ENTRIES: Final = 1_000
MAX_LENGTH_DIGITS: Final = 18  # of a Content-Length, because Python parses at most 4,300 digits
REFERENCE: Final = "#/components/schemas/{model}"  # reference to a model in the OpenAPI document

# ------------------------------------------------------------------ paths


class _Name(Convertor[str]):
    """A name in a path: any text; `split_path` keeps its slashes encoded."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        name = unquote(value)
        if "\0" in name:
            message = f"the name {quote_for_display(name)} contains a null character"
            raise InputError(Fault("path", message, "remove it"))
        return name

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", _Name())


def split_path(path: bytes) -> str:
    """Decode each segment of a raw path by itself, for routing.

    Slashes and percent signs within a segment are encoded again, until `_Name` decodes them. So
    ``%2F`` in a name doesn't separate segments.
    """
    decoded = (unquote(part.decode("ascii", "replace")) for part in path.split(b"/"))
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in decoded)


# ------------------------------------------------------------------ callers


def get_service(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


# Async, because FastAPI runs dependencies that aren't async in a thread.
async def _service(request: Request) -> Service:
    return get_service(request)


# Only documents the header. `Tokens` reads it, to return problem details for a malformed one.
_bearer = HTTPBearer(scheme_name="token", auto_error=False)


async def authenticate_caller(
    request: Request, _header: Annotated[Any, Security(_bearer)]
) -> Caller:
    """Authenticate the caller; raise `ProblemError` without a valid token, or on a standby."""
    service = get_service(request)
    now = service.require_writer().clock.now()
    return service.tokens.caller(request.headers.get("authorization"), now)


async def authenticate_operator(caller: Annotated[Caller, Depends(authenticate_caller)]) -> Caller:
    """Authenticate an operator; raise `ProblemError` if the caller is a tenant."""
    caller.check_operator()
    return caller


ServiceDep = Annotated[Service, Depends(_service)]
CallerDep = Annotated[Caller, Depends(authenticate_caller)]
OperatorDep = Annotated[Caller, Depends(authenticate_operator)]


def requested_tenant(caller: Caller, tenant: str | None) -> str | None:
    """Return the tenant whose entries a caller gets; None for all.

    Raise `ProblemError` if a tenant requests entries of another one.
    """
    if tenant is not None and caller.scope not in (None, tenant):
        raise ProblemError("forbidden", "a tenant's token reaches its own entries only")
    return caller.scope or tenant


def require_observe_mode(service: Service) -> None:
    """Raise `ProblemError` unless the service only observes."""
    if not service.settings.observe:
        detail = "the service runs the jobs itself; a comparison needs serve --observe"
        raise ProblemError("unsupported", detail)


# ------------------------------------------------------------------ query parameters

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE_ENTRIES, description="maximum number of entries")]
Cursor = Annotated[int | None, Query(ge=0, le=2**53, description="`next` of the previous page")]


async def check_query(request: Request) -> None:
    """Raise `InputError` if a query parameter is unknown, repeated or not plain text."""
    if not request.scope["query_string"]:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    parameters = [field.alias for field in route.dependant.query_params]
    seen: set[str] = set()
    for key, value in request.query_params.multi_items():
        if key not in parameters:
            hint = hint_for_unknown(key, parameters, cutoff=0.5)
            raise InputError(Fault(f"?{quote_for_display(key)}", "unknown parameter", hint))
        if key in seen:
            raise InputError(Fault(f"?{key}", "is repeated", "give it once"))
        reason = text_problem(value)
        if reason is not None:
            raise InputError(Fault(f"?{key}", *reason))
        seen.add(key)


def parse_choices(key: str, text: str, choices: type[StrEnum]) -> list[str]:
    """Return values separated by commas; raise `InputError` if one isn't among the choices."""
    values = [value for value in text.split(",") if value]
    for value in values:
        if value not in list(choices):
            message = f"unknown {key.removeprefix('?')} {quote_for_display(value)}"
            raise InputError(Fault(key, message, f"one of: {', '.join(choices)}"))
    return values


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route that can fail with these statuses."""
    schema = {"$ref": f"#/components/schemas/{rest.Problem.__name__}"}
    content = {MEDIA_TYPE: {"schema": schema}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }


def api_router(prefix: str, tag: str) -> APIRouter:
    """Return a router whose routes refuse unknown query parameters."""
    return APIRouter(prefix=prefix, tags=[tag], dependencies=[Depends(check_query)])


# ------------------------------------------------------------------ bodies


class JsonBody:
    """A dependency that reads a JSON body, and validates it against a model.

    It replaces FastAPI's body parameter, because FastAPI reads the body before it authenticates the
    caller, without a limit, and accepts repeated keys. Unless ``validated``, the handler gets plain
    JSON and validates it. Then ``model`` only describes the request in the OpenAPI document.
    """

    def __init__(self, model: Any, *, validated: bool = True) -> None:
        self.model = model
        self._validated = validated

    async def __call__(self, request: Request, caller: CallerDep) -> AsyncIterator[Any]:
        """Yield the body after authentication; a tenant's counts until the response is sent."""
        if caller.scope is None:
            yield await self._read(request)
            return
        with get_service(request).require_writer().usage.receive(caller.scope) as meter:
            yield await self._read(request, meter)

    async def _read(self, request: Request, meter: Callable[[int], None] | None = None) -> Any:
        text = await read_body(request, meter=meter)
        request.state.has_large_body = len(text) > MAX_INLINE_BODY_BYTES
        return await in_turn(request, lambda: self._parse(text))

    def _parse(self, text: bytes) -> Any:
        value = parse_json(text)
        if not self._validated:
            return value
        spec, faults = validate(self.model, value, "body")
        if spec is None:
            # `validate` writes the location of a key as ``body: tenant``.
            faults = [
                replace(fault, location=fault.location.replace("body: ", "body.", 1))
                for fault in faults
            ]
            raise InputError(faults)
        return spec

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the body, with references to components."""
        return TypeAdapter(self.model).json_schema(ref_template=REFERENCE)


MAX_INLINE_BODY_BYTES: Final = 4 << 10  # of a body that the event loop parses and validates itself


async def in_turn(request: Request, work: Callable[[], T]) -> T:
    """Return the result of work on a request's body; run it in a thread if the body is large.

    Large bodies are handled one at a time, and tenants take turns, because threads compete with the
    event loop for the interpreter lock.
    """
    if not request.state.has_large_body:
        return work()
    async with get_service(request).bodies.turn(requester.get()):
        return await asyncio.to_thread(work)


BODY_IDLE_SECONDS: Final = 60.0  # maximum pause within a body of JSON
BODY_SECONDS: Final = 600.0  # maximum duration of a body of JSON


async def read_chunk(
    stream: AsyncIterator[bytes], idle_seconds: float, started: float, max_seconds: float
) -> bytes | None:
    """Return the next piece of a body; None after the last piece.

    The body may take ``max_seconds`` from the monotonic time ``started`` on. Raise `ProblemError`
    if the piece doesn't come in time, or the client disconnects.
    """
    remaining = started + max_seconds - time.monotonic()
    too_long = f"it took more than {max_seconds:g} s"
    if remaining <= 0:  # `asyncio.timeout` doesn't end a read that needn't wait
        raise _malformed_body(too_long)
    try:
        async with asyncio.timeout(min(idle_seconds, remaining)):
            return await anext(stream, None)
    except TimeoutError:
        if remaining < idle_seconds:
            raise _malformed_body(too_long) from None
        raise _malformed_body(f"no data came for {idle_seconds:g} s") from None
    except ClientDisconnect:
        raise _malformed_body("the client disconnected") from None


def _malformed_body(detail: str, hint: str = "") -> ProblemError:
    fault = Fault("body", detail, hint)
    return ProblemError("malformed", str(fault), faults=[fault])


async def read_body(
    request: Request, limit: int = MAX_BODY_BYTES, meter: Callable[[int], None] | None = None
) -> bytes:
    """Return the bytes of a request's JSON body.

    ``meter`` is called with the size of each piece. Raise `ProblemError` if the body exceeds
    ``limit`` bytes, has another media type, or doesn't come in time.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() not in {"application/json", "application/merge-patch+json"}:
        raise ProblemError(
            "unsupported-media-type", f"expected application/json, got {quote_for_display(kind)}"
        )
    too_large = ProblemError("too-large", f"the body exceeds the limit of {limit:,} bytes")
    declared = request.headers.get("content-length", "0")
    if not re.fullmatch(r"[0-9]+", declared):
        problem = f"expected a number of bytes, got {quote_for_display(declared)}"
        fault = Fault("Content-Length", problem)
        raise ProblemError("malformed", str(fault), faults=[fault])
    digits = declared.lstrip("0")
    if len(digits) > MAX_LENGTH_DIGITS or int(digits or "0") > limit:
        raise too_large
    parts, size = [], 0
    stream = aiter(request.stream())
    started = time.monotonic()
    while (part := await read_chunk(stream, BODY_IDLE_SECONDS, started, BODY_SECONDS)) is not None:
        size += len(part)
        if size > limit:
            raise too_large
        if meter is not None:
            meter(len(part))
        parts.append(part)
    return b"".join(parts)


_SEPARATORS: Final = (b",", b"[", b"{")
"""Bytes that precede each value except the first.

Counting them, also within strings, is a fast estimate. Parsing millions of values takes seconds and
gigabytes, while no other thread runs.
"""


def parse_json(text: bytes, *, strict: bool = True) -> Any:
    """Parse JSON; refuse repeated keys, infinite numbers, and excessive size or nesting.

    Unless ``strict``, only the syntax and the number of values are checked. Raise `ProblemError`
    with the location of the first problem.
    """
    if sum(map(text.count, _SEPARATORS)) > bounds.BODY_VALUES.maximum:
        hint = f"send at most {bounds.BODY_VALUES.maximum:,}"
        raise ProblemError("too-large", f"the body has too many values; {hint}")
    try:
        value = json.loads(
            text,
            cls=_YieldingDecoder if len(text) > MAX_INLINE_BODY_BYTES else None,
            object_pairs_hook=_unique if strict else None,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ProblemError("malformed", f"not JSON: {error.msg} ({where})") from error
    except RecursionError as error:
        raise ProblemError("malformed", "not JSON: nested too deeply") from error
    except ValueError as error:
        raise _malformed_body(parse_error_text(error)) from error
    invalid = _invalid_part(value, 0) if strict else None
    if invalid is not None:
        steps, message, hint = invalid
        fault = Fault("body" + "".join(reversed(steps)), message, hint)
        raise ProblemError("malformed", str(fault), faults=(fault,))
    return value


class _YieldingDecoder(json.JSONDecoder):
    """JSON decoder in Python, which lets other threads run meanwhile.

    The decoder in C is six times as fast. But it decodes an object of a hundred thousand keys
    without releasing the interpreter lock.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # no stub


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _malformed_body(f"the key {quote_for_display(repeated)} is repeated", "give it once")
    return unique


_InvalidPart = tuple[list[str], str, str]  # steps of a value's path (last first), message, hint


def _invalid_part(value: Any, depth: int) -> _InvalidPart | None:
    """Return the first part that is too deep, too long, not finite, or not valid text."""
    if depth > bounds.NESTING.maximum:
        return [], "nested too deeply", f"nest at most {bounds.NESTING.maximum} levels"
    if isinstance(value, dict | list) and len(value) > bounds.ENTRIES.maximum:
        return [], bounds.ENTRIES.message(len(value)), "send less at once"
    if isinstance(value, str):
        reason = text_problem(value)
        return None if reason is None else ([], *reason)
    if isinstance(value, float):
        if math.isnan(value):
            return [], "NaN is not valid JSON", "write a number"
        if math.isinf(value):
            return [], "the number is too large", "write a finite number"
    elif isinstance(value, dict):
        for key, inner in value.items():
            reason = text_problem(key)
            if reason is not None:
                return [], f"the key {quote_for_display(key)} {reason[0]}", reason[1]
            invalid = _invalid_part(inner, depth + 1)
            if invalid is not None:
                invalid[0].append(
                    f".{key if _PLAIN_KEY.fullmatch(key) else quote_for_display(key)}"
                )
                return invalid
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            invalid = _invalid_part(inner, depth + 1)
            if invalid is not None:
                invalid[0].append(f"[{index}]")
                return invalid
    return None


_PLAIN_KEY: Final = re.compile(r"[\w-]{1,60}")  # keys that need no quotes in a path

# ------------------------------------------------------------------ problems


def problem_response(error: ProblemError) -> Response:
    """Return problem details as a response."""
    content = error.to_resource().model_dump_json()
    return Response(content, error.status, headers=error.headers, media_type=MEDIA_TYPE)
