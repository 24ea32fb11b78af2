"""A connection to a Kubernetes API server, with JSON objects as mappings.

The client library reads addresses, certificates and tokens from a kubeconfig or from the service
account of a pod. It rereads the account's token from time to time. `CredentialRefresher` renews the
token of a kubeconfig: a plugin of the cloud provider may issue tokens that expire in minutes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import nullcontext
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import yaml

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, MissingExtraError
from shadowprice.core.wording import escape_controls
from shadowprice.kubernetes.errors import (
    ApiError,
    ApiUnreachableError,
    ConfigError,
    LeadershipLostError,
)
from shadowprice.kubernetes.pausing import Backoff

log = logging.getLogger("shadowprice.kubernetes")

IN_CLUSTER: Final = "in-cluster"  # address that selects the service account of this pod
SERVICE_ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_TIMEOUT_SECONDS: Final = 30.0  # timeout of a request, in seconds
RETRY_TIMEOUT_SECONDS: Final = 60.0  # seconds for which a throttled request (429) is retried
MAX_RETRY_DELAY_SECONDS: Final = 5.0  # of these retries, unless the server demands a longer delay
PAGE_OBJECTS: Final = 500  # objects per page of a list
MAX_INFLIGHT_REQUESTS: Final = 8  # a slot has many requests, which would block the API server
TOKEN_REFRESH_MARGIN_SECONDS: Final = 120.0  # a token is renewed so long before its expiry
MIN_TOKEN_REFRESH_SECONDS: Final = 10.0  # a plugin may be slow, or return expired tokens

_TOKEN_KEY: Final = "BearerToken"  # in the library's configuration
_MAX_CONNECTIONS: Final = 1000
_CONFIG_ERRORS: Final = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    yaml.YAMLError,
)
"""Exceptions that the library raises for an invalid kubeconfig, besides its own."""

_MAX_LINE_BYTES: Final = 8 << 20  # maximum bytes of a streamed line; objects are smaller
_MAX_MESSAGE_CHARS: Final = 500


class MissingLibraryError(MissingExtraError):
    """The client library isn't installed; a usage error."""

    exit_code = 2


class CredentialRefresher:
    """Renews the bearer token of a kubeconfig: before it expires, and if the server refuses it.

    ``load`` reads the kubeconfig again, and runs its plugin if it has one. It returns the token and
    the token's expiry in seconds since 1970; each is None if unknown.
    """

    def __init__(
        self, load: Callable[[], Awaitable[tuple[str | None, float | None]]], expiry: float | None
    ) -> None:
        self._load = load
        self._expiry = expiry
        self._tried = time.monotonic()  # time of the last attempt
        self._lock = asyncio.Lock()

    async def __call__(self, configuration: Any) -> None:
        """Renew the token of a configuration if it expires soon; the library calls it as a hook."""
        if self._expires_soon():
            async with self._lock:
                if self._expires_soon():  # another request may have renewed it
                    await self._renew(configuration)

    async def replace(self, configuration: Any, refused: str | None) -> bool:
        """Replace a token that the server refused; return whether there is a new one."""
        async with self._lock:
            if configuration.api_key.get(_TOKEN_KEY) == refused:  # no other request replaced it
                await self._renew(configuration)
            return bool(configuration.api_key.get(_TOKEN_KEY) != refused)

    def _expires_soon(self) -> bool:
        return (
            self._expiry is not None and time.time() > self._expiry - TOKEN_REFRESH_MARGIN_SECONDS
        )

    async def _renew(self, configuration: Any) -> None:
        if time.monotonic() - self._tried < MIN_TOKEN_REFRESH_SECONDS:
            return
        try:
            token, self._expiry = await self._load()
        except Exception as error:  # the library's, its plugin's, or a damaged file's
            log.warning("failed to renew the credentials: %s", _error_text(error))
        else:
            if token is not None:
                configuration.api_key[_TOKEN_KEY] = token
        self._tried = time.monotonic()


class ApiClient:
    """A connection to one API server, as one user; created by `open`.

    ``namespace`` is the namespace of the context or the service account, else ``default``.
    ``requests`` counts the sent requests, including retries.
    """

    def __init__(
        self, client: Any, namespace: str, credentials: CredentialRefresher | None = None
    ) -> None:
        self._client = client
        self.namespace = namespace
        self._credentials = credentials
        self.requests = 0
        self._may_write: Callable[[], bool] = lambda: True
        self._last_date: tuple[str, float] = ("", 0.0)  # of the last response, and when it arrived
        self._slots = asyncio.Semaphore(MAX_INFLIGHT_REQUESTS)

    @classmethod
    async def open(cls, address: str = "", context: str = "") -> ApiClient:
        """Read the server's address and credentials, without sending a request.

        ``address`` is the path of a kubeconfig, or ``in-cluster``. An empty address means
        ``in-cluster`` in a pod with a service account, else ``$KUBECONFIG`` or ``~/.kube/config``.
        ``context`` is a context of the kubeconfig; empty for its current one. Raises `ConfigError`
        if the file is missing or invalid, and `MissingLibraryError` without the client library.
        """
        try:  # in a thread, because this import takes seconds
            client, config = await asyncio.to_thread(_import_library)
        except ModuleNotFoundError as error:
            purpose = "speaking to Kubernetes"
            raise MissingLibraryError("kubernetes_asyncio", "kubernetes", purpose) from error
        configuration = client.Configuration()
        configuration.connection_pool_maxsize = _MAX_CONNECTIONS
        in_cluster = address == IN_CLUSTER or (
            not address and "KUBERNETES_SERVICE_HOST" in os.environ and SERVICE_ACCOUNT_DIR.is_dir()
        )
        credentials = None
        try:
            if in_cluster:
                config.load_incluster_config(configuration)
                namespace = (SERVICE_ACCOUNT_DIR / "namespace").read_text(encoding="utf-8").strip()
            else:
                namespace, credentials = await _kubeconfig(
                    client, config, configuration, address, context
                )
            return cls(client.ApiClient(configuration), namespace or "default", credentials)
        except (config.ConfigException, *_CONFIG_ERRORS) as error:
            text = " ".join((getattr(error, "strerror", None) or str(error)).split())[
                :_MAX_MESSAGE_CHARS
            ]
            location = address or os.environ.get("KUBECONFIG") or "~/.kube/config"
            if in_cluster:
                location = IN_CLUSTER
            hint = "write the path of a kubeconfig, or in-cluster"
            path = escape_controls(location[: int(bounds.PATH.maximum)])  # not shortened further
            fault = Fault("--address", f"'{path}' doesn't name a cluster: {text}", hint)
            raise ConfigError(str(fault)) from error

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._client.configuration.host)

    def restrict_writes(self, may_write: Callable[[], bool]) -> None:
        """Only send requests that change objects if ``may_write`` returns True; urgent ones always.

        It is called right before each request, so that a suspended process which lost its lease
        writes nothing. Urgent requests are those of leases.
        """
        self._may_write = may_write

    def time(self) -> float | None:
        """Return the server's time in seconds since 1970, up to 1 s behind; None if unknown."""
        date, received = self._last_date
        try:
            server_time = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return None
        return server_time + time.monotonic() - received

    async def close(self) -> None:
        """Close all connections."""
        session = self._client.rest_client.pool_manager
        await session.connector.close(abort_ssl=True)
        await self._client.close()
        await asyncio.sleep(0)  # the loop closes transports in its next turn

    async def get(self, path: str, **query: object) -> dict[str, Any]:
        """Return an object or a list.

        Raises `ApiError` if the server refuses, and `ApiUnreachableError` if it doesn't answer.
        """
        return await self.request("GET", path, query=query)

    async def find(self, path: str, *, urgent: bool = False) -> dict[str, Any] | None:
        """Return an object, None if it doesn't exist; otherwise see `request`."""
        try:
            return await self.request("GET", path, urgent=urgent)
        except ApiError as error:
            if not error.not_found:
                raise
            return None

    async def pages(self, path: str, **query: object) -> AsyncGenerator[dict[str, Any]]:
        """Yield the pages of a list; each has `items` and `metadata`."""
        while True:
            page = await self.get(path, limit=PAGE_OBJECTS, **query)
            yield page
            if not page["metadata"].get("continue"):
                return
            query["continue"] = page["metadata"]["continue"]

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; see `get`."""
        return await self.request("POST", path, body=body)

    async def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object; see `get`."""
        return await self.request("PUT", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change an object by a merge patch; see `get`."""
        return await self.request("PATCH", path, body=body)

    async def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Delete an object; see `get`."""
        return await self.request("DELETE", path, body=body)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, Any] | None = None,
        urgent: bool = False,
    ) -> dict[str, Any]:
        """Send a request, with retries if it is throttled (429).

        At most `MAX_INFLIGHT_REQUESTS` are sent concurrently, besides ``urgent`` ones. Raises the
        errors of `get`, also if it is throttled for more than `RETRY_TIMEOUT_SECONDS` seconds.
        Raises `LeadershipLostError` if `restrict_writes` forbids the request.
        """
        text = await self._send(method, path, urgent=urgent, query=query or {}, body=body)
        try:
            document: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ApiUnreachableError(f"{self.host} answered no JSON") from error
        return document

    async def text(self, path: str, **query: object) -> bytes:
        """Return a response that isn't JSON, such as a log. See `get`."""
        return await self._send("GET", path, query=query)

    async def _send(self, method: str, path: str, *, urgent: bool = False, **request: Any) -> bytes:
        until = time.monotonic() + RETRY_TIMEOUT_SECONDS
        backoff = Backoff(1.0, MAX_RETRY_DELAY_SECONDS)
        while True:
            try:
                async with (
                    nullcontext() if urgent else self._slots,
                    asyncio.timeout(REQUEST_TIMEOUT_SECONDS),
                ):
                    is_restricted = not (method == "GET" or urgent)
                    response = await self._start_request(
                        method, path, is_restricted=is_restricted, **request
                    )
                    try:
                        text: bytes = await response.read()
                    finally:
                        response.release()
            except TimeoutError as error:
                raise ApiUnreachableError(
                    f"{self.host} did not answer in {REQUEST_TIMEOUT_SECONDS:g} s"
                ) from error
            except (OSError, ValueError, _client_error()) as error:
                raise ApiUnreachableError(f"{self.host}: {_error_text(error)}") from error
            self._last_date = (response.headers.get("Date", ""), time.monotonic())
            if response.status < 400:
                return text
            pause = max(backoff.record_failure(), _retry_delay(response.headers.get("Retry-After")))
            if response.status != 429 or time.monotonic() + pause > until:
                raise _error_from_response(response.status, text)
            await asyncio.sleep(pause)

    async def lines(
        self, path: str, *, silence: float, start: float = REQUEST_TIMEOUT_SECONDS, **query: object
    ) -> AsyncGenerator[bytes]:
        """Yield the lines of a streamed response, with their line ends.

        A caller that may stop early has to close it (`contextlib.aclosing`). ``silence`` is the
        timeout in seconds between pieces of data, ``start`` the timeout of the response's start.
        """
        try:
            async with asyncio.timeout(start):
                response = await self._start_request("GET", path, query=query)
            try:
                if response.status >= 400:
                    raise _error_from_response(response.status, await response.read())
                rest = b""
                while True:
                    async with asyncio.timeout(silence):
                        piece = await response.content.readany()
                    if not piece:
                        break
                    *whole, rest = (rest + piece).split(b"\n")
                    if len(rest) > _MAX_LINE_BYTES:
                        raise ApiUnreachableError(
                            f"{self.host} sent a line of more than {_MAX_LINE_BYTES >> 20} MiB"
                        )
                    for line in whole:
                        yield line + b"\n"
                if rest:
                    yield rest
            finally:
                _abort(response)
        except TimeoutError as error:
            raise ApiUnreachableError(f"{self.host} sent no data in {silence:g} s") from error
        except (OSError, ValueError, _client_error()) as error:
            raise ApiUnreachableError(f"{self.host}: {_error_text(error)}") from error

    async def _start_request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object],
        body: Any = None,
        is_restricted: bool = False,
    ) -> Any:
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json, */*", "Content-Type": content}
        headers["User-Agent"] = "shadowprice"
        configuration = self._client.configuration
        for is_last in (False, True):  # the second time with a new token
            await self._client.update_params_for_auth(headers, [], [_TOKEN_KEY])
            token = configuration.api_key.get(_TOKEN_KEY)
            # Checked last, because renewing the credentials may have taken seconds.
            if is_restricted and not self._may_write():
                raise LeadershipLostError
            self.requests += 1
            response = await self._client.rest_client.request(
                method,
                self.host + path,
                query_params={name: _query_value(value) for name, value in query.items()},
                headers=headers,
                body=body,
                _preload_content=False,
            )
            if response.status != 401 or is_last or self._credentials is None:
                break
            if not await self._credentials.replace(configuration, token):
                break
            response.release()
        return response


def _import_library() -> tuple[Any, Any]:
    from kubernetes_asyncio import client, config  # noqa: PLC0415  # large and optional

    return client, config


def _client_error() -> type[Exception]:
    import aiohttp  # noqa: PLC0415  # a dependency of the client library

    error: type[Exception] = aiohttp.ClientError
    return error


async def _kubeconfig(
    client: Any, config: Any, configuration: Any, address: str, context: str
) -> tuple[str, CredentialRefresher]:
    """Read a kubeconfig into a configuration; return the context's namespace and a refresher."""
    path = address or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")  # noqa: PTH111  # without a home, Path.home() raises
    first = path.split(os.pathsep)[0]
    if not Path(first).is_file():
        raise FileNotFoundError(2, "no such file", first)

    async def load(target: Any) -> Any:
        return await config.load_kube_config(
            path, context or None, client_configuration=target, persist_config=False
        )

    async def renew() -> tuple[str | None, float | None]:
        renewed = client.Configuration()
        loader = await load(renewed)
        return renewed.api_key.get(_TOKEN_KEY), _token_expiry(loader)

    loader = await load(configuration)
    refresher = CredentialRefresher(renew, _token_expiry(loader))
    configuration.refresh_api_key_hook = refresher
    entry = loader.current_context["context"]
    return str(entry["namespace"]) if "namespace" in entry else "", refresher


def _token_expiry(loader: Any) -> float | None:
    """Return when the token of a kubeconfig's plugin expires, in seconds since 1970."""
    expiry = getattr(loader, "exec_plugin_expiry", None)
    return expiry.timestamp() if isinstance(expiry, datetime) else None


def _abort(response: Any) -> None:
    """Abort a response.

    After a mere close, the connection waits half a minute for the server, and so outlives this
    object and its event loop.
    """
    connection = response.connection
    transport = None if connection is None else connection.transport
    response.close()
    if transport is not None:
        transport.abort()


def _query_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error_text(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:_MAX_MESSAGE_CHARS]


def _retry_delay(retry_after: str | None) -> float:
    """Return the seconds to wait according to ``Retry-After``, by default 1, with jitter."""
    seconds = float(retry_after) if retry_after is not None and retry_after.isdecimal() else 1.0
    return min(max(seconds, 0.1), RETRY_TIMEOUT_SECONDS) * random.uniform(1.0, 1.2)


def _error_from_response(status: int, text: bytes) -> ApiError:
    try:
        document = json.loads(text)
        reason, message = str(document.get("reason", "")), str(document.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = "", text[:_MAX_MESSAGE_CHARS].decode("utf-8", "replace").strip()
    return ApiError(status, reason, message[:_MAX_MESSAGE_CHARS])
