"""A connection to an API server: requests as they are, answers as mappings.

Addresses, certificates and tokens are those of the library: a kubeconfig with all that may stand in
it, or the service account of a pod, whose token is read anew as it is renewed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import yaml

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, MissingExtraError
from shadowprice.core.wording import escaped
from shadowprice.kubernetes.errors import ApiError, ConnectError, DeposedError, UnreachableError
from shadowprice.kubernetes.pausing import Pauses

IN_CLUSTER: Final = "in-cluster"
"""The address that means: as the service account of this pod."""

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER: Final = 30.0
"""Seconds that a request may take."""

PATIENCE: Final = 60.0
"""Seconds that a request is tried again where the server asks to come later."""

LATER: Final = 5.0
"""Longest of the growing pauses between these tries, where the server asks for none longer."""

IN_FLIGHT: Final = 8
"""Requests of one connection that are with the server at a time, streams beside. What a slot asks
for at once would keep it busy for seconds, and every status and lease waiting with it; a server
that has time answers hundreds a second so."""

_PATCHES: Final = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
_CONNECTIONS: Final = 1000
_WRONG: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError)
"""What the library raises, beside its own, where a kubeconfig is none."""
_MOST_LINE: Final = 8 << 20
"""Bytes of a line: an object is never so large."""

_MOST_SHOWN: Final = 500


class MissingLibraryError(MissingExtraError):
    """The library is not installed; the call is wrong, not the run."""

    exit_code = 2


class Connection:
    """Speaks to one API server, as one user.

    Made by `open`.

    Attributes
    ----------
    namespace : str
        What the context, or the service account, names; ``default`` where it names none.
    requests : int
        Requests sent so far, those tried again too.
    may_write : callable
        Whether requests that change anything are sent, but urgent ones. It is asked right before
        each is: who was frozen after deciding on one, and leads no more, does not send it.
    """

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self.namespace = namespace
        self.requests = 0
        self.may_write: Callable[[], bool] = lambda: True
        self._dated: tuple[str, float] = ("", 0.0)
        self._room = asyncio.Semaphore(IN_FLIGHT)

    @classmethod
    async def open(cls, address: str = "", context: str = "") -> Connection:
        """Read where the server is and who asks; nothing is asked yet.

        Parameters
        ----------
        address : str
            Path of a kubeconfig; ``in-cluster``; or empty: in-cluster where this is a pod with a
            service account, else ``$KUBECONFIG`` or ``~/.kube/config``.
        context : str
            A context of the kubeconfig, where it is not the current one.

        Raises
        ------
        ConnectError
            If there is no such file, or it says something else.
        MissingLibraryError
            If the library is not installed.
        """
        try:  # it takes seconds of processor time, and is not this package's to make faster
            client, config = await asyncio.to_thread(_library)
        except ModuleNotFoundError as error:
            purpose = "speaking to Kubernetes"
            raise MissingLibraryError("kubernetes_asyncio", "kubernetes", purpose) from error
        configuration = client.Configuration()
        configuration.connection_pool_maxsize = _CONNECTIONS
        inside = address == IN_CLUSTER or (
            not address and "KUBERNETES_SERVICE_HOST" in os.environ and ACCOUNT.is_dir()
        )
        try:
            if inside:
                config.load_incluster_config(configuration)
                named = (ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
            else:
                named = await _kubeconfig(config, configuration, address, context)
            return cls(client.ApiClient(configuration), named or "default")
        except (config.ConfigException, *_WRONG) as error:
            told = " ".join((getattr(error, "strerror", None) or str(error)).split())[:_MOST_SHOWN]
            place = address or os.environ.get("KUBECONFIG") or "~/.kube/config"
            mend = "write the path of a kubeconfig, or in-cluster"
            path = escaped(
                place[: int(bounds.PATH.most)]
            )  # whole: it is where the mend is to be made
            fault = Fault("--address", f"'{path}' leads to no cluster: {told}", mend)
            raise ConnectError(str(fault)) from error

    @property
    def host(self) -> str:
        """Address of the server."""
        return str(self._client.configuration.host)

    def time(self) -> float | None:
        """Return the time by the server's clock, seconds since 1970; None before its first answer.

        Answers are dated in whole seconds: it is up to one behind.
        """
        said, at = self._dated
        try:
            told = parsedate_to_datetime(said).timestamp()
        except (ValueError, OverflowError):
            return None
        return told + time.monotonic() - at

    async def close(self) -> None:
        """Let go."""
        session = self._client.rest_client.pool_manager
        await session.connector.close(abort_ssl=True)
        await self._client.close()
        await asyncio.sleep(0)  # transports are closed in the loop's next turn

    # ------------------------------------------------------------------ requests

    async def get(self, path: str, **query: object) -> dict[str, Any]:
        """Return an object or a list.

        Raises
        ------
        ApiError
            If the server refuses.
        UnreachableError
            If nobody answers.
        """
        return await self.request("GET", path, query=query)

    async def post(self, path: str, body: Mapping[str, Any], **query: object) -> dict[str, Any]:
        """Create an object; see `get`."""
        return await self.request("POST", path, query=query, body=body)

    async def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object; see `get`."""
        return await self.request("PUT", path, body=body)

    async def patch(self, path: str, body: Any, kind: str = "merge", **query: object) -> Any:
        """Change an object; ``kind`` is json, merge, strategic or apply. See `get`."""
        return await self.request("PATCH", path, query=query, body=body, content=_PATCHES[kind])

    async def delete(
        self, path: str, body: Mapping[str, Any] | None = None, **query: object
    ) -> dict[str, Any]:
        """Delete an object; see `get`."""
        return await self.request("DELETE", path, query=query, body=body)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Any = None,
        content: str = "application/json",
        urgent: bool = False,
    ) -> dict[str, Any]:
        """Send a request; one that the server puts off (429) is sent again when it says so.

        No more than `IN_FLIGHT` are sent at a time; ``urgent`` ones do not wait for others.

        Raises
        ------
        ApiError
            If the server refuses, or puts it off for more than a minute.
        DeposedError
            If nothing may be written now.
        UnreachableError
            If nobody answers.
        """
        text = await self._sent(method, path, query or {}, body, content, urgent=urgent)
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise UnreachableError(f"{self.host} answered no JSON") from error
        return found

    async def text(self, path: str, **query: object) -> bytes:
        """Return what is no JSON: a log. See `get`."""
        return await self._sent("GET", path, query, None, "application/json")

    async def _sent(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: Any,
        content: str,
        *,
        urgent: bool = False,
    ) -> bytes:
        until = time.monotonic() + PATIENCE
        pauses = Pauses(1.0, LATER)
        while True:
            try:
                async with (
                    nullcontext() if urgent else self._room,
                    asyncio.timeout(ANSWER),
                ):
                    if not (method == "GET" or urgent or self.may_write()):
                        raise DeposedError
                    answer = await self._begun(method, path, query, body, content)
                    try:
                        text: bytes = await answer.read()
                    finally:
                        answer.release()
            except TimeoutError as error:
                raise UnreachableError(f"{self.host} did not answer in {ANSWER:g} s") from error
            except (OSError, ValueError, _client_error()) as error:
                raise UnreachableError(f"{self.host}: {_said(error)}") from error
            self._dated = (answer.headers.get("Date", ""), time.monotonic())
            if answer.status < 400:
                return text
            pause = max(pauses.failed(), _pause(answer.headers.get("Retry-After")))
            if answer.status != 429 or time.monotonic() + pause > until:
                raise _refusal(answer.status, text)
            await asyncio.sleep(pause)

    async def lines(
        self, path: str, *, silence: float, answer: float = ANSWER, **query: object
    ) -> AsyncIterator[bytes]:
        """Yield the lines of an answer as they come, each with what ends it.

        Parameters
        ----------
        path : str
            What is asked for.
        silence : float
            Seconds without a line after which nobody is believed to be there.
        answer : float
            Seconds that the first may take.
        **query
            As of `get`.
        """
        try:
            async with asyncio.timeout(answer):
                found = await self._begun("GET", path, query, None, "application/json")
            try:
                if found.status >= 400:
                    raise _refusal(found.status, await found.read())
                rest = b""
                while True:
                    async with asyncio.timeout(silence):
                        piece = await found.content.readany()
                    if not piece:
                        break
                    *whole, rest = (rest + piece).split(b"\n")
                    if len(rest) > _MOST_LINE:
                        raise UnreachableError(f"{self.host} sends a line without an end")
                    for line in whole:
                        yield line + b"\n"
                if rest:
                    yield rest
            finally:
                _cut(found)
        except TimeoutError as error:
            raise UnreachableError(f"{self.host} fell silent") from error
        except (OSError, ValueError, _client_error()) as error:
            raise UnreachableError(f"{self.host}: {_said(error)}") from error

    async def _begun(
        self, method: str, path: str, query: Mapping[str, object], body: Any, content: str
    ) -> Any:
        headers = {"Accept": "application/json, */*", "Content-Type": content}
        headers["User-Agent"] = "shadowprice"
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        self.requests += 1
        return await self._client.rest_client.request(
            method,
            self.host + path,
            query_params={name: _written(value) for name, value in query.items()},
            headers=headers,
            body=body,
            _preload_content=False,
        )


def _library() -> tuple[Any, Any]:
    from kubernetes_asyncio import client, config  # noqa: PLC0415  # large and optional

    return client, config


def _client_error() -> type[Exception]:
    import aiohttp  # noqa: PLC0415  # the library's own

    error: type[Exception] = aiohttp.ClientError
    return error


async def _kubeconfig(config: Any, configuration: Any, address: str, context: str) -> str:
    path = address or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")  # noqa: PTH111  # who has no home has no file there, and no exception
    first = path.split(os.pathsep)[0]
    if not Path(first).is_file():
        raise FileNotFoundError(2, "there is no such file", first)
    loader = await config.load_kube_config(
        path, context or None, client_configuration=configuration, persist_config=False
    )
    named = loader.current_context["context"]
    return str(named["namespace"]) if "namespace" in named else ""


def _cut(answer: Any) -> None:
    """End an answer that is not wanted any more, whoever is still there.

    A connection that is only closed waits half a minute for the server to say goodbye, and nobody
    waits for it then: it outlives this connection, and its loop.
    """
    connection = answer.connection
    transport = None if connection is None else connection.transport
    answer.close()
    if transport is not None:
        transport.abort()


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _said(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:_MOST_SHOWN]


def _pause(told: str | None) -> float:
    """Return how long to wait: what was told, a second where nothing was; not all at once."""
    seconds = float(told) if told is not None and told.isdecimal() else 1.0
    return min(max(seconds, 0.1), PATIENCE) * random.uniform(1.0, 1.2)


def _refusal(status: int, text: bytes) -> ApiError:
    try:
        found = json.loads(text)
        reason, message = str(found.get("reason", "")), str(found.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = "", text[:_MOST_SHOWN].decode("utf-8", "replace").strip()
    return ApiError(status, reason, message[:_MOST_SHOWN])
