"""A `VirtualExecutor` in another process: like a cluster, it outlives the services that use it.

`ExecutorHost` serves it on a Unix socket. A service loads `RemoteExecutor` from this file:
``serve --executor ./remote_executor.py:RemoteExecutor --executor-set socket=PATH``.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shadowprice.executors.contract import (
    ExecutorOptions,
    GenerationSpec,
    GenerationStatus,
    LogChunk,
    ObservedJob,
    Progressed,
    Receipt,
    Report,
    ServerInfo,
)
from shadowprice.executors.virtual import VirtualExecutor


async def _receive(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(4))
    return pickle.loads(await reader.readexactly(size))  # both ends are this program


async def _send(writer: asyncio.StreamWriter, value: object) -> None:
    content = pickle.dumps(value)
    writer.write(len(content).to_bytes(4) + content)
    await writer.drain()


class ExecutorHost:
    """Serves an executor on a Unix socket, to one service at a time."""

    def __init__(self, executor: VirtualExecutor, path: Path) -> None:
        self.executor = executor
        self._path = path
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ExecutorHost:
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # A killed service disconnects; the host cancels what is left when it closes.
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._respond(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            name, arguments = await _receive(reader)
            if name == "watch":
                await self.executor.close()  # ends the watch of a service that was killed
                async for report in self.executor.watch():
                    await _send(writer, report)
                return
            try:
                result = await getattr(self.executor, name)(*arguments)
            except KeyError as error:
                result = error
            await _send(writer, result)


class RemoteExecutor:
    """Executor of a service: forwards every call to an `ExecutorHost`."""

    capabilities = VirtualExecutor.capabilities

    def __init__(self, options: ExecutorOptions) -> None:
        self._path = options.settings["socket"]
        self._busy = asyncio.Lock()

    async def open(self) -> None:
        """Connect to the host."""
        self._reader, self._writer = await asyncio.open_unix_connection(self._path)

    async def close(self) -> None:
        """End `watch` and disconnect; jobs continue."""
        await self._call("close")
        self._writer.close()

    async def _call(self, name: str, *arguments: object) -> Any:
        async with self._busy:
            await _send(self._writer, (name, arguments))
            result = await _receive(self._reader)
        if isinstance(result, Exception):
            raise result
        return result

    async def set_servers(self, servers: Sequence[ServerInfo]) -> None:
        """Set the servers."""
        await self._call("set_servers", servers)

    async def start(self, spec: GenerationSpec) -> Receipt:
        """Start a generation."""
        receipt: Receipt = await self._call("start", spec)
        return receipt

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        """Stop a generation."""
        receipt: Receipt = await self._call("stop", command, job, generation, grace)
        return receipt

    async def list(self) -> tuple[GenerationStatus, ...]:
        """Return every generation that isn't forgotten."""
        statuses: tuple[GenerationStatus, ...] = await self._call("list")
        return statuses

    async def watch(self) -> AsyncIterator[Report]:
        """Yield reports until the executor is closed."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            await _send(writer, ("watch", ()))
            with suppress(asyncio.IncompleteReadError):
                while True:
                    yield await _receive(reader)
        finally:
            writer.close()

    async def acknowledge_end(self, job: str, generation: int) -> None:
        """Forget a generation whose end was recorded."""
        await self._call("acknowledge_end", job, generation)

    async def delete_job_data(self, job: str) -> None:
        """Remove a job's checkpoint."""
        await self._call("delete_job_data", job)

    async def logs(
        self,
        job: str,
        generation: int | None = None,
        process: str = "worker-0",
        *,
        start: int | None = None,
        most: int = 65_536,
    ) -> LogChunk:
        """Raise `KeyError`: simulated processes write no logs."""
        del start, most
        chunk: LogChunk = await self._call("logs", job, generation, process)
        return chunk

    async def observe(self) -> tuple[ObservedJob, ...]:
        """Return the generations that run."""
        observed: tuple[ObservedJob, ...] = await self._call("observe")
        return observed

    async def progress(self) -> Sequence[Progressed]:
        """Return the progress of running jobs."""
        reports: Sequence[Progressed] = await self._call("progress")
        return reports

    def unheard(self) -> frozenset[str]:
        """Return an empty set: every job can be queried."""
        return frozenset()
