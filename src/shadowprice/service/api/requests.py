"""Requests: who asks, and what for; bounded before anything of them is read."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection
from typing import Annotated, Any, Final
from urllib.parse import quote, unquote

from fastapi import Depends, Request
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import JSONResponse

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import closest, no_text, shown
from shadowprice.service.auth import Caller
from shadowprice.service.problems import ProblemError
from shadowprice.service.service import Service
from shadowprice.service.settings import BODY


class _Name(Convertor[str]):
    """A name in a path: any text but nothing, a slash among it as `segments` leaves it."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        name = unquote(value)
        if "\0" in name:
            message = f"the name {shown(name)} holds a null character"
            raise InputError(Fault("path", message, "no name does; leave it out"))
        return name

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("name", _Name())


def segments(path: bytes) -> str:
    """Return a path that is still encoded as routes take it.

    Each segment is decoded by itself, so that a slash in a name (``%2F``) is none between segments;
    it stays encoded, and so does a percent sign, until `_Name` takes the segment.
    """
    decoded = (unquote(part.decode("ascii", "replace")) for part in path.split(b"/"))
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in decoded)


LIMIT: Final = 1_000
"""Entries of a page, at most."""


def service_of(request: Request) -> Service:
    """Return the service that a request is for."""
    found: Service = request.app.state.service
    return found


async def caller_of(request: Request) -> Caller:
    """Return who asks.

    Raises
    ------
    ProblemError
        If no valid token was sent, or this instance stands by.
    """
    service = service_of(request)
    now = service.writing.clock.now()
    return service.tokens.caller(request.headers.get("authorization"), now)


async def operator_of(request: Request) -> Caller:
    """Return the operator who asks.

    Raises
    ------
    ProblemError
        If anybody else does.
    """
    caller = await caller_of(request)
    caller.check_operator()
    return caller


Asked = Annotated[Service, Depends(service_of)]
Anyone = Annotated[Caller, Depends(caller_of)]
Operator = Annotated[Caller, Depends(operator_of)]


async def body_of(request: Request, most: int = BODY) -> Any:
    """Return the JSON of a request's body.

    Raises
    ------
    ProblemError
        If it is too large, no JSON, or of another media type.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() not in {"application/json", "application/merge-patch+json"}:
        raise ProblemError("media-type", f"send application/json, not {shown(kind)}")
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > most:
        raise ProblemError("too-large", f"a body has at most {most:,} bytes here")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise ProblemError("too-large", f"a body has at most {most:,} bytes here")
        parts.append(part)
    return read_json(b"".join(parts))


def read_json(text: bytes) -> Any:
    """Return what JSON holds; keys come once, numbers are finite, nesting is bounded.

    Raises
    ------
    ProblemError
        If it is none, too deep, or holds what cannot be kept; naming the place.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ProblemError("unparsable", f"not JSON: {error.msg} ({where})") from error
    except RecursionError as error:
        raise ProblemError("unparsable", "not JSON: it is nested too deeply") from error
    except ValueError as error:
        raise ProblemError("unparsable", f"not JSON: {error}") from error
    found = _wrong(value, 0)
    if found is not None:
        inside, message, mend = found
        fault = Fault("body" + "".join(reversed(inside)), message, mend)
        raise ProblemError("unparsable", str(fault), faults=(fault,))
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {shown(twice)} is given twice")
    return found


_Wrong = tuple[list[str], str, str]
"""The steps that lead to a value, the last one first, what is wrong with it, and what mends it."""


def _wrong(value: Any, depth: int) -> _Wrong | None:
    """Return what is too deep, infinite, or no text that could be written down again."""
    if depth > bounds.NESTING.most:
        return [], "is nested too deeply", f"nest at most {bounds.NESTING.most} levels"
    if isinstance(value, str):
        why = no_text(value)
        return None if why is None else ([], *why)
    if isinstance(value, float):
        if math.isnan(value):
            return [], "NaN is no number that JSON knows", "write a number"
        if math.isinf(value):
            return [], "a number is too large", "write one that is finite"
    elif isinstance(value, dict):
        for key, inner in value.items():
            why = no_text(key)
            if why is not None:
                return [], f"the key {shown(key)} {why[0]}", why[1]
            found = _wrong(inner, depth + 1)
            if found is not None:
                found[0].append(f".{key if _PLAIN.fullmatch(key) else shown(key)}")
                return found
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            found = _wrong(inner, depth + 1)
            if found is not None:
                found[0].append(f"[{at}]")
                return found
    return None


_PLAIN: Final = re.compile(r"[\w-]{1,60}")
"""Keys that a place shows as they are."""


def object_of(value: Any, known: Collection[str], place: str = "body") -> dict[str, Any]:
    """Return a JSON object that holds known keys only.

    Raises
    ------
    InputError
        If it is none, or has others; with the nearest known key.
    """
    if not isinstance(value, dict):
        raise InputError(Fault(place, "is no JSON object"))
    faults = []
    for key in value:
        if key not in known:
            close = closest(key, known, cutoff=0.5)
            mend = f"did you mean {close!r}?" if close else f"known: {', '.join(known)}"
            faults.append(Fault(f"{place}.{shown(key)}", "unknown key", mend))
    if faults:
        raise InputError(faults[:50])
    return value


def known_query(request: Request, known: Collection[str]) -> None:
    """Refuse parameters of a query that nobody knows, come twice, or hold no text.

    Raises
    ------
    InputError
        With the nearest known name.
    """
    seen: set[str] = set()
    for key, value in request.query_params.multi_items():
        if key not in known:
            close = closest(key, known, cutoff=0.5)
            mend = f"did you mean {close!r}?" if close else f"known: {', '.join(known) or 'none'}"
            raise InputError(Fault(f"?{shown(key)}", "unknown parameter", mend))
        if key in seen:
            raise InputError(Fault(f"?{key}", "is given twice", "give it once"))
        why = no_text(value)
        if why is not None:
            raise InputError(Fault(f"?{key}", *why))
        seen.add(key)


def whole_of(
    request: Request, name: str, default: int | None, least: int = 0, most: int = 2**53
) -> int | None:
    """Return a whole number of a query.

    Raises
    ------
    InputError
        If it is none, or out of range.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 16:
        raise InputError(Fault(f"?{name}", f"{shown(text)} is no whole number"))
    value = int(text)
    if not least <= value <= most:
        raise InputError(Fault(f"?{name}", f"{value} is not from {least} to {most}"))
    return value


def truth_of(request: Request, name: str) -> bool:
    """Return whether a parameter of a query says ``true``; it need not be there.

    Raises
    ------
    InputError
        If it says neither ``true`` nor ``false``.
    """
    text = request.query_params.get(name, "false")
    if text not in {"true", "false"}:
        raise InputError(Fault(f"?{name}", f"{shown(text)} is neither true nor false"))
    return text == "true"


def check_observes(service: Service) -> None:
    """Refuse to compare where the service's decisions are what happens.

    Raises
    ------
    ProblemError
        If it commands.
    """
    if not service.settings.observe:
        detail = "the service commands what runs: there is nothing else to compare"
        raise ProblemError("unsupported", detail)


def limit_of(request: Request, default: int = 100) -> int:
    """Return how many entries a page is to have."""
    return whole_of(request, "limit", default, 1, LIMIT) or default


def answer(content: Any, status: int = 200, **headers: str) -> JSONResponse:
    """Return JSON that no cache keeps."""
    return JSONResponse(content, status, headers={"Cache-Control": "no-store", **headers})


def problem(error: ProblemError) -> JSONResponse:
    """Return a problem as an answer."""
    headers = {"Cache-Control": "no-store", **error.headers}
    return JSONResponse(
        error.record(), error.status, headers=headers, media_type="application/problem+json"
    )
