"""Client of the bridge process, and functions of the Ray executor that need no Ray library."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from shadowprice.executors.contract import ExecutorError

_ROOT: Final = "shadowprice"
_MODULES: Final = (  # the supervisor and its imports
    "executors/supervision/agent.py",
    "executors/supervision/cgroups.py",
    "executors/supervision/children.py",
    "executors/generations/disk.py",
    "executors/generations/generation.py",
    "executors/generations/logs.py",
    "executors/supervision/supervisor.py",
    "executors/generations/outcome.py",
)
_PACKAGES: Final = ("", "executors/", "executors/generations/", "executors/supervision/")

log = logging.getLogger("shadowprice.executors")
PROBE_TIMEOUT_SECONDS: Final = 5.0
MAX_CONNECT_ATTEMPTS: Final = 3  # because some Ray Client servers crash; see `is_transient`
MAX_RESPONSE_BYTES: Final = 32 << 20  # maximum bytes of a response


@cache
def source_files() -> dict[str, str]:
    """Return the files that a node needs, by path; they import only the standard library."""
    # Packages are empty, because their own files may import modules that the nodes lack.
    texts = {f"{_ROOT}/{package}__init__.py": "" for package in _PACKAGES}
    root = files(_ROOT)
    for module in _MODULES:
        texts[f"{_ROOT}/{module}"] = root.joinpath(module).read_text(encoding="utf-8")
    return texts


@cache
def bundle_digest() -> str:
    """Return a digest of `source_files`."""
    content = "\0".join(f"{path}\0{text}" for path, text in sorted(source_files().items()))
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed: some of Ray Client's servers crash as they start."""
    return "Starting Ray client server failed" in str(error)


def parse_endpoint(address: str) -> tuple[str, int] | None:
    """Return host and port of ``HOST:PORT`` or ``ray://HOST:PORT``, None otherwise."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def probe(address: str) -> str:
    """Return why an address can't be reached, else an empty text; Ray would retry for a minute."""
    target = parse_endpoint(address)
    if target is None:
        return ""
    try:
        with socket.create_connection(target, PROBE_TIMEOUT_SECONDS):
            return ""
    except TimeoutError:
        return "it does not answer"
    except OSError as error:
        return error.strerror or str(error)


def last_head_address() -> str:
    """Return the address of this machine's last cluster, which may have crashed; else empty."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # Ray's own rule
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class BridgeClient:
    """A bridge process and its connection; ``on_event`` receives each event, ``log`` its stderr."""

    def __init__(self, log: Path, on_event: Callable[[dict[str, Any]], None]) -> None:
        self._log = log
        self._on_event = on_event
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}

    @property
    def is_running(self) -> bool:
        """Whether the bridge can receive requests."""
        return self._reading is not None and not self._reading.done()

    async def open(self, lock_descriptor: int) -> None:
        """Start the bridge; it holds the executor's lock while it lives."""
        with self._log.open("wb") as log:  # replaces the previous bridge's log
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "shadowprice.executors.ray.bridge",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
                start_new_session=True,  # Ctrl-C must only reach the service
                pass_fds=(lock_descriptor,),
                limit=MAX_RESPONSE_BYTES,
            )
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                message = json.loads(line)
                if "event" in message:
                    self._on_event(message)
                    continue
                future = self._pending.pop(message["id"], None)
                if future is None or future.done():
                    continue
                if "error" in message:
                    future.set_exception(BridgeError(message["error"], message["kind"]))
                else:
                    future.set_result(message["is"])
        except Exception:  # the executor's resync starts another bridge
            log.exception("failed to process a message of the Ray bridge")
        finally:
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(BridgeError("the connection to Ray was lost", "Closed"))
            self._pending.clear()

    async def call(self, operation: str, limit: float | None = None, **arguments: Any) -> Any:
        """Send a request and return its result; raise `BridgeError` after ``limit`` seconds."""
        if not self.is_running or self._process is None or self._process.stdin is None:
            raise BridgeError("not connected to Ray", "Closed")
        number = next(self._numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        request = json.dumps({"id": number, "do": operation, **arguments})
        try:
            self._process.stdin.write(request.encode() + b"\n")
            await self._process.stdin.drain()
            async with asyncio.timeout(limit):  # `wait_for` can swallow a cancellation
                return await future
        except TimeoutError:
            raise BridgeError(f"no answer within {limit:g} s", "Timeout") from None
        except OSError as error:
            raise BridgeError("the connection to Ray was lost", "Closed") from error
        finally:
            self._pending.pop(number, None)

    async def close(self) -> None:
        """Kill the bridge and wait for its end."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    def last_output_line(self) -> str:
        """Return the last line of the bridge's log, for people."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


class BridgeError(ExecutorError):
    """A request failed; ``kind`` is the bridge's exception, ``Closed`` or ``Timeout``."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def is_actor_gone(self) -> bool:
        """Whether Ray reports that the actor has ended."""
        return self.kind == "ActorGoneError"
