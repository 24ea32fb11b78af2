"""The controller of one generation on Kubernetes, from acceptance to its end.

    accepted -> running -> ended
    accepted -> refused

The generation's secret gates its pods, which can't start without it. The service that creates the
pods creates it first, once, and it is deleted before the generation's end is reported. So a delayed
request of a partitioned or ended service starts nothing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from shadowprice.executors.contract import Ending
from shadowprice.executors.generations.generation import TERMINAL_PHASES, Phase
from shadowprice.executors.generations.outcome import ProcessExit, outcome_from_exits
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.pods import (
    TOKEN_VARIABLE,
    ObjectContext,
    build_headless_service,
    build_pod,
    build_secret,
    whole_grace_seconds,
)
from shadowprice.executors.kubernetes.session import (
    GenerationObjects,
    KubernetesGeneration,
    KubernetesSession,
    PodProcess,
    process_exit_of,
    start_failure_reason,
)
from shadowprice.executors.kubernetes.views import PodView, merge_pod_view
from shadowprice.executors.processes import PlacementError, list_processes
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Backoff

log = logging.getLogger("shadowprice.executors")

INITIAL_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 10.0  # initial and maximum backoff of requests that failed, in seconds

_MAX_CONCURRENT_CREATES: Final = 16

PEER_ENDED_COMMAND: Final = -1  # stops the remaining processes once the result is known
LOG_OPEN_TIMEOUT_SECONDS: Final = 5.0  # to open a log stream before its pod is deleted
EMPTY_LOG_TIMEOUT_SECONDS: Final = 0.7  # the same if empty: its start isn't observable
MISSING_POD_POLL_SECONDS: Final = 2.0  # after which created pods without events are listed
MAX_LIST_BACKOFF_SECONDS: Final = 30.0  # maximum backoff in seconds of such listings that fail
STEADY_POLL_SECONDS: Final = 10.0  # between checks of a running generation without events

SELF_TERMINATED: Final = frozenset({Ending.DONE.value, Ending.FAILED.value})
"""Endings that follow from the pods' exit statuses, without a command."""

LOG_DRAIN_TIMEOUT_SECONDS: Final = 60.0  # timeout in seconds for collecting the log of an ended pod
MAX_CONCURRENT_LOGS: Final = 16  # maximum number of logs that a generation collects concurrently

# Seconds for which refused requests are repeated, because rights may just be changing. Other errors
# become an obstacle if they last as long.
REFUSED_SECONDS: Final = 10.0

_OVER: Final = {"phase": Phase.ENDED, "end": None, "deciding": None, "plan": None}


class _RefusedError(ApiError):
    """A request that the API server refused, or didn't accept before the timeout."""


def _launch_obstacle(state: Mapping[str, Any]) -> str:
    """Return why a generation may not be launched any more, according to its record."""
    if not state:
        return "its record was deleted"
    # A service that took over recorded that before it deleted the secret.
    if state["phase"] != Phase.ACCEPTED or state.get("closing"):
        return "another service has taken it over"
    return "it was stopped before it started" if state.get("stop") else ""


class KubernetesGenerationController:
    """Drives one generation to its end."""

    def __init__(self, session: KubernetesSession, entry: KubernetesGeneration) -> None:
        self._session = session
        self._cluster = session.cluster
        self._entry = entry
        self._objects = GenerationObjects(session, entry)
        self._following: set[asyncio.Task[None]] = set()
        self._collecting: dict[str, asyncio.Task[None]] = {}  # of logs of ended processes
        self._log_slots = asyncio.Semaphore(MAX_CONCURRENT_LOGS)
        self._created_nothing = False  # the API server refused the secret, and so the pods
        self._launched = False
        self._closed = False
        self._progress_count = 0  # accepted changes, which reset the backoff
        self._listed_at = 0.0
        self._obstructed_since: float | None = None
        self._pauses = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        self._unseen = Backoff(MISSING_POD_POLL_SECONDS, MAX_LIST_BACKOFF_SECONDS)

    async def run(self) -> None:
        """Drive the generation from its current phase to its end."""
        try:
            await self._session.background.repeat(
                "drive", self._attempt, self._entry.task_description
            )
        finally:
            tasks = (*self._following, *self._collecting.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _attempt(self) -> bool:
        """Make one attempt to drive it to its end; return whether it has ended."""
        entry, count_before = self._entry, self._progress_count
        if entry.is_finished:
            return True
        try:
            await self._run()
            self._session.emit(entry.pop_reports())
        except ApiError as error:
            log.warning("generation %d of %r: %s", entry.number, entry.job, error)
            await self._on_error(error)
        if not entry.is_finished:  # `_finish` may have found a pod that still runs
            if self._progress_count > count_before:
                self._pauses.reset()
            await asyncio.sleep(self._pauses.record_failure())
        return entry.is_finished

    async def _on_error(self, error: ApiError) -> None:
        """Note why the generation can't start or end, and give it up after a time limit."""
        if not error.status:  # no answer, which is not a fault of this generation
            self._obstructed_since = None
            return
        entry, now = self._entry, time.monotonic()
        if self._obstructed_since is None:
            self._obstructed_since = now
        settings = self._session.settings
        starting = entry.phase == Phase.ACCEPTED and not entry.stop_ordered
        if not (starting or self._has_to_end()):  # it runs, and nothing has to be done for it
            return
        seconds_obstructed = now - self._obstructed_since
        # An error of a moment, such as throttling, is not an obstacle yet.
        if error.refused or seconds_obstructed >= REFUSED_SECONDS:
            entry.obstacle = str(error)
        limit = settings.patience if starting else settings.lost_after
        if error.refused:
            limit = min(limit, REFUSED_SECONDS)
        if seconds_obstructed >= limit:
            try:
                await self._give_up(error)
            except ApiError as second:
                log.warning("generation %d of %r: %s", entry.number, entry.job, second)

    def _has_to_end(self) -> bool:
        entry = self._entry
        return (
            entry.stop_ordered
            or bool(entry.state.get("closing") or entry.state.get("end"))
            or entry.is_outcome_final
        )

    async def _give_up(self, error: ApiError) -> None:
        """Record the end of a generation whose objects the API server doesn't delete."""
        entry = self._entry
        with contextlib.suppress(ApiError):  # a pod of a delayed request can't start without it
            await self._objects.delete_named("secrets")
        views = [view for view in await self._objects.pods() if view.may_run]
        reason = f"the API server refused it: {error}"
        if views:
            pods = ", ".join(sorted(view.name for view in views[:3]))
            reason = f"its pods couldn't be deleted and may still run ({pods}): {error}"
        if entry.phase == Phase.ACCEPTED and not views:
            await self._write(phase=Phase.REFUSED, reason=reason, plan=None)
        else:
            end = entry.state.get("end")
            if not end and entry.is_outcome_final:
                end = self._result()
            lost = {"ending": Ending.LOST.value, "code": None, "reason": reason}
            await self._write(**_OVER, **(end or lost))
        log.warning("lost generation %d of %r: %s", entry.number, entry.job, reason)
        self._session.leave(views)
        self._session.emit(entry.pop_reports())

    async def _run(self) -> None:
        entry = self._entry
        end = entry.state.get("end")
        if end:
            await self._delete_all(may_continue=False)
            await self._write(**_OVER, **end)
            return
        if not self._launched and not entry.state.get("closing"):
            launch = self._begin_launch if entry.phase == Phase.ACCEPTED else self._resume_launch
            reason = await launch()
            if reason and self._created_nothing:
                await self._write(phase=Phase.REFUSED, reason=reason, plan=None)
                return
            if reason:
                await self._mark_withdrawn(reason)
            self._launched, self._listed_at = True, time.monotonic()
        if entry.state.get("closing"):
            await self._withdraw()
        while any(part.end is None for part in entry.parts.values()):
            entry.changed.clear()
            await self._apply_pod_states()
            self._session.emit(entry.pop_reports())  # the wait below may be long
            if entry.state.get("closing") and not self._closed:
                await self._withdraw()
            await self._order()
            self._collect_logs()
            entry.obstacle, self._obstructed_since = "", None
            if any(part.end is None for part in entry.parts.values()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STEADY_POLL_SECONDS if self._is_steady() else 1.0):
                        await entry.changed.wait()
        self._collect_logs()
        await asyncio.gather(*self._collecting.values(), return_exceptions=True)
        await self._finish()

    def _is_steady(self) -> bool:
        """Return whether only events, and no timeouts, can change the generation's state."""
        entry = self._entry
        return entry.phase == Phase.RUNNING and all(
            part.view is not None
            and part.view.running
            and part.vanished is None
            and self._cluster.gone_since(part.server) is None
            for part in entry.parts.values()
            if part.end is None
        )

    async def _write(self, **change: Any) -> None:
        """Update the generation's record, unless it has ended."""

        def update(record: Any) -> dict[str, Any]:
            state = record.generations.get(self._entry.number)
            if state is None or not self._entry.accepts_state(state):
                return self._entry.state_without_record()
            if state["phase"] not in TERMINAL_PHASES:
                state |= {"at": time.time(), **change}
            return dict(state)

        state = await self._session.records.change(self._entry.job, update)
        self._entry.load_state(state)
        self._progress_count += 1

    # ---------------------------------------------------------------- launching

    async def _begin_launch(self) -> str:
        """Create the secret, the service and the pods; return a reason if that fails."""
        entry, session = self._entry, self._session
        spec, plan = entry.spec, entry.state["plan"]
        if spec is None:
            return await self._resume_launch()
        launch = secrets.token_hex(16)
        place = ObjectContext(
            session.identity,
            entry.namespace,
            launch,
            tuple(plan["master"]),
            plan.get("owner"),
            session.gates and len(entry.parts) > 1,
        )
        entry.token = spec.progress_token
        try:
            try:
                secret = await self._create_secret(build_secret(spec, place), launch)
            except _RefusedError:
                self._created_nothing = True
                raise
            if secret is None:
                return await self._resume_launch()
            state = (await session.records.read(spec.job)).generations.get(entry.number, {})
            reason = _launch_obstacle(state)
            if reason:
                if state:
                    entry.load_state(state)
                return reason
            node = session.cluster.node
            bodies = [
                build_pod(spec, process, place, node(process.server), session.settings, secret)
                for process in list_processes(spec)
            ]
            if place.master[0].startswith(bodies[0]["spec"]["hostname"]):
                service = await self._create_object(
                    "services", build_headless_service(spec, place, secret), launch
                )
                self._objects.uids["services"] = service
            limit = asyncio.Semaphore(_MAX_CONCURRENT_CREATES)

            async def create_pod(body: dict[str, Any]) -> None:
                async with limit:
                    uid = await self._create_object("pods", body, launch)
                entry.parts[body["metadata"]["labels"][names.PROCESS]].uid = uid

            results = await asyncio.gather(*map(create_pod, bodies), return_exceptions=True)
            for error in results:
                if isinstance(error, BaseException):
                    raise error
        except PlacementError as error:
            return str(error)
        except ApiError as error:
            if error.passing and not isinstance(error, _RefusedError):
                raise
            return f"the API server refused it: {error}"
        if place.gated:
            return await self._open_gates()
        return ""

    async def _open_gates(self) -> str:
        """Open the scheduling gates of all pods; return the reason if that is refused."""
        try:
            await self._objects.remove_scheduling_gates()
        except ApiError as error:
            if not error.refused:
                raise
            return f"the API server refused it: {error}"
        return ""

    async def _create_secret(self, body: dict[str, Any], launch: str) -> dict[str, Any] | None:
        """Create the secret; return None if an earlier launch of the generation created it."""
        objects = self._objects
        try:
            secret: dict[str, Any] = await objects.connection.post(objects.path("secrets"), body)
        except ApiError as error:
            if not (error.exists or error.passing):
                raise _RefusedError(error.status, error.reason, str(error)) from error
            existing = await objects.find("secrets", objects.name)
            if existing is None:
                raise  # not created: retry
            if not objects.is_own(existing):
                raise self._already_exists_error("secrets", objects.name) from error
            secret = existing
        objects.uids["secrets"] = str(secret["metadata"]["uid"])
        own = secret["metadata"]["annotations"].get(names.EXECUTION) == launch
        return secret if own else None

    async def _create_object(self, kind: str, body: dict[str, Any], launch: str) -> str:
        """Create an object, with retries; return its uid, empty if a stop command came first."""
        until = time.monotonic() + self._session.settings.patience
        pauses = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        name = str(body["metadata"]["name"])
        while True:
            try:
                created = await self._objects.connection.post(self._objects.path(kind), body)
                return str(created["metadata"]["uid"])
            except ApiError as error:
                if error.exists:
                    existing = await self._objects.find(kind, name)
                    if existing is not None and self._objects.is_own(existing, launch):
                        return str(existing["metadata"]["uid"])  # the response was lost
                    if existing is not None:
                        raise self._already_exists_error(kind, name) from error
                elif not error.passing or time.monotonic() > until:
                    raise _RefusedError(error.status, error.reason, str(error)) from error
                if self._entry.stop_ordered:
                    return ""
            await asyncio.sleep(pauses.record_failure())

    def _already_exists_error(self, kind: str, name: str) -> _RefusedError:
        text = f"{kind} {name!r} in namespace {self._entry.namespace!r} already exists"
        return _RefusedError(409, "AlreadyExists", f"{text}, and has another owner")

    async def _resume_launch(self) -> str:
        """Resume the launch of another service; return a reason if that isn't possible."""
        entry, objects = self._entry, self._objects
        try:
            secret = await objects.find("secrets", objects.name)
        except ApiError as error:
            if not error.refused:
                raise
            message = "failed to read the secret of generation %d of %r: %s"
            log.warning(message, entry.number, entry.job, error)
            secret, readable = None, False
        else:
            readable = True
        if secret is not None and not objects.is_own(secret):
            if entry.phase == Phase.ACCEPTED:
                return str(self._already_exists_error("secrets", objects.name))
            secret = None
        if secret is None and readable and entry.phase == Phase.ACCEPTED:
            return "its launch was interrupted before it created the secret"
        if secret is not None:
            objects.uids["secrets"] = str(secret["metadata"]["uid"])
            token = (secret.get("data") or {}).get(TOKEN_VARIABLE, "")
            entry.token = base64.b64decode(token).decode("utf-8", "replace")
        views = {view.process: view for view in await objects.pods()}
        for part in entry.parts.values():
            if part.process in views:
                part.view = merge_pod_view(part.view, views[part.process])
            if part.view is None and entry.phase == Phase.RUNNING:
                # Deleted meanwhile; its node needs a moment to kill the processes.
                part.vanished = time.monotonic()
            if part.view is None or part.view.deleting:
                part.stop_requested = entry.termination_requested
        if entry.phase == Phase.ACCEPTED and entry.parts.keys() - views.keys():
            # A missing pod may have run and been deleted, so it must not start again.
            return "its launch was interrupted before it created all pods"
        return await self._open_gates()

    # ---------------------------------------------------------------- following

    async def _apply_pod_states(self) -> None:
        entry, cluster, settings = self._entry, self._cluster, self._session.settings
        await self._list_unseen()
        for part in entry.parts.values():
            if part.end is not None:
                continue
            self._update_view(part)
            part.end = process_exit_of(
                part,
                node=cluster.nodes.items.get(part.server),
                lost_after=settings.lost_after,
                gone_since=cluster.gone_since(part.server),
                withdrawn=bool(entry.state.get("closing")),
            )
        if entry.phase != Phase.ACCEPTED or entry.state.get("closing"):
            return
        parts = entry.parts.values()
        failed = any(part.end is not None and part.end.code > 0 for part in parts)
        # A process may have exited before any of its running states was observed.
        if failed or all(part.has_started or (part.end and not part.end.lost) for part in parts):
            starts = [part.view.began for part in parts if part.view and part.view.began]
            await self._write(phase=Phase.RUNNING, started=max([*starts, entry.state["accepted"]]))
            return
        reason = start_failure_reason(entry, settings.patience)
        if reason:
            await self._mark_withdrawn(reason)

    def _update_view(self, part: PodProcess) -> None:
        key = f"{self._entry.namespace}/{part.pod}"
        view = self._cluster.own.get(key)
        if view is not None and self._is_of(part, view):
            part.view, part.vanished = merge_pod_view(part.view, view), None
            return
        last = self._cluster.last.pop(key, None)
        if last is not None and self._is_of(part, last):
            part.view = merge_pod_view(part.view, last)
        if part.view is not None and part.vanished is None:
            part.vanished = time.monotonic()

    def _is_of(self, part: PodProcess, view: PodView) -> bool:
        """Return whether a pod of a process's name is this generation's."""
        entry = self._entry
        own = (view.job, view.generation) == (entry.key, entry.number)
        return own and part.uid in {"", view.uid}

    async def _list_unseen(self) -> None:
        """List created pods of which no event arrived, because events may be late or coalesced."""
        missing = [
            part
            for part in self._entry.parts.values()
            if part.end is None and part.view is None and part.vanished is None
        ]
        now = time.monotonic()
        if not missing or not self._launched or now - self._listed_at < MISSING_POD_POLL_SECONDS:
            return
        if not self._unseen.over:
            return
        try:
            views = {view.process: view for view in await self._objects.pods()}
        except ApiError:
            self._unseen.record_failure()
            return  # a failed request doesn't show that they are missing
        self._listed_at = now
        self._unseen.reset()
        for part in missing:
            if part.process in views:
                part.view = views[part.process]
            else:
                part.vanished = time.monotonic()

    async def _mark_withdrawn(self, why: str) -> None:
        """Record that the generation is to be withdrawn, before any object is deleted."""
        await self._write(closing=why)
        self._entry.changed.set()

    async def _withdraw(self) -> None:
        """Delete the secret, and find the pods that have to end."""
        await self._objects.delete_named("secrets")
        views = {view.process: view for view in await self._objects.pods()}
        for part in self._entry.parts.values():
            if part.process in views:
                part.view = merge_pod_view(part.view, views[part.process])
            if part.view is None:
                part.end = ProcessExit(part.process, -1, time.time(), lost="it never existed")
        self._closed = True

    async def _order(self) -> None:
        """Delete pods after a stop command, or once another process decided the result."""
        entry = self._entry
        stop = entry.state.get("stop")
        if stop:
            command, grace = int(stop["command"]), float(stop["grace"])
        elif entry.state.get("closing"):
            command, grace = PEER_ENDED_COMMAND, 0.0
        elif entry.is_finished:  # its record was deleted
            command, grace = PEER_ENDED_COMMAND, entry.grace
        elif entry.is_outcome_final:
            await self._record_deciding_exits()
            command, grace = PEER_ENDED_COMMAND, entry.grace
        else:
            return
        if entry.phase == Phase.ACCEPTED and stop and not entry.state.get("closing"):
            await self._mark_withdrawn("it was stopped before it started")
        for part in entry.parts.values():
            if part.view is not None and part.view.deleting and part.ending is None:
                # Deleted by an earlier service or another client.
                part.ending = time.monotonic() - self._seconds_since_deletion(part.view)
        undelivered = [
            item for item in entry.parts.values() if item.end is None and item.delivered != command
        ]
        await asyncio.gather(*(self._delete_pod(part, command, grace) for part in undelivered))

    async def _record_deciding_exits(self) -> None:
        """Record the ends that decide, for a restarted service, before other pods are deleted."""
        parts = self._entry.parts
        ends = {name: part.exit_record() for name, part in parts.items() if part.end is not None}
        if len(ends) < len(parts) and not self._entry.state.get("deciding"):
            await self._write(deciding=ends)

    def _seconds_since_deletion(self, view: PodView) -> float:
        """Return the seconds since a pod's deletion by the server's clock, up to a second more."""
        now = self._objects.connection.time()
        if now is None or view.terminating_since is None:
            return 0.0
        return float(max(0.0, now + 1.0 - view.terminating_since))

    async def _delete_pod(self, part: PodProcess, command: int, grace: float) -> None:
        if part.view is None:
            return
        if part.view.running and not part.delivered:
            await self._follow_log(part)
        lost = self._cluster.is_lost(part.server)
        part.stop_requested = True
        # The server counts a grace period from the first deletion, and only ever shortens it.
        now = time.monotonic()
        since = now if part.ending is None else part.ending
        allowed = min(part.allowed, now - since + grace)
        grace_seconds = 0 if lost else whole_grace_seconds(allowed)
        await self._objects.delete("pods", part.pod, part.view.uid, grace_seconds)
        part.ending, part.allowed = since, allowed
        part.delivered = command
        self._progress_count += 1

    async def _follow_log(self, part: PodProcess) -> None:
        """Fetch and follow a pod's log, once, before the pod is deleted."""
        if part.listened:
            return
        part.listened = True
        follower = self._objects.follower(part)
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(LOG_OPEN_TIMEOUT_SECONDS):
                await follower.fetch_new()
        opened = asyncio.Event()
        following = follower.follow(opened)
        task = self._session.background.spawn("logs", following, "following a log", vital=False)
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(
                LOG_OPEN_TIMEOUT_SECONDS if follower.has_output else EMPTY_LOG_TIMEOUT_SECONDS
            ):
                await opened.wait()

    # ---------------------------------------------------------------- ending

    def _collect_logs(self) -> None:
        """Start to fetch the rest of the logs of ended processes, in the background."""
        for name, part in self._entry.parts.items():
            if part.end is not None and part.has_started and name not in self._collecting:
                self._collecting[name] = self._session.background.spawn(
                    "logs", self._collect_log(part), "collecting a log", vital=False
                )

    async def _collect_log(self, part: PodProcess) -> None:
        follower = self._objects.follower(part)
        async with self._log_slots:
            if not self._cluster.is_lost(part.server):
                is_ready = self._cluster.gone_since(part.server) is None
                limit = LOG_DRAIN_TIMEOUT_SECONDS if is_ready else LOG_OPEN_TIMEOUT_SECONDS
                with contextlib.suppress(ApiError, TimeoutError, OSError):
                    await follower.fetch_rest(limit)
        part.tail = follower.tail()

    async def _finish(self) -> None:
        entry = self._entry
        refused = entry.phase == Phase.ACCEPTED and entry.state.get("closing")
        end = {} if refused else self._result()
        if end.get("ending") in SELF_TERMINATED:
            # Recorded first, because only the pods know this result. Otherwise a restarted
            # service would find no pods and count the generation as lost.
            await self._write(end=end)
        if not await self._delete_all(may_continue=True):
            return
        if refused:
            await self._write(phase=Phase.REFUSED, reason=refused, plan=None)
        else:
            await self._write(**_OVER, **end)

    async def _delete_all(self, *, may_continue: bool) -> bool:
        """Delete the generation's objects; return False if an ended process turns out to run."""
        await self._objects.delete_named("secrets")
        pauses = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while True:
            views = await self._objects.pods()  # listed, because events may be late
            for view in views if may_continue else ():
                part = self._entry.parts.get(view.process)
                is_ended = view.exit is not None or not self._may_run(view)
                if part is not None and part.end is not None and not is_ended:
                    part.end, part.view, part.vanished, part.delivered = None, view, None, 0
                    self._collecting.pop(view.process, None)
                    return False
            await self._delete_objects(views)
            if not any(map(self._may_run, views)):
                return True
            await asyncio.sleep(pauses.record_failure())  # until sidecars have ended

    def _may_run(self, view: PodView) -> bool:
        """Return whether a pod may still run processes, on a node that isn't lost."""
        part = self._entry.parts.get(view.process)
        return view.may_run and not (part is not None and self._cluster.is_lost(part.server))

    async def _delete_objects(self, views: Iterable[PodView]) -> None:
        """Delete the pods and the service object; raise if a pod that may run remains."""
        for view in views:
            part = self._entry.parts.get(view.process)
            lost = part is not None and self._cluster.is_lost(part.server)
            try:
                await self._objects.delete(
                    "pods", view.name, view.uid, 0 if lost or view.over else 1
                )
            except ApiError as error:
                if not error.refused or view.may_run:
                    raise
                log.warning("left the pod %s/%s: %s", view.namespace, view.name, error)
        if len(self._entry.parts) > 1:
            await self._objects.delete_named("services")

    def _result(self) -> dict[str, Any]:
        """Return the result for the record."""
        entry = self._entry
        ends = entry.process_exits()
        result = outcome_from_exits(
            ends, entry.workers, stop_ordered=entry.stop_ordered, tolerant=entry.tolerant
        )
        decided = entry.parts[result.process]
        record = result.record()
        if decided.unseen:
            record["code"] = None
        forced = any(end.killed for end in ends)
        return {**record, "tail": list(decided.tail), "forced": forced}
