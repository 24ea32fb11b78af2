"""HTTP details that both clients share: headers, errors and retries."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from shadowprice.client.calls import ApiCall
from shadowprice.client.endpoints import Endpoint
from shadowprice.client.errors import MissingClientError, ServiceError, ServiceUnreachableError
from shadowprice.client.stream import reconnect_delays
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import find_unsendable

try:
    import httpx
except ModuleNotFoundError as error:  # reported when a client is created or a command runs
    raise MissingClientError("httpx", "client", "speaking to the live service") from error

__all__ = [
    "aread_pieces",
    "check_stream",
    "httpx",
    "httpx_options",
    "is_retryable",
    "may_have_arrived",
    "parse_response",
    "read_pieces",
    "request",
    "retry_delays",
    "to_service_error",
    "to_unreachable_error",
]

T = TypeVar("T")

DEFAULT_TIMEOUT_SECONDS: Final = 30.0  # timeout of a response in seconds; a call can extend it

_ERROR_NUMBER: Final = re.compile(r"^\[Errno -?\d+\] ")  # means nothing to users

PIECE_BYTES: Final = 256 << 10  # bytes of an archive that are read and sent together

STREAM_READ_TIMEOUT_SECONDS: Final = 45.0
"""Timeout of a silent stream in seconds; the service sends a keep-alive every 15 s."""


# A proxy answers 502 and 504 for a service that restarts.
_RETRYABLE_STATUSES: Final = frozenset({502, 503, 504})

_LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def headers(address: Endpoint) -> dict[str, str]:
    """Return the headers of every request."""
    fields = {"User-Agent": "shadowprice-client", "Accept": "application/json"}
    if address.token is not None:
        fields["Authorization"] = f"Bearer {address.token}"
    return fields


def httpx_options(address: Endpoint) -> dict[str, Any]:
    """Return the arguments of an `httpx` client, synchronous or asynchronous."""
    url = urlsplit(address.url)
    is_local = url.scheme == "http" and url.hostname in _LOCAL_HOSTS
    return {
        "base_url": address.url,
        "headers": headers(address),
        "timeout": DEFAULT_TIMEOUT_SECONDS,
        "follow_redirects": False,  # a redirect could leak the token
        "trust_env": not is_local,  # no proxy to this machine
        # No certificate authorities: loading them takes longer than a local call over plain HTTP.
        "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_local else True,
    }


def request(call: ApiCall[Any], maximum: float | None = None) -> dict[str, Any]:
    """Return the arguments of an `httpx` request; ``maximum`` replaces the timeout in seconds.

    Raises `InputError` if JSON can't hold the body.
    """
    arguments: dict[str, Any] = {
        "method": call.method,
        "url": call.path,
        "params": call.parameters,
        "headers": dict(call.headers),
        "timeout": DEFAULT_TIMEOUT_SECONDS + call.patience if maximum is None else maximum,
    }
    if call.body is None:
        return arguments
    if problem := find_unsendable(call.body):
        raise InputError(Fault(*problem))
    return {**arguments, "json": call.body}


def read_pieces(call: ApiCall[Any]) -> Iterator[bytes]:
    """Yield the archive of a call; an empty body without one."""
    if call.archive is None:
        return
    call.archive.file.seek(0)
    position = 0
    while piece := call.archive.file.read(PIECE_BYTES):
        yield piece
        position += len(piece)
        if call.sent is not None:
            call.sent(position)


async def aread_pieces(call: ApiCall[Any]) -> AsyncIterator[bytes]:
    """Yield the same as `read_pieces`, for an asynchronous client."""
    for piece in read_pieces(call):
        yield piece


def parse_response(response: httpx.Response, call: ApiCall[T]) -> T:
    """Parse a response; raise `ServiceError` if the service refused the request.

    A response of another program raises `ServiceUnreachableError`.
    """
    if not response.is_success:
        raise to_service_error(response)
    try:
        return call.read(response.content)
    except ValueError as error:
        raise _foreign_response(response) from error


def check_stream(response: httpx.Response) -> None:
    """Raise `ServiceUnreachableError` if a response isn't a stream of events."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise _foreign_response(response)


def _foreign_response(response: httpx.Response) -> ServiceUnreachableError:
    url = response.request.url
    message = f"{url.scheme}://{url.netloc.decode()}: the response isn't one of this service"
    return ServiceUnreachableError(f"{message}; check the address and the version")


def to_service_error(response: httpx.Response) -> ServiceError:
    """Return the error of a refused request, whose body must have been read."""
    record: Mapping[str, Any] = {}
    try:
        content = response.json()
        record = content if isinstance(content, Mapping) else {}
    except ValueError:
        pass
    if "detail" not in record:
        record = {"detail": f"{response.request.url} answered {response.status_code}"}
    return ServiceError(response.status_code, record)


def may_have_arrived(error: httpx.HTTPError | httpx.InvalidURL) -> bool:
    """Return whether the service may have received a request that failed."""
    return not isinstance(error, _ERRORS_BEFORE_SENDING)


_ERRORS_BEFORE_SENDING: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)


def to_unreachable_error(
    address: Endpoint, error: httpx.HTTPError | httpx.InvalidURL, call: ApiCall[Any] | None = None
) -> ServiceUnreachableError:
    """Return a connection error with a hint for the user; ``call`` is None for a stream."""
    message = _ERROR_NUMBER.sub("", " ".join(str(error).split())) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        message = "no answer in time"
    if "CERTIFICATE_VERIFY_FAILED" in message:
        hint = "trust its authority with SSL_CERT_FILE=FILE"
    elif isinstance(error, httpx.ConnectError):
        hint = "is the service running? start it (shadowprice serve), or name another (--server)"
    elif call is None or not may_have_arrived(error):
        hint = "try again: nothing is done twice"
    elif call.is_submission:
        hint = "it may have been submitted: look for it (shadowprice queue) before you try again"
    elif not call.repeatable:
        hint = "it may have been done: check that before you try again"
    else:
        hint = "try again: nothing is done twice"
    return ServiceUnreachableError(f"{address.url}: {message}; {hint}")


def retry_delays(call: ApiCall[Any], retry: float) -> Iterator[float]:
    """Yield the seconds to wait before each attempt, for ``retry`` seconds in total."""
    yield 0.0
    deadline = time.monotonic() + (retry if call.repeatable else 0.0)
    for pause in reconnect_delays():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return
        yield min(pause, remaining)


def is_retryable(error: Exception) -> bool:
    """Return whether a retry may succeed, after a restart or a takeover."""
    return isinstance(error, ServiceUnreachableError) or (
        isinstance(error, ServiceError) and error.status in _RETRYABLE_STATUSES
    )
