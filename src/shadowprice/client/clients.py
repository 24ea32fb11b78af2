"""The clients of the live service, synchronous and asynchronous, with the same methods."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload
from urllib.parse import urlsplit

from shadowprice import rest
from shadowprice.client import calls
from shadowprice.client.calls import (
    ApiCall,
    MissingClientError,
    ServiceError,
    ServiceUnreachableError,
)
from shadowprice.client.endpoints import Endpoint, normalize_token, resolve_endpoint
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import find_unsendable
from shadowprice.uploads.packing import Archive

try:
    import httpx
except ModuleNotFoundError as error:  # reported when a client is created or a command runs
    raise MissingClientError("httpx", "client", "speaking to the live service") from error

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# ------------------------------------------------------------------ requests and responses

DEFAULT_TIMEOUT_SECONDS: Final = 30.0  # timeout of a response, which a call can extend
_ERROR_NUMBER: Final = re.compile(r"^\[Errno -?\d+\] ")  # removed, because it says nothing to users
PIECE_BYTES: Final = 256 << 10  # bytes of an archive that are read and sent together
STREAM_READ_TIMEOUT_SECONDS: Final = 45.0  # the service sends a keep-alive every 15 s
_RETRYABLE_STATUSES: Final = frozenset({502, 503, 504})  # 502 and 504 come from a proxy
_LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def httpx_options(address: Endpoint) -> dict[str, Any]:
    """Return the arguments of an `httpx` client, synchronous or asynchronous."""
    url = urlsplit(address.url)
    is_local = url.scheme == "http" and url.hostname in _LOCAL_HOSTS
    token = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
    return {
        "base_url": address.url,
        "headers": {"User-Agent": "shadowprice-client", "Accept": "application/json", **token},
        "timeout": DEFAULT_TIMEOUT_SECONDS,
        "follow_redirects": False,  # a redirect could leak the token
        "trust_env": not is_local,  # don't use a proxy to reach this machine
        # Without certificate authorities, whose loading takes longer than a local call.
        "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_local else True,
    }


def request(
    call: ApiCall[Any], timeout: float | None, read_archive: Callable[[ApiCall[Any]], Any]
) -> dict[str, Any]:
    """Return the arguments of an `httpx` request; raise `InputError` if the body can't be JSON.

    ``timeout`` in seconds replaces the call's, unless it is None. ``read_archive`` returns an
    iterator over the bytes of the call's archive.
    """
    arguments: dict[str, Any] = {
        "method": call.method,
        "url": call.path,
        "params": call.parameters,
        "headers": dict(call.headers),
        "timeout": DEFAULT_TIMEOUT_SECONDS + call.extra_seconds if timeout is None else timeout,
    }
    if call.archive is not None:
        arguments["content"] = read_archive(call)
    if call.body is None:
        return arguments
    if problem := find_unsendable(call.body):
        raise InputError(Fault(*problem))
    return {**arguments, "json": call.body}


def read_pieces(call: ApiCall[Any]) -> Iterator[bytes]:
    """Yield the archive of a call in pieces."""
    assert call.archive is not None
    call.archive.file.seek(0)
    position = 0
    while piece := call.archive.file.read(PIECE_BYTES):
        yield piece
        position += len(piece)
        if call.sent is not None:
            call.sent(position)


async def aread_pieces(call: ApiCall[Any]) -> AsyncIterator[bytes]:
    """Yield the archive of a call in pieces, for an asynchronous client."""
    for piece in read_pieces(call):
        yield piece


def parse_response(response: httpx.Response, call: ApiCall[T]) -> T:
    """Parse a response; raise an error for a refusal, or if another program responded."""
    if not response.is_success:
        error = to_service_error(response)
        if call.may_be_absent and error.code == "not-found":
            return cast(T, None)
        raise error
    try:
        return call.read(response.content)
    except ValueError as error:
        raise _foreign_response(response) from error


def stream_request(after: int | None) -> dict[str, Any]:
    """Return the arguments of an `httpx` request for the event stream after an event."""
    return {
        "method": "GET",
        "url": "/v1/events",
        "params": {} if after is None else {"after": after},
        "headers": {"Accept": "text/event-stream"},
        "timeout": httpx.Timeout(10.0, read=STREAM_READ_TIMEOUT_SECONDS),
    }


def check_stream(response: httpx.Response) -> None:
    """Raise `ServiceUnreachableError` if a response isn't an event stream."""
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
    """Return a connection error with a hint for the user; ``call`` is None for the event stream."""
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


class Attempts:
    """The failed attempts of a call; ``error`` is the error to raise if no attempt succeeds."""

    def __init__(self, call: ApiCall[Any], address: Endpoint) -> None:
        self._call = call
        self._address = address
        self._last: Exception | None = None
        self._unanswered: Exception | None = None  # of a submission that may have taken effect

    @property
    def error(self) -> Exception:
        """The error of an attempt that may have taken effect, or else of the last attempt."""
        error = self._unanswered or self._last
        assert error is not None  # an attempt was made
        return error

    def record_failure(self, error: Exception) -> None:
        """Record a failed attempt; raise its error if a retry can't succeed."""
        if isinstance(error, httpx.HTTPError | httpx.InvalidURL):
            self._last = to_unreachable_error(self._address, error, self._call)
            self._last.__cause__ = error
            if self._call.is_submission and may_have_arrived(error):
                self._unanswered = self._last
        elif is_retryable(error):
            self._last = error
        else:
            raise error


def retry_delays(call: ApiCall[Any], retry: float) -> Iterator[float]:
    """Yield the seconds to wait before each attempt; retries end after ``retry`` seconds."""
    yield 0.0
    deadline = time.monotonic() + (retry if call.repeatable else 0.0)
    for pause in reconnect_delays():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return
        yield min(pause, remaining)


def is_retryable(error: Exception) -> bool:
    """Return whether a retry may succeed, because the service restarts or is taken over."""
    return isinstance(error, ServiceUnreachableError) or (
        isinstance(error, ServiceError) and error.status in _RETRYABLE_STATUSES
    )


# ------------------------------------------------------------------ events

MAX_EVENT_CHARS: Final = 8 << 20  # maximum characters of one event


@dataclass(slots=True)
class SseDecoder:
    """Parses the lines of an event stream (server-sent events) into events."""

    last: int | None = None  # number of the last event, after which the stream can be resumed
    # Of the incomplete event:
    _number: int | None = None
    _kind: str = ""
    _data: list[str] = field(default_factory=list)
    _size: int = 0  # characters of the data

    def feed(self, line: str) -> Iterator[rest.Event]:
        """Yield an event if the line completes one; raise `ValueError` for invalid data."""
        if not line:
            if self._data:
                record = json.loads("\n".join(self._data))
                if not isinstance(record, dict):
                    raise ValueError("an event's data is not an object")
                if self._number is None:  # the event isn't stored, so the record is its data
                    record = {"kind": self._kind, "data": record}
                else:
                    self.last = self._number
                yield rest.Event.model_validate({"kind": self._kind, **record, "id": self._number})
            elif self._number is not None:  # a number without data only sets where to resume
                self.last = self._number
            self.discard()
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._size += len(value)
                if self._size > MAX_EVENT_CHARS:
                    raise ValueError("an event is longer than any should be")
                self._data.append(value)
            case "event":
                self._kind = value
            case "id" if value.isascii() and value.isdigit():
                self._number = int(value)

    def discard(self) -> None:
        """Discard the incomplete event, because the stream broke or the event is complete."""
        self._number, self._kind, self._size = None, "", 0
        self._data.clear()


def reconnect_delays() -> Iterator[float]:
    """Yield the backoff before each retry: 0.5 s, doubled up to 30 s."""
    delay = 0.5
    while True:
        yield delay
        delay = min(2 * delay, 30.0)


# ------------------------------------------------------------------ methods


class _Method(Generic[P, T]):
    """A call as a method of both clients, which sends it and returns the parsed response."""

    def __init__(self, call: Callable[P, ApiCall[T]]) -> None:
        self._call = call

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, ApiCall[T]]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Callable[P, Any]:
        return self._call if client is None else _sending(self._call, client.send)


class _Entries(Protocol[T_co]):
    """A page of a listing."""

    @property
    def entries(self) -> Sequence[T_co]: ...
    @property
    def next(self) -> int | None: ...


class _Listing(Generic[P, T]):
    """A call for a page as a method of both clients, which yields the entries of all pages."""

    def __init__(self, call: Callable[P, ApiCall[_Entries[T]]]) -> None:
        self._call = call

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, ApiCall[_Entries[T]]]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type) -> Callable[P, Any]:
        return self._call if client is None else _sending(self._call, client.send_pages)


def _sending(call: Callable[P, Any], send: Callable[[Any], Any]) -> Callable[P, Any]:
    @functools.wraps(call)
    def method(*args: P.args, **options: P.kwargs) -> Any:
        return send(call(*args, **options))

    return method


class _Methods:
    """The common methods of both clients: each sends one call, or one call for each page."""

    _http: Any
    _http_class: Any

    submit = _Method(calls.submit)
    submit_many = _Method(calls.submit_many)
    job = _Method(calls.job)
    jobs = _Listing(calls.jobs)
    page_of_jobs = _Method(calls.page_of_jobs)
    cancel = _Method(calls.cancel)
    resubmit = _Method(calls.resubmit)
    revise = _Method(calls.revise)
    explain = _Method(calls.explain)
    job_events = _Listing(calls.job_events)
    generations = _Method(calls.generations)
    progress = _Method(calls.progress)
    logs = _Method(calls.logs)
    quote = _Method(calls.quote)

    prices = _Method(calls.prices)
    servers = _Method(calls.servers)
    add_servers = _Method(calls.add_servers)
    drain = _Method(calls.drain)
    cordon = _Method(calls.cordon)
    uncordon = _Method(calls.uncordon)
    change_server = _Method(calls.change_server)
    remove_server = _Method(calls.remove_server)

    tenants = _Method(calls.tenants)
    put_tenant = _Method(calls.put_tenant)
    remove_budget = _Method(calls.remove_budget)
    grant = _Method(calls.grant)
    statement = _Method(calls.statement)
    entries = _Listing(calls.entries)
    remove_tenant = _Method(calls.remove_tenant)

    tokens = _Method(calls.tokens)
    create_token = _Method(calls.create_token)
    revoke_token = _Method(calls.revoke_token)
    decisions = _Listing(calls.decisions)
    start_whatif = _Method(calls.start_whatif)
    whatif = _Method(calls.whatif)
    whatifs = _Method(calls.whatifs)
    cancel_whatif = _Method(calls.cancel_whatif)
    comparison = _Method(calls.comparison)
    compared_jobs = _Listing(calls.compared_jobs)
    service = _Method(calls.service)
    timespan = _Method(calls.timespan)
    change_timespan = _Method(calls.change_timespan)

    def __init__(
        self, server: str | Endpoint | None = None, token: str | None = None, *, retry: float = 0.0
    ) -> None:
        address = server if isinstance(server, Endpoint) else resolve_endpoint(server)
        if token is not None:
            address = Endpoint(address.url, normalize_token(token, "token"))
        self.address = address
        self.retry = retry
        self._timeout: float | None = None
        self._http = self._http_class(**httpx_options(address))

    def hurry(self, seconds: float = 0.5) -> None:
        """Set a short timeout in seconds for all further calls."""
        self._timeout = seconds


# ------------------------------------------------------------------ clients


class Client(_Methods):
    """Sends requests to a live service.

    ``server`` is a name from ``shadowprice login``, or a URL. The default is
    ``SHADOWPRICE_SERVER``, then the server of the last login. ``token`` replaces the stored token
    and ``SHADOWPRICE_TOKEN``.

    A call is retried for up to ``retry`` seconds while the service is unreachable or another
    instance takes over. Calls that aren't idempotent are never retried.

    Every method raises `ServiceError` if the service refuses the request, and
    `ServiceUnreachableError` if it doesn't respond. An unknown server is an `InputError`.
    """

    _http: httpx.Client
    _http_class = httpx.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def send(self, call: ApiCall[T]) -> T:
        """Send a call of `shadowprice.client.calls`, with retries."""
        attempts = Attempts(call, self.address)
        for pause in retry_delays(call, self.retry):
            time.sleep(pause)
            try:
                response = self._http.request(**request(call, self._timeout, read_pieces))
                return parse_response(response, call)
            except Exception as error:
                attempts.record_failure(error)
        raise attempts.error

    def send_pages(self, call: ApiCall[_Entries[T]]) -> Iterator[T]:
        """Send a call for a page, and calls for all following pages; yield their entries."""
        while True:
            page = self.send(call)
            yield from page.entries
            if page.next is None:
                return
            call = call.next_page(page.next)

    def upload(
        self,
        archive: Archive,
        *,
        tenant: str | None = None,
        sent: Callable[[int], None] | None = None,
    ) -> rest.Upload:
        """Store an archive of files for jobs, unless the service has it.

        `shadowprice.uploads.packing.temporary_archive` yields the archive. Jobs name its ``digest``
        in ``run.upload``. Operators give the ``tenant`` of the jobs. ``sent`` is called with the
        number of bytes sent so far.
        """
        if (present := self.send(calls.upload(archive.digest, tenant))) is not None:
            return present
        return self.send(calls.send_upload(archive, tenant, sent))

    def follow_logs(
        self, name: str, *, process: str = "worker-0", start: int | None = None
    ) -> Iterator[rest.LogChunk]:
        """Yield a process's output, generation after generation, until the job is closed.

        ``start`` is the first byte; None starts with the last lines of the current output.
        """
        name = f"id:{self.job(name).id}"  # another job may get the name meanwhile
        read = functools.partial(calls.log_chunk, name, process)
        generation: int | None = None
        while True:
            chunk = self.send(read(generation, start))
            if chunk is not None:
                generation, start = chunk.generation, chunk.end
                if chunk.text:
                    yield chunk
                    continue
            if chunk is None or chunk.complete:
                job = self.job(name)
                if generation is not None and job.generation > generation:
                    next_chunk = self.send(read(generation + 1, 0))
                    # A generation that never started is skipped once a later one exists.
                    if next_chunk is not None or job.generation > generation + 1:
                        generation, start = generation + 1, 0
                        continue
                if not job.open:
                    return
            time.sleep(1.0)

    def wait(self, name: str, *, timeout: float | None = None) -> rest.Job:
        """Return a job once it is closed; raise `TimeoutError` after ``timeout`` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause = 0.1
        reference = name
        while (job := self.job(reference)).open:
            reference = f"id:{job.id}"  # another job may get the name meanwhile
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"job {name!r} is still {job.state}")
            time.sleep(min(pause, remaining))
            pause = min(pause * 1.5, 2.0)
        return job

    def events(self, after: int | None = None, *, reconnect: bool = True) -> Iterator[rest.Event]:
        """Yield events as they happen, without end.

        ``after`` is the number of the event to resume after; None starts with the next event. With
        ``reconnect``, a stream that broke is resumed without gaps.
        """
        decoder = SseDecoder(after)
        delays = reconnect_delays()
        has_connected = False  # if the first connection fails, the address may be wrong
        while True:
            try:
                with self._http.stream(**stream_request(decoder.last)) as response:
                    if not response.is_success:
                        response.read()
                        raise to_service_error(response)
                    check_stream(response)
                    has_connected = True
                    for line in response.iter_lines():
                        for event in decoder.feed(line):
                            delays = reconnect_delays()
                            yield event
            except httpx.HTTPError as error:
                if not (reconnect and has_connected):
                    raise to_unreachable_error(self.address, error) from error
            except Exception as error:
                if not (reconnect and has_connected and is_retryable(error)):
                    raise
            if not reconnect:
                return
            decoder.discard()
            time.sleep(next(delays))


class AsyncClient(_Methods):
    """Sends requests to a live service without blocking: `Client` with coroutines as methods.

    Lists and streams are asynchronous iterators.
    """

    _http: httpx.AsyncClient
    _http_class = httpx.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def send(self, call: ApiCall[T]) -> T:
        """Send a call of `shadowprice.client.calls`, with retries."""
        attempts = Attempts(call, self.address)
        for pause in retry_delays(call, self.retry):
            await asyncio.sleep(pause)
            try:
                arguments = request(call, self._timeout, aread_pieces)
                return parse_response(await self._http.request(**arguments), call)
            except Exception as error:
                attempts.record_failure(error)
        raise attempts.error

    async def send_pages(self, call: ApiCall[_Entries[T]]) -> AsyncIterator[T]:
        """Send a call for a page, and calls for all following pages; yield their entries."""
        while True:
            page = await self.send(call)
            for entry in page.entries:
                yield entry
            if page.next is None:
                return
            call = call.next_page(page.next)

    async def upload(
        self,
        archive: Archive,
        *,
        tenant: str | None = None,
        sent: Callable[[int], None] | None = None,
    ) -> rest.Upload:
        """Store an archive of files for jobs, unless the service has it."""
        if (present := await self.send(calls.upload(archive.digest, tenant))) is not None:
            return present
        return await self.send(calls.send_upload(archive, tenant, sent))

    async def follow_logs(
        self, name: str, *, process: str = "worker-0", start: int | None = None
    ) -> AsyncIterator[rest.LogChunk]:
        """Yield a process's output, generation after generation, until the job is closed."""
        name = f"id:{(await self.job(name)).id}"  # another job may get the name meanwhile
        read = functools.partial(calls.log_chunk, name, process)
        generation: int | None = None
        while True:
            chunk = await self.send(read(generation, start))
            if chunk is not None:
                generation, start = chunk.generation, chunk.end
                if chunk.text:
                    yield chunk
                    continue
            if chunk is None or chunk.complete:
                job = await self.job(name)
                if generation is not None and job.generation > generation:
                    next_chunk = await self.send(read(generation + 1, 0))
                    if next_chunk is not None or job.generation > generation + 1:
                        generation, start = generation + 1, 0
                        continue
                if not job.open:
                    return
            await asyncio.sleep(1.0)

    async def wait(self, name: str, *, timeout: float | None = None) -> rest.Job:
        """Return a job once it is closed; raise `TimeoutError` after ``timeout`` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause = 0.1
        reference = name
        while (job := await self.job(reference)).open:
            reference = f"id:{job.id}"  # another job may get the name meanwhile
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"job {name!r} is still {job.state}")
            await asyncio.sleep(min(pause, remaining))
            pause = min(pause * 1.5, 2.0)
        return job

    async def events(
        self, after: int | None = None, *, reconnect: bool = True
    ) -> AsyncIterator[rest.Event]:
        """Yield events as they happen, without end."""
        decoder = SseDecoder(after)
        delays = reconnect_delays()
        has_connected = False  # if the first connection fails, the address may be wrong
        while True:
            try:
                async with self._http.stream(**stream_request(decoder.last)) as response:
                    if not response.is_success:
                        await response.aread()
                        raise to_service_error(response)
                    check_stream(response)
                    has_connected = True
                    async for line in response.aiter_lines():
                        for event in decoder.feed(line):
                            delays = reconnect_delays()
                            yield event
            except httpx.HTTPError as error:
                if not (reconnect and has_connected):
                    raise to_unreachable_error(self.address, error) from error
            except Exception as error:
                if not (reconnect and has_connected and is_retryable(error)):
                    raise
            if not reconnect:
                return
            decoder.discard()
            await asyncio.sleep(next(delays))
