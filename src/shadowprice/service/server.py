"""Serving: a socket, uvicorn on it, and the service behind."""

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
from shadowprice.service.connections import Connection, most_connections
from shadowprice.service.service import Service
from shadowprice.service.settings import Settings

log = logging.getLogger("shadowprice.service")


def bind(settings: Settings) -> socket.socket:
    """Return a socket on the address of the settings; nobody is answered yet.

    Raises
    ------
    InputError
        If it cannot be had.
    """
    place = f"--listen {settings.host}:{settings.port}"
    made: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        # Bound alone, two could share the address until one of them listens.
        made.listen(2048)
    except OSError as error:
        if made is not None:
            made.close()
        messages = {
            errno.EADDRINUSE: ("the port is in use", "stop what listens there, or give :0"),
            errno.EACCES: ("the port is not allowed", "give one from 1024 on"),
            errno.EADDRNOTAVAIL: ("this machine has no such address", "give 127.0.0.1"),
        }
        message, mend = messages.get(error.errno or 0, (f"cannot listen: {error.strerror}", ""))
        if isinstance(error, socket.gaierror):
            message, mend = "there is no such address", "give 127.0.0.1"
        raise InputError(Fault(place, message, mend)) from error
    return made


def address_of(made: socket.socket) -> str:
    """Return the address of a socket as a URL."""
    host, port = made.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:  # told, not listened on
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn, whose open streams end when it is told to."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams, which nobody else would, then everything else in order."""
        driver = self._service.driver
        if driver is not None:
            driver.hub.close()
        await super().shutdown(sockets)


def serve(settings: Settings, told: Callable[[str], None], service: Service | None = None) -> None:
    """Serve until interrupted.

    Parameters
    ----------
    settings : Settings
        What to serve.
    told : callable
        Told the address once requests are answered.
    service : Service, optional
        In place of one made from the settings.

    Raises
    ------
    InputError
        If what it was started with is wrong; nothing was changed.
    ShadowpriceError
        If it had to end.
    """
    if not settings.loopback:
        log.warning(
            "listening on %s: tokens travel unencrypted; put a proxy with TLS in front",
            settings.host,
        )
    made = bind(settings)
    failures: list[BaseException] = []
    try:
        service = service or Service(settings)
        service.address = address_of(made)
        try:
            writes = service.open()
        except BaseException:
            service.store.close()
            raise
        app = create_app(service)
        app.router.lifespan_context = _lifespan(service, writes, failures, told)
        config = uvicorn.Config(
            app,
            http=partial(Connection, most=most_connections()),  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=10,
            timeout_keep_alive=30,
        )
        server = _Server(config, service)

        def end() -> None:
            server.should_exit = True

        service.end = end
        with _few_collections():
            server.run(sockets=[made])
    finally:
        made.close()
    if failures:
        raise failures[0]
    if service.failed:
        raise ShadowpriceError("the service could not go on; its log tells why")


COLLECTED: Final = 600.0
"""Seconds between two collections of all garbage that reference counts do not find."""


@contextmanager
def _few_collections() -> Iterator[None]:
    """Let the collector look at young objects only, and at few at once: nobody is answered then.

    All are gone through every `COLLECTED` seconds, by `_collect`: with all open jobs that takes
    long. What a program around the service has set aside already stays so.
    """
    known, around = gc.get_threshold(), gc.get_freeze_count()
    if not around:
        gc.collect()
        gc.freeze()
    gc.set_threshold(3_000, 10, 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*known)
        if not around:
            gc.unfreeze()


async def _collect() -> None:
    while True:
        await asyncio.sleep(COLLECTED)
        gc.collect()


def _lifespan(
    service: Service,
    writes: bool,
    failures: list[BaseException],
    told: Callable[[str], None],
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        collecting = asyncio.create_task(_collect())
        try:
            if writes:
                await service.start()
            else:
                log.warning("another instance writes; this one stands by")
                service.wait_for_turn()
            # The socket listens already: whoever connects from here on is answered.
            loop.call_later(0, told, service.address)
        except BaseException as error:
            failures.append(error)
            await service.stop()
            service.end()  # raised here, it would be logged as a failure of the web server
            yield
            return
        try:
            yield
        finally:
            collecting.cancel()
            await service.stop()

    return lifespan
