"""What the synchronous and the asynchronous client share: headers, errors, when to ask again."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from shadowprice.client.calls import Call
from shadowprice.client.errors import MissingClientError, ServiceError, UnreachableError
from shadowprice.client.servers import Address
from shadowprice.client.stream import pauses

try:
    import httpx
except ModuleNotFoundError as error:  # told when a client is made or a command is run
    raise MissingClientError("httpx", "client", "speaking to the live service") from error

__all__ = [
    "attempts",
    "finished",
    "httpx",
    "passing",
    "refusal",
    "request",
    "settings",
    "unreachable",
]

T = TypeVar("T")

TIMEOUT: Final = 30.0
"""Seconds that an answer may take, unless a call is known to take longer."""

QUIET: Final = 45.0
"""Seconds that a stream may be silent; the service says that it is alive every 15."""


def headers(address: Address) -> dict[str, str]:
    """Return what every request carries."""
    told = {"User-Agent": "shadowprice-client", "Accept": "application/json"}
    if address.token is not None:
        told["Authorization"] = f"Bearer {address.token}"
    return told


def settings(address: Address) -> dict[str, Any]:
    """Return what both kinds of `httpx` client are made with."""
    here = address.url.startswith("http://127.0.0.1")
    return {
        "base_url": address.url,
        "headers": headers(address),
        "timeout": TIMEOUT,
        "follow_redirects": False,  # a token goes nowhere but where it was meant for
        "trust_env": not here,  # no proxy to this machine
        # And no certificates: reading the authorities takes longer than the call. Nobody is
        # trusted then, should TLS be spoken after all.
        "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if here else True,
    }


def request(call: Call[Any], most: float | None = None) -> dict[str, Any]:
    """Return the arguments of an `httpx` request, which may take so many seconds at most."""
    told: dict[str, Any] = {
        "method": call.method,
        "url": call.path,
        "params": call.parameters,
        "timeout": TIMEOUT + call.patience if most is None else most,
    }
    return told if call.body is None else {**told, "json": call.body}


def finished(response: httpx.Response, call: Call[T]) -> T:
    """Return what an answer tells.

    Raises
    ------
    ServiceError
        If it is a refusal.
    UnreachableError
        If what answers is no such service.
    """
    if not response.is_success:
        raise refusal(response)
    try:
        return call.read(response.content)
    except ValueError as error:
        url = response.request.url
        message = f"{url.scheme}://{url.netloc.decode()}: what answers is no service that is known"
        raise UnreachableError(f"{message}; is the address right?") from error


def refusal(response: httpx.Response) -> ServiceError:
    """Return why a request was refused; a body must have been read."""
    record: Mapping[str, Any] = {}
    try:
        told = response.json()
        record = told if isinstance(told, Mapping) else {}
    except ValueError:
        pass
    if "detail" not in record:
        record = {"detail": f"{response.request.url} answered {response.status_code}"}
    return ServiceError(response.status_code, record)


def unreachable(address: Address, error: httpx.HTTPError | httpx.InvalidURL) -> UnreachableError:
    """Return a failed connection as an error for people."""
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, httpx.ConnectError):
        hint = "is the service running? shadowprice serve, or name another: --server"
    elif isinstance(error, httpx.TimeoutException):
        words, hint = "no answer in time", "ask again: nothing is done twice"
    else:
        hint = "ask again: nothing is done twice"
    return UnreachableError(f"{address.url}: {words}; {hint}")


def attempts(call: Call[Any], retry: float) -> Iterator[float]:
    """Yield the seconds to wait before each attempt."""
    yield 0.0
    until = time.monotonic() + (retry if call.repeatable else 0.0)
    for pause in pauses():
        left = until - time.monotonic()
        if left <= 0:
            return
        yield min(pause, left)


def passing(error: Exception) -> bool:
    """Whether it may help to ask again: a service that restarts, or another that takes over."""
    return isinstance(error, UnreachableError) or (
        isinstance(error, ServiceError) and error.status == 503
    )
