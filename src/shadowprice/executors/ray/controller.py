"""The controller of one generation on Ray, from acceptance to its end.

    accepted -> launching -> running -> ended

The service stores ``launching`` before it creates any actor. An actor starts its process only once,
when it receives `go`. So a restarted service starts no process of a generation from ``launching``
on: it re-adopts running processes, and ends actors that never received `go`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.generations.generation import Phase, own_identity
from shadowprice.executors.generations.outcome import outcome_from_exits
from shadowprice.executors.processes import (
    INHERITED_VARIABLES,
    Process,
    gpu_millis,
    list_processes,
    process_demand,
)
from shadowprice.executors.ray.agent import IDLE
from shadowprice.executors.ray.bridge_client import BridgeError
from shadowprice.executors.ray.launch_plan import actor_resources, build_process_plan
from shadowprice.executors.ray.session import RayGeneration, RayProcess, RaySession

log = logging.getLogger("shadowprice.executors")

PEER_ENDED_COMMAND: Final = -1  # stops the remaining processes once the result is known
BRIDGE_CALL_TIMEOUT_SECONDS: Final = 90.0  # timeout in seconds of a request to the bridge


class RayGenerationController:
    """Drives one generation to its end."""

    def __init__(self, session: RaySession, entry: RayGeneration) -> None:
        self._session = session
        self._entry = entry
        self._failure: BaseException | None = None  # unexpected, of a task that runs `_attach`
        self._logged_error = ""

    async def attempt(self) -> bool:
        """Attempt to drive it from its current phase to its end; return whether it has ended."""
        entry = self._entry
        try:
            await asyncio.to_thread(entry.read)  # a previous attempt may have changed it
            await self._run()
            await self._session.refresh(entry)
        except (BridgeError, OSError) as error:
            if str(error) != self._logged_error:  # not at every retry
                log.warning("generation %d of %r: %s", entry.number, entry.job, error)
            self._logged_error = str(error)
        if not entry.is_finished:
            await asyncio.sleep(1.0)
        return entry.is_finished

    async def _run(self) -> None:
        entry = self._entry
        if entry.phase == Phase.DAMAGED:
            await self._end_damaged()
            return
        if entry.phase == Phase.ACCEPTED and not await self._launch():
            return
        if entry.lock is None:  # the previous service launched it
            entry.lock = entry.generation.try_lock()
        if entry.state.get("ending"):  # the result is stored, see `_finish`
            await self._release_actors()
            return
        while any(part.end is None for part in entry.parts.values()):
            entry.changed.clear()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            for part in entry.parts.values():
                if part.end is None and not part.attached and not part.is_requesting:
                    part.is_requesting = True
                    attaching = self._session.background.start(self._attach(part))
                    attaching.add_done_callback(self._on_attached)
            await asyncio.to_thread(entry.read)
            await self._deliver_stop_command()
            await self._session.refresh(entry)
            await entry.changed.wait()
        await self._finish()

    def _on_attached(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._entry.changed.set()

    async def _request(self, operation: str, **arguments: Any) -> Any:
        # Ray may take ``patience`` seconds to create an actor.
        timeout = BRIDGE_CALL_TIMEOUT_SECONDS + arguments.get("patience", 0.0)
        return await self._session.link.call(operation, timeout, **arguments)

    def _write(self, **change: Any) -> None:
        generation = self._entry.generation
        generation.write_state({**generation.state(), "at": time.time(), **change})

    # ---------------------------------------------------------------- beginning

    async def _launch(self) -> bool:
        """Create the actors and start the processes; return whether that succeeded."""
        entry, session = self._entry, self._session
        lock = await asyncio.to_thread(entry.generation.claim, own_identity())
        if lock is None:  # it was stopped, and `claim` refused it
            return False
        entry.lock = lock
        spec = GenerationSpec.from_record(entry.generation.plan()["spec"])
        folder = session.folder(spec.job)
        checkpoints = spec.checkpoint_dir or str(folder / "checkpoints")
        work = str(folder / "work")
        folders = [checkpoints, *([] if spec.program.directory else [work])]
        processes = {item.name: item for item in list_processes(spec)}
        parts = list(entry.parts.values())
        nodes = await asyncio.gather(
            *(self._prepare(part, spec, processes[part.process], folders) for part in parts)
        )
        errors = [node["error"] for node in nodes if "error" in node]
        await asyncio.to_thread(entry.read)
        if entry.stop_ordered:
            errors.append("it was stopped before it started")
        if errors:
            await self._end_actors()
            await asyncio.to_thread(self._write, phase=Phase.REFUSED, reason=errors[0])
            entry.unlock()
            return False
        master = (nodes[0]["address"], nodes[0]["port"])  # of worker 0

        async def go(part: RayProcess, node: dict[str, Any]) -> None:
            plan = build_process_plan(
                spec,
                processes[part.process],
                actor=part.actor,
                master=master,
                checkpoints=checkpoints,
                work=work,
                inherited=node["environment"],
                gpus=node["gpus"],
                log_bytes=session.settings.log_bytes,
                limit_memory=session.settings.memory == "rlimit",
            )
            try:
                response = await self._request(
                    "call", name=part.actor, method="go", arguments=[plan]
                )
            except BridgeError as error:  # `_attach` finds out whether it started
                log.warning("failed to start %s on %s: %s", part.process, part.server, error)
            else:
                part.start_error = response.get("error", "")

        await asyncio.gather(*(go(*item) for item in zip(parts, nodes, strict=True)))
        await asyncio.to_thread(self._write, phase=Phase.RUNNING, started=time.time())
        return True

    async def _prepare(
        self, part: RayProcess, spec: GenerationSpec, process: Process, folders: list[str]
    ) -> dict[str, Any]:
        """Create the actor of a process on its node; return the node's properties, or ``error``."""
        session = self._session
        node = session.nodes.get(part.server)
        if node is None or node.id != part.node:
            return {"error": f"the node {part.server} has left the Ray cluster"}
        prepare = {
            "base": str(session.base),
            "token": session.token,
            "folders": folders,
            "gpus": bool(gpu_millis(node.server.capacity)),
            "inherit": list(INHERITED_VARIABLES),
        }
        options = actor_resources(process_demand(spec, process), node)
        patience = session.settings.patience
        try:
            properties: dict[str, Any] = await self._request(
                "create",
                name=part.actor,
                node=part.node,
                options=options,
                prepare=prepare,
                patience=patience,
            )
        except BridgeError as error:
            return {"error": str(error)}
        if "error" in properties:
            return {"error": f"{part.server}: {properties['error']}"}
        return properties

    async def _end_actors(self) -> None:
        for part in self._entry.parts.values():
            with contextlib.suppress(BridgeError):
                await self._request("kill", name=part.actor)

    # ---------------------------------------------------------------- following

    async def _attach(self, part: RayProcess) -> None:
        """Follow a process's actor; if the actor has ended, find out how the process ended."""
        try:
            if part.gone_since is None:
                # Set first, because a `gone` event may arrive together with a response.
                part.attached, part.delivered = True, 0
                if await self._request("find", name=part.actor):
                    look = await self._request("call", name=part.actor, method="look", arguments=[])
                    if look["version"] == IDLE:  # a late `go` must not start it
                        await self._request("kill", name=part.actor)
                        part.mark_lost(self._idle_reason(part))
                    return
                part.attached = False
            await self._clear(part)
        except BridgeError as error:  # retried after the next resync
            part.attached = False
            if error.kind != "Closed" and not error.is_actor_gone:
                log.warning("failed to find %s on %s: %s", part.process, part.server, error)
        finally:
            part.is_requesting = False
            if part.end is not None or part.attached:
                self._entry.changed.set()

    def _idle_reason(self, part: RayProcess) -> str:
        if part.start_error:
            return f"{part.server} could not start {part.process}: {part.start_error}"
        if self._entry.phase == Phase.LAUNCHING:
            return f"the service stopped before it started {part.process}"
        return f"{part.process} was never started on {part.server}"

    def _node_of(self, part: RayProcess) -> str:
        """Return the id of the node with a process's files, empty while the node is away.

        The id is a new one if the node's raylet was restarted.
        """
        nodes = self._session.nodes
        if part.node in {node.id for node in nodes.values()}:
            return part.node
        return nodes[part.server].id if part.server in nodes else ""

    async def _clean_up(self, part: RayProcess, node: str) -> dict[str, Any]:
        """Clean up a process without an actor; return the result of `Bridge.do_clear`."""
        into = str(self._entry.generation.logs)
        result: dict[str, Any] = await self._request("clear", name=part.actor, node=node, into=into)
        self._warn_of_lost_log(part, result["log_error"])
        return result

    def _warn_of_lost_log(self, part: RayProcess, error: str | None) -> None:
        if error:
            log.warning(
                "failed to copy the log of %s from %s: %s", part.process, part.server, error
            )

    async def _clear(self, part: RayProcess) -> None:
        """Find out how a process without an actor ended, or mark it lost after ``lost_after``."""
        part.gone_since = part.gone_since or time.monotonic()
        session = self._session
        reason = f"the node {part.server} left the Ray cluster while {part.process} ran on it"
        if node := self._node_of(part):
            reason = f"the node {part.server} did not confirm the end of {part.process}"
            result: dict[str, Any] = {"known": True, "cleared": False}
            try:
                result = await self._clean_up(part, node)
            except BridgeError as error:
                if error.kind == "Closed" or not self._is_overdue(part):
                    raise
            if result["known"] and result["cleared"]:
                part.on_node = False
                part.load_state(result["state"])
                if part.end is not None and part.end.lost:
                    part.mark_lost(f"the supervisor of {part.process} was killed on {part.server}")
                elif part.end is None:
                    part.mark_lost(f"{part.process} was never started on {part.server}")
                return
            if not result["known"] and node == part.node:  # a restarted node may have lost files
                part.mark_lost(
                    f"the actor of {part.process} ended on {part.server} before it started"
                )
                return
        if self._is_overdue(part):
            await self._request("kill", name=part.actor)  # raises unless Ray confirms its end
            session.lost_actors[part.actor] = part.server
            part.mark_lost(reason)

    def _is_overdue(self, part: RayProcess) -> bool:
        since = part.gone_since
        lost_after = self._session.settings.lost_after
        return since is not None and time.monotonic() - since > lost_after

    async def _deliver_stop_command(self) -> None:
        """Stop the processes after a stop command, or once another process decided the result."""
        entry = self._entry
        stop = await asyncio.to_thread(entry.generation.stop)
        if stop["command"]:
            command = int(stop["command"])
            grace = stop["grace"]  # in full from delivery, which an outage of Ray may delay
        else:
            if not entry.is_outcome_final:
                return
            command, grace = PEER_ENDED_COMMAND, entry.grace
        undelivered = [
            part
            for part in entry.parts.values()
            if part.end is None and part.attached and part.delivered != command
        ]
        await asyncio.gather(*(self._deliver(part, command, grace) for part in undelivered))

    async def _deliver(self, part: RayProcess, command: int, grace: float) -> None:
        try:
            await self._request("call", name=part.actor, method="stop", arguments=[command, grace])
        except BridgeError:
            return  # its actor ended, or delivery is retried
        part.delivered = command

    # ---------------------------------------------------------------- ending

    async def _finish(self) -> None:
        entry = self._entry
        parts = list(entry.parts.values())
        for part in parts:
            if part.on_node:
                logs = str(entry.generation.logs)
                error = await self._request_or_remove(part, "collect", into=logs)
                self._warn_of_lost_log(part, error)
        stop_ordered = bool((await asyncio.to_thread(entry.generation.stop))["command"])
        result = outcome_from_exits(
            entry.process_exits(),
            entry.workers,
            stop_ordered=stop_ordered,
            tolerant=entry.tolerant,
        )
        deciding = next(part for part in parts if part.process == result.process)
        change: dict[str, Any] = {
            **result.record(),
            "tail": deciding.state.get("tail", []),
            "forced": any(bool(part.state.get("forced")) for part in parts),
        }
        # Stored before the actors are released, because only they know how their processes ended.
        # Otherwise a restarted service would count the generation as lost.
        await asyncio.to_thread(self._write, **change)
        await self._release_actors()

    async def _request_or_remove(self, part: RayProcess, operation: str, **arguments: Any) -> Any:
        """Send a request to an ended process's actor; if the actor has ended, remove the files."""
        try:
            return await self._request(operation, name=part.actor, **arguments)
        except BridgeError as error:
            if not error.is_actor_gone:
                raise
            await self._remove_files(part)
            return None

    async def _remove_files(self, part: RayProcess) -> None:
        """Remove the files of an ended process without an actor from its node; keep its log."""
        node = self._node_of(part)
        result = await self._clean_up(part, node) if node else {"cleared": False}
        if not result["cleared"]:
            self._session.lost_actors[part.actor] = part.server  # cleaned up later
        part.on_node = False

    async def _end_damaged(self) -> None:
        """End a generation whose state is damaged; it counts as lost."""
        entry, generation = self._entry, self._entry.generation
        with contextlib.suppress(ValueError):
            await asyncio.to_thread(generation.state)
            return  # the error was temporary
        entry.set_plan(await asyncio.to_thread(generation.plan))
        for part in entry.parts.values():
            await self._request("kill", name=part.actor)
            await self._remove_files(part)
        entry.unlock()
        await asyncio.to_thread(generation.mark_lost_if_dead, "its processes were killed")

    async def _release_actors(self) -> None:
        """Release the actors, and then mark the generation as ended."""
        entry = self._entry
        for part in entry.parts.values():
            if part.on_node:
                await self._request_or_remove(part, "call", method="retire", arguments=[])
                await self._request("kill", name=part.actor)
        await asyncio.to_thread(self._write, phase=Phase.ENDED)
        entry.unlock()
