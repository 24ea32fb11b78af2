"""Bodies of requests: refusals and their messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from shadowprice.service.api.requests import parse_json, read_body
from shadowprice.service.problems import ProblemError


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"a": 1, "b": {"a": 1, "a": 2}}', "body: the key 'a' is repeated; give it once"),
        (b'{"a": ' + b"9" * 5000 + b"}", "body: a number has too many digits"),
        (b'{"a": 1', "not JSON: Expecting ',' delimiter (line 1, column 8)"),
    ],
)
def test_an_invalid_body_is_named_by_its_problem(body: bytes, message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        parse_json(body)
    assert str(caught.value) == message
    assert caught.value.code == "malformed"


def _read(declared: str) -> bytes:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    headers = [(b"content-length", declared.encode("latin-1"))]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    return asyncio.run(read_body(request, 100))


@pytest.mark.parametrize("declared", ["ten", "-1", "+2", "1.5", "", "\u00b2"])
def test_a_malformed_length_is_not_called_too_large(declared: str) -> None:
    with pytest.raises(ProblemError) as caught:
        _read(declared)
    assert caught.value.code == "malformed"
    assert str(caught.value) == f"Content-Length: expected a number of bytes, got {declared!r}"


def test_a_large_length_is_refused_before_the_body_is_read() -> None:
    assert _read("0" * 30 + "2") == b"{}"
    for declared in ("101", "9" * 5000):
        with pytest.raises(ProblemError) as caught:
            _read(declared)
        assert caught.value.code == "too-large"
