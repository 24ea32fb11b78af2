"""The server process: listening socket, uvicorn, and the service's lifetime."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import uvicorn
from fastapi import FastAPI

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.service.api import create_app
from shadowprice.service.connections import Connection, max_connections
from shadowprice.service.service import Service
from shadowprice.service.settings import ServiceSettings

log = logging.getLogger("shadowprice.service")


def bind(settings: ServiceSettings) -> socket.socket:
    """Return a socket that listens on the settings' address; raise `InputError` if it can't."""
    location = f"--listen {settings.host}:{settings.port}"
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # At once, because with SO_REUSEADDR two processes can bind an address until one listens.
        listener.listen(2048)
    except (UnicodeError, OSError) as error:  # UnicodeError: a part is empty or too long
        if listener is not None:
            listener.close()
        message, hint = "this machine has no such address", "use 127.0.0.1"
        if isinstance(error, OSError) and not isinstance(error, socket.gaierror):
            messages = {
                errno.EADDRINUSE: ("the port is in use", "stop what listens there, or use :0"),
                errno.EACCES: ("this user may not use the port", "use a port from 1024 on"),
                errno.EADDRNOTAVAIL: (message, hint),
            }
            other = (f"cannot listen: {error.strerror}", "")
            message, hint = messages.get(error.errno or 0, other)
        raise InputError(Fault(location, message, hint)) from error
    return listener


def socket_url(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:  # wildcards aren't valid in a URL
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn server that ends the event streams at shutdown."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the event streams, which uvicorn would wait for, then shut down."""
        self._service.close_streams()
        await super().shutdown(sockets)


def serve(
    settings: ServiceSettings, on_ready: Callable[[str], None], service: Service | None = None
) -> None:
    """Serve until interrupted; call ``on_ready`` with the URL once requests are answered."""
    if not settings.loopback:
        log.warning(
            "listening on %s: tokens travel unencrypted; put a proxy with TLS in front",
            settings.host,
        )
    listener = bind(settings)
    failures: list[BaseException] = []
    try:
        service = service or Service(settings)
        try:
            writes = service.open()
        except BaseException:
            service.store.close()
            raise
        app = create_app(service)
        app.router.lifespan_context = _lifespan(service, writes, failures, on_ready)
        config = uvicorn.Config(
            app,
            http=partial(Connection, max_connections=max_connections()),  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=10,
            timeout_keep_alive=30,
        )
        server = _Server(config, service)

        def request_exit() -> None:
            server.should_exit = True

        service.attach_server(socket_url(listener), request_exit)
        with _disable_full_collections():
            server.run(sockets=[listener])
    finally:
        listener.close()
    if failures:
        raise failures[0]
    if service.failed:
        raise ShadowpriceError("the service failed; see its log")


FULL_GC_INTERVAL_SECONDS: Final = 600.0  # seconds between two full garbage collections


@contextmanager
def _disable_full_collections() -> Iterator[None]:
    """Disable automatic collections of the oldest generation, which would block requests.

    `_collect` runs them at long intervals. Objects that exist at the start are never examined.
    """
    thresholds, frozen_before = gc.get_threshold(), gc.get_freeze_count()
    if not frozen_before:  # otherwise `unfreeze` below would also unfreeze others' objects
        gc.collect()
        gc.freeze()
    gc.set_threshold(3_000, 10, 1_000_000)  # the last threshold is never reached
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not frozen_before:
            gc.unfreeze()


async def _collect() -> None:
    while True:
        await asyncio.sleep(FULL_GC_INTERVAL_SECONDS)
        gc.collect()


def _lifespan(
    service: Service, writes: bool, failures: list[BaseException], on_ready: Callable[[str], None]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        collector = asyncio.create_task(_collect())
        try:
            if writes:
                await service.start()
            else:
                log.warning("another instance is the leader; this one is a standby")
                service.start_standby()
            # The socket already listens, so connections are answered from now on.
            loop.call_later(0, on_ready, service.address)
        except BaseException as error:
            failures.append(error)
            await service.stop()
            # `serve` raises the error; here, uvicorn would log it as a failure of the web server.
            service.request_exit()
            yield
            return
        try:
            yield
        finally:
            collector.cancel()
            await service.stop()

    return lifespan
