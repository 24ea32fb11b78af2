"""The Ray executor: runs jobs as actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import sys
import time
from collections.abc import Set
from pathlib import Path
from typing import Any, Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.executors import contract
from shadowprice.executors.background import run_all
from shadowprice.executors.generations.base import MAX_CHUNK_BYTES, DiskExecutor, read_chunk
from shadowprice.executors.generations.disk import create_file, make_private
from shadowprice.executors.generations.generation import Phase
from shadowprice.executors.ray.bridge_client import (
    MAX_CONNECT_ATTEMPTS,
    BridgeClient,
    BridgeError,
    bundle_digest,
    is_transient,
    parse_endpoint,
    probe,
    source_files,
)
from shadowprice.executors.ray.controller import RayGenerationController
from shadowprice.executors.ray.launch_plan import (
    build_launch_plan,
    find_duplicate_names,
    list_nodes,
)
from shadowprice.executors.ray.session import RayGeneration, RaySession, read_settings
from shadowprice.uploads.unpacking import remove_unpacked

log = logging.getLogger("shadowprice.executors")

RESYNC_SECONDS: Final = 1.0  # seconds between resyncs of nodes and processes
CONNECT_TIMEOUT_SECONDS: Final = 60.0  # timeout in seconds of Ray's connection setup
PROGRESS_FETCH_TIMEOUT_SECONDS: Final = 0.4  # short, because the next slot's start waits for it
BRIDGE_EXIT_TIMEOUT_SECONDS: Final = 10.0  # a killed service's bridge holds the lock until it exits


class RayExecutor(DiskExecutor[RayGeneration]):
    """Runs every process of a generation under a detached actor, on its planned node.

    The address is ``auto``, ``HOST:PORT`` of the head of a cluster that includes this machine, or
    ``ray://HOST:PORT``.
    """

    capabilities = contract.ExecutorCapabilities(
        discovers_servers=True, several_machines=True, takes_uploads=True
    )

    def __init__(self, options: contract.ExecutorOptions) -> None:
        if not sys.platform.startswith("linux"):
            raise InputError("the Ray executor needs Linux's process control")
        settings = read_settings(options.settings)
        self._address = options.address or "auto"
        if self._address != "auto" and parse_endpoint(self._address) is None:
            hint = "write auto, HOST:PORT or ray://HOST:PORT"
            raise InputError(
                Fault("--address", f"{quote_for_display(self._address)} is not valid", hint)
            )
        super().__init__(options, RayGeneration)
        self._namespace = options.namespace
        self._uses_client = False
        self._health_error = ""
        self._duplicates: Set[str] = frozenset()  # names of several nodes in the last poll
        base = Path(settings.shared) if settings.shared else self.path
        # Not its own `_poll`, which would wake the controller that refreshes a generation.
        self.session = RaySession(settings, base, self._background, super()._poll, self._new_link())

    @property
    def health_error(self) -> str | None:
        """Why Ray can't be reached, or a background task's failure; see `ReportsHealth`."""
        unreachable = f"Ray cannot be reached: {self._health_error}" if self._health_error else None
        return unreachable or super().health_error

    # ------------------------------------------------------------------ opening and closing

    async def open(self) -> None:
        """Connect to Ray, and adopt generations that are still running."""
        try:
            await asyncio.to_thread(self._open)
        except OSError as error:
            raise contract.ExecutorError(
                f"{error.filename}: {error.strerror}; check that this user can write there"
            ) from error
        until = time.monotonic() + BRIDGE_EXIT_TIMEOUT_SECONDS
        while self._lock is None:
            try:
                self._acquire_lock()
            except contract.ExecutorError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)
        try:
            await self._connect()
            await self._poll_nodes()
            await asyncio.to_thread(self._load_existing)
        except BaseException:
            await self.close()
            raise
        for entry in self._registry.unended:
            self._drive(entry)
        self._background.spawn_repeating(
            "resync", self._resync, "polling the nodes of Ray", RESYNC_SECONDS
        )

    def _open(self) -> None:
        self._open_store()
        make_private(self.session.base)
        # Nodes recognize the shared directory by this file; see `ProcessActor.prepare`.
        mark = self.session.base / ".shadowprice-id"
        if not mark.exists():
            create_file(mark, secrets.token_hex(16).encode())
        self.session.token = mark.read_text(encoding="ascii").strip()

    def _new_link(self) -> BridgeClient:
        return BridgeClient(self.path / "bridge.log", self._on_actor_event)

    async def _connect(self) -> None:
        """Replace the bridge by one that is connected to Ray."""
        assert self._lock is not None
        await self.session.link.close()
        reason = await asyncio.to_thread(probe, self._address)
        if reason:
            raise contract.UnreachableError(f"no Ray answers at {self._address}: {reason}")
        for retries_left in reversed(range(MAX_CONNECT_ATTEMPTS)):
            try:
                await self._open_bridge(self._lock.descriptor)
            except BridgeError as error:
                if not retries_left or not is_transient(error):
                    raise contract.UnreachableError(self._connect_error(error)) from error
            else:
                return

    async def _open_bridge(self, lock_descriptor: int) -> None:
        link = self.session.link = self._new_link()
        try:
            await link.open(lock_descriptor)
            root = self.session.settings.node_dir
            place = {"root": root, "digest": bundle_digest(), "bundle": source_files()}
            response = await link.call(
                "connect",
                CONNECT_TIMEOUT_SECONDS,
                address=self._address,
                namespace=self._namespace,
                place=place,
            )
        except BridgeError:
            await link.close()
            raise
        self._uses_client = bool(response["client"])

    def _connect_error(self, error: BridgeError) -> str:
        link, text = self.session.link, str(error)
        if "ersion mismatch" in text or "version" in text.lower():
            return f"{self._address}: {text}; install the versions of its nodes"
        if error.kind == "Closed" and "No module named" in link.last_output_line():
            return f"{link.last_output_line()}; run pip install 'shadowprice[ray]'"
        if error.kind == "Closed":
            return f"no Ray answers at {self._address}: {link.last_output_line() or text}"
        return f"no Ray answers at {self._address}: {text}"

    async def close(self) -> None:
        """Disconnect; running generations continue."""
        await run_all(
            self._background.end,
            self.session.link.close,
            *(entry.unlock for entry in self._registry.entries.values()),
            self._unlock,
            self._registry.close_watch,
        )

    def _absence_reason(self, name: str) -> str:
        del name
        return "no node of the Ray cluster has this name"

    # ------------------------------------------------------------------ commands

    async def start(self, spec: contract.GenerationSpec) -> contract.Receipt:
        """Start a generation; see `Executor.start`."""
        if not self.session.link.is_running:
            raise contract.ExecutorError("not connected to Ray")
        return await super().start(spec)

    def _prepare(
        self, spec: contract.GenerationSpec, entry: RayGeneration
    ) -> tuple[dict[str, Any], str]:
        del entry
        return build_launch_plan(spec, self.session.nodes, self._registry.allocations)

    async def _begin(self, entry: RayGeneration) -> None:
        self._drive(entry)

    def _job_directory(self, spec: contract.GenerationSpec) -> Path:
        """Return the job's directory, which all nodes see."""
        return self.session.folder(spec.job)

    def _drive(self, entry: RayGeneration) -> None:
        controller = RayGenerationController(self.session, entry)
        self._background.spawn_repeating("drive", controller.attempt, entry.task_description)

    async def _poll(self, entry: RayGeneration) -> None:
        await super()._poll(entry)
        entry.changed.set()

    # ------------------------------------------------------------------ following

    def _on_actor_event(self, event: dict[str, Any]) -> None:
        for entry in self._registry.entries.values():
            part = entry.parts.get(event["name"])
            if part is None:
                continue
            if event["event"] == "gone":
                part.attached = False
            else:
                entry.on_progress_file(part, event["news"]["progress"])
                if event["news"]["state"] is not None:
                    part.load_state(event["news"]["state"])
            entry.changed.set()
            return

    async def _poll_progress(self) -> list[contract.Progressed]:
        running = {
            name: entry
            for entry in self._registry.unended
            for name, part in entry.parts.items()
            if part.attached and part.end is None
        }
        responses: dict[str, list[Any] | None] = {}
        for name, entry in running.items():
            entry.parts[name].responded = False  # until its actor responds
        if running:
            # Longer than the actors' timeout, because the bridge itself may be slow.
            responses = await self.session.link.call(
                "progress",
                2 * PROGRESS_FETCH_TIMEOUT_SECONDS,
                names=list(running),
                timeout=PROGRESS_FETCH_TIMEOUT_SECONDS,
            )
        reports = []
        for entry in {id(entry): entry for entry in running.values()}.values():
            async with entry.refreshing:  # progress must not be reported after the end
                for name in responses.keys() & entry.parts.keys():
                    entry.parts[name].responded = True
                    entry.on_progress_file(entry.parts[name], responses[name])
                report = None if entry.end_reported else entry.poll_progress()
            if report is not None:
                reports.append(report)
        return reports

    def stale_jobs(self) -> frozenset[str]:
        """Return the jobs whose actors didn't respond to the last poll; see `PollsProgress`."""
        return frozenset(entry.job for entry in self._registry.unended if entry.is_stale)

    async def _resync(self) -> None:
        try:
            if not self.session.link.is_running:  # nothing follows the actors any more
                for entry in self._registry.entries.values():
                    for part in entry.parts.values():
                        part.attached = part.is_requesting = False
                await self._connect()
            await self._poll_nodes()
            if self._health_error:
                log.warning("Ray can be reached again")
            self._health_error = ""
            await self._clean_up_returned_nodes()
        except contract.ExecutorError as error:
            if str(error) != self._health_error:  # not every second
                log.warning("failed to reach Ray; retrying: %s", error)
            self._health_error = str(error)
            if self._uses_client:
                # A Ray client doesn't end when its connection is lost, so the bridge is replaced.
                await self.session.link.close()
        except (OSError, ValueError) as error:
            log.warning("failed to poll the nodes of Ray: %s", error)
        finally:
            for entry in self._registry.entries.values():
                entry.changed.set()

    async def _poll_nodes(self) -> None:
        session = self.session
        records = await session.link.call("nodes", 10.0)
        nodes = list_nodes(records, {name: node.id for name, node in session.nodes.items()})
        self._warn_of_duplicates(find_duplicate_names(records))
        session.nodes = nodes
        self._update_servers({name: node.server for name, node in nodes.items()})

    def _warn_of_duplicates(self, names: Set[str]) -> None:
        for name in sorted(names - self._duplicates):  # not at every poll
            log.warning(
                "ignoring a second Ray node named %s; start each with its own --node-name", name
            )
        self._duplicates = names

    async def _clean_up_returned_nodes(self) -> None:
        """Delete the files of lost processes on nodes that have returned."""
        session = self.session
        for actor, server in tuple(session.lost_actors.items()):
            node = session.nodes.get(server)
            if node is not None:
                try:
                    await session.link.call("clear", 60.0, name=actor, node=node.id, into="")
                except BridgeError as error:
                    if error.kind == "Closed":
                        raise  # retried by the next bridge
                    log.warning("failed to clean up on %s: %s", server, error)
                del session.lost_actors[actor]

    # ------------------------------------------------------------------ retention and queries

    def _remove_job_files(self, job: str) -> None:
        remove_unpacked(self.session.folder(job) / "work")
        shutil.rmtree(self.session.folder(job), ignore_errors=True)

    def _has_logs(self, job: str, number: int) -> bool:
        entry = self._registry.entries.get((job, number))
        if entry is not None and not entry.is_finished:
            return entry.phase == Phase.RUNNING
        return super()._has_logs(job, number)

    async def _read_log(
        self, job: str, number: int, process: str, start: int | None, max_bytes: int
    ) -> contract.LogChunk:
        """Return a chunk of a log: from the node, unless the log was copied here."""
        entry = self._registry.entries.get((job, number))
        if entry is None or entry.is_finished:
            return await super()._read_log(job, number, process, start, max_bytes)
        max_bytes = max(1, min(max_bytes, MAX_CHUNK_BYTES))
        part = next(
            (candidate for candidate in entry.parts.values() if candidate.process == process), None
        )
        if part is not None and not part.on_node:
            folder = entry.generation.logs
            return await asyncio.to_thread(
                read_chunk, folder, number, process, start, max_bytes, complete=True
            )
        response = None
        if part is not None and entry.phase == Phase.RUNNING:
            with contextlib.suppress(BridgeError):
                arguments = [process, start, max_bytes, part.end is not None]
                response = await self.session.link.call(
                    "call", 20.0, name=part.actor, method="logs", arguments=arguments
                )
        if response is None:
            raise KeyError(f"{process} of generation {entry.number}")
        begin, end, text = response
        return contract.LogChunk(entry.number, process, begin, end, text, complete=False)

    async def observe(self) -> tuple[contract.ObservedJob, ...]:
        """Return this executor's own running generations."""
        return tuple(self._registry.running_jobs())
