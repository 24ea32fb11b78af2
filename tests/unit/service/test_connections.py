"""Limits before authentication: connections, their duration, and the size of a head."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from shadowprice.service import connections
from shadowprice.service.connections import (
    LOG_INTERVAL_SECONDS,
    MAX_HEADER_BYTES,
    MAX_LOGGED_ADDRESSES,
    RESERVED_FILES,
    Connection,
    ErrorLimit,
    max_connections,
)
from tests.support.waiting import WAIT_LIMIT_SECONDS


@pytest.fixture(autouse=True)
def fresh_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the limit of logged errors: all tests use one address."""
    monkeypatch.setattr(connections, "_limit", ErrorLimit())


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """Respond with the number of bytes of a body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"read {size}".encode()})


@asynccontextmanager
async def listening(
    most: int = 10, header_seconds: float = 10.0, answers: Any = answering
) -> AsyncIterator[int]:
    """Listen as the service does; yield the port."""
    config = uvicorn.Config(answers, log_config=None, lifespan="off", ws="none")
    config.load()
    state = ServerState()

    def made() -> Connection:
        return Connection(
            max_connections=most,
            header_seconds=header_seconds,
            config=config,
            server_state=state,
            app_state={},
        )

    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def receive_all(port: int, *pieces: bytes) -> bytes:
    """Send parts, and return everything that comes until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_LIMIT_SECONDS):
            return await reader.read()
    except ConnectionError:
        return b"reset"
    finally:
        writer.close()


BEGUN = b"POST / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
CHUNKED = BEGUN + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (BEGUN + b"X: ", b"a" * 8_192),
        (BEGUN, b"X: a\r\n" * 1_024),
        (b"GET /", b"a" * 8_192),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"X: a\r\n" * 1_024),
        (CHUNKED + b"1", b";a=" + b"a" * 8_192),
    ],
    ids=["a header", "headers", "the address", "trailers", "an extension of a chunk"],
)
def test_headers_trailers_and_chunk_extensions_are_limited(begun: bytes, piece: bytes) -> None:
    async def scenario() -> bytes:
        async with listening() as port:
            return await receive_all(port, begun, *[piece] * (4 * MAX_HEADER_BYTES // len(piece)))

    # The response may be lost if more comes than is read; the connection must end.
    assert asyncio.run(scenario()).startswith((b"HTTP/1.1 431", b"reset")) or b"Trans" in begun


def test_unread_body_ends_with_the_connection() -> None:
    async def refusing(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    async def scenario() -> None:
        async with listening(header_seconds=0.2, answers=refusing) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 401")
            async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                while not writer.is_closing() and not reader.at_eof():
                    writer.write(b"a")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.01):
                            await reader.read(100)
            writer.close()

    with suppress(ConnectionError):
        asyncio.run(scenario())


def test_a_slow_body_of_a_pipelined_request_is_read_to_its_end() -> None:
    """The response to the first request comes while the second one's body does."""

    async def scenario() -> None:
        async with listening(header_seconds=1.0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            length = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n"
            writer.write(length + b"aa" + length + b"a")
            async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                assert b"read 2" in await reader.readuntil(b"read 2")
                await asyncio.sleep(1.5)  # longer than a header may take
                writer.write(b"a")
                assert b"read 2" in await reader.readuntil(b"read 2")
            writer.close()

    asyncio.run(scenario())


def test_long_head_and_fragmented_body_are_accepted() -> None:
    async def scenario() -> tuple[bytes, bytes]:
        async with listening() as port:
            large = await receive_all(
                port, BEGUN + b"X: " + b"a" * (MAX_HEADER_BYTES // 2) + b"\r\n\r\n"
            )
            small = await receive_all(port, CHUNKED, *[b"1\r\na\r\n" * 999] * 40, b"0\r\n\r\n")
            return large, small

    large, small = asyncio.run(scenario())
    assert b" 200 " in large
    assert b"read 39960" in small


def test_connection_above_the_limit_is_closed() -> None:
    async def scenario() -> None:
        async with listening(most=2) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            await asyncio.sleep(0.01)
            assert await receive_all(port, BEGUN + b"\r\n") in {b"", b"reset"}
            held[0][1].close()
            await asyncio.sleep(0.01)
            assert b" 200 " in await receive_all(port, BEGUN + b"\r\n")
            held[1][1].close()

    asyncio.run(scenario())


@pytest.mark.parametrize("sent", [b"", BEGUN, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + BEGUN])
def test_silent_connection_times_out(sent: bytes) -> None:
    async def scenario() -> bytes:
        async with listening(header_seconds=1.0) as port:
            return await receive_all(port, sent)

    assert asyncio.run(scenario()).count(b" 200 ") == sent.count(b"GET")


@pytest.mark.parametrize("answered", [True, False])
def test_only_errors_of_the_service_are_logged(
    caplog: pytest.LogCaptureFixture, answered: bool
) -> None:
    async def failing(_scope: Any, _receive: Any, _send: Any) -> None:
        raise LookupError("a fault of the service")

    async def scenario() -> None:
        async with listening(answers=answering if answered else failing) as port:
            await receive_all(port, b"no request\r\n\r\n")
            await receive_all(
                port, BEGUN.replace(b"close", b"Upgrade, close") + b"Upgrade: websocket\r\n\r\n"
            )

    asyncio.run(scenario())
    assert ["service" in str(record.exc_info) for record in caplog.records] == [True] * (
        not answered
    )


def test_connection_limit_reserves_file_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        most = max_connections()
        assert 0 < most <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("pipelined", [1, 3])
def test_response_to_a_reset_connection_is_dropped(
    pipelined: int, caplog: pytest.LogCaptureFixture
) -> None:
    uvloop = pytest.importorskip("uvloop")  # raises if asyncio drops what is written

    async def scenario() -> None:
        met, gone = asyncio.Event(), asyncio.Event()
        answered: list[Any] = []

        async def late(scope: Any, receive: Any, send: Any) -> None:
            met.set()
            async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                await gone.wait()
            await answering(scope, receive, send)
            answered.append(scope)

        async with asyncio.timeout(WAIT_LIMIT_SECONDS), listening(answers=late) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * pipelined)
            await met.wait()
            writer.transport.abort()
            await asyncio.sleep(0.1)  # the server notices the reset
            gone.set()
            while not answered:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert len(answered) == 1  # the pipelined request has no reader

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
    assert [record.getMessage() for record in caplog.records] == []


def test_errors_are_logged_once_a_minute_for_each_address() -> None:
    now = 0.0
    limit = ErrorLimit(lambda: now)
    assert [limit.admit("one") for _ in range(4)] == [0, None, None, None]
    assert limit.admit("two") == 0
    now = LOG_INTERVAL_SECONDS
    assert limit.admit("one") == 3
    now *= 10
    admitted = [limit.admit(f"10.0.{number // 256}.{number % 256}") for number in range(1_000)]
    assert admitted.count(None) == 1_000 - MAX_LOGGED_ADDRESSES


def test_failing_handler_log_is_rate_limited(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("a bug")

    async def scenario() -> None:
        async with listening(answers=failing) as port:
            for _ in range(20):
                assert b" 500 " in await receive_all(port, b"GET / HTTP/1.0\r\n\r\n")

    asyncio.run(scenario())
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert errors[0].exc_info is not None
