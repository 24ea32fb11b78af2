"""The controller of one generation on Kubernetes, from acceptance to its end.

    accepted -> running -> ended
    accepted -> refused

Pods can't start without their generation's secret. A service creates the secret once, before the
pods, and deletes it before it reports the generation's end. So a delayed request of a partitioned
or ended service starts nothing. To *withdraw* a generation is to delete its objects before all its
processes have started.
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

INITIAL_BACKOFF_SECONDS: Final = 1.0  # of failed requests
MAX_BACKOFF_SECONDS: Final = 10.0

_MAX_CONCURRENT_CREATES: Final = 16

PEER_ENDED_COMMAND: Final = -1  # stops the remaining processes once the result is known
LOG_OPEN_TIMEOUT_SECONDS: Final = 5.0  # to open a log stream before its pod is deleted
EMPTY_LOG_TIMEOUT_SECONDS: Final = 0.7  # the same for a log that has no output yet
MISSING_POD_POLL_SECONDS: Final = 2.0  # without an event of a created pod, before pods are listed
MAX_LIST_BACKOFF_SECONDS: Final = 30.0  # maximum backoff in seconds of these lists if they fail
STEADY_POLL_SECONDS: Final = 10.0  # between checks of a running generation if no event arrives

SELF_TERMINATED: Final = frozenset({Ending.DONE.value, Ending.FAILED.value})
"""Endings that follow from the pods' exit statuses, without a command."""

LOG_DRAIN_TIMEOUT_SECONDS: Final = 60.0  # timeout in seconds for collecting the log of an ended pod
MAX_CONCURRENT_LOGS: Final = 16  # maximum number of logs that a generation collects concurrently

# Seconds for which refused requests are repeated, because rights may just be changing. Other errors
# become an obstacle if they last as long.
REFUSED_SECONDS: Final = 10.0

# State of an ended generation, without fields that only an unfinished one needs.
_ENDED: Final = {"phase": Phase.ENDED, "end": None, "deciding": None, "plan": None}


class _RefusedError(ApiError):
    """A request that the API server refused, or didn't accept before the timeout."""


def _launch_obstacle(state: Mapping[str, Any]) -> str:
    """Return why a generation may not be launched any more, according to its record."""
    if not state:
        return "its record was deleted"
    # A service that takes a launch over records ``closing`` before it deletes the secret.
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
        self._withdrawn = False
        self._progress_count = 0  # accepted changes, which reset the backoff
        self._listed_at = 0.0  # monotonic, when pods were last listed
        self._obstructed_since: float | None = None  # monotonic, since the first refused request
        self._backoff = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        self._list_backoff = Backoff(MISSING_POD_POLL_SECONDS, MAX_LIST_BACKOFF_SECONDS)

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
                self._backoff.reset()
            await asyncio.sleep(self._backoff.record_failure())
        return entry.is_finished

    async def _on_error(self, error: ApiError) -> None:
        """Report why the generation can't start or end, and abandon it after a time limit."""
        if not error.status:  # no response, so the generation isn't the cause
            self._obstructed_since = None
            return
        entry, now = self._entry, time.monotonic()
        if self._obstructed_since is None:
            self._obstructed_since = now
        settings = self._session.settings
        starting = entry.phase == Phase.ACCEPTED and not entry.stop_ordered
        if not (starting or self._has_to_end()):  # it runs, and needs no request now
            return
        seconds_obstructed = now - self._obstructed_since
        # A short error, such as throttling, is no obstacle yet.
        if error.refused or seconds_obstructed >= REFUSED_SECONDS:
            entry.obstacle = str(error)
        limit = settings.patience if starting else settings.lost_after
        if error.refused:
            limit = min(limit, REFUSED_SECONDS)
        if seconds_obstructed >= limit:
            try:
                await self._abandon(error)
            except ApiError as second:
                log.warning("generation %d of %r: %s", entry.number, entry.job, second)

    def _has_to_end(self) -> bool:
        entry = self._entry
        return (
            entry.stop_ordered
            or bool(entry.state.get("closing") or entry.state.get("end"))
            or entry.is_outcome_final
        )

    async def _abandon(self, error: ApiError) -> None:
        """Record the end of a generation although the API server refuses to delete its objects."""
        entry = self._entry
        with contextlib.suppress(ApiError):  # without the secret, no further pod can start
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
            await self._write(**_ENDED, **(end or lost))
        log.warning("lost generation %d of %r: %s", entry.number, entry.job, reason)
        self._session.mark_strays(views)
        self._session.emit(entry.pop_reports())

    async def _run(self) -> None:
        entry = self._entry
        end = entry.state.get("end")
        if end:  # the result is recorded; see `_finish`
            await self._delete_all(may_continue=False)
            await self._write(**_ENDED, **end)
            return
        if not self._launched and not entry.state.get("closing"):
            launch = self._begin_launch if entry.phase == Phase.ACCEPTED else self._resume_launch
            reason = await launch()  # why it failed
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
            if entry.state.get("closing") and not self._withdrawn:
                await self._withdraw()
            await self._delete_pods_if_ending()
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
            if state is None or not self._entry.accepts_state(state):  # its record was deleted
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
        if spec is None:  # another service accepted it
            return await self._resume_launch()
        launch = secrets.token_hex(16)
        context = ObjectContext(
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
                secret = await self._create_secret(build_secret(spec, context), launch)
            except _RefusedError:
                self._created_nothing = True
                raise
            if secret is None:  # an earlier launch may have created pods
                return await self._resume_launch()
            # Only now, because a service that takes over deletes a secret that it finds.
            state = (await session.records.read(spec.job)).generations.get(entry.number, {})
            reason = _launch_obstacle(state)
            if reason:
                if state:
                    entry.load_state(state)
                return reason
            node = session.cluster.node
            bodies = [
                build_pod(spec, process, context, node(process.server), session.settings, secret)
                for process in list_processes(spec)
            ]
            # Worker 0 is addressed by its DNS name, which needs a service object.
            if context.master[0].startswith(bodies[0]["spec"]["hostname"]):
                service = await self._create_object(
                    "services", build_headless_service(spec, context, secret), launch
                )
                self._objects.uids["services"] = service
            create_slots = asyncio.Semaphore(_MAX_CONCURRENT_CREATES)

            async def create_pod(body: dict[str, Any]) -> None:
                async with create_slots:
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
        if context.gated:
            return await self._open_gates()
        return ""

    async def _open_gates(self) -> str:
        """Open the scheduling gates of all pods; return a reason if the API server refuses."""
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
        backoff = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
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
            await asyncio.sleep(backoff.record_failure())

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
                # The pod was deleted meanwhile; its node needs a moment to kill the processes.
                part.vanished = time.monotonic()
            if part.view is None or part.view.deleting:
                part.stop_requested = entry.termination_requested
        if entry.phase == Phase.ACCEPTED and entry.parts.keys() - views.keys():
            # A missing pod may have run and been deleted, so it must not start again.
            return "its launch was interrupted before it created all pods"
        return await self._open_gates()

    # ---------------------------------------------------------------- following

    async def _apply_pod_states(self) -> None:
        """Derive the ends of processes, and the start of the generation, from the pods' states."""
        entry, cluster, settings = self._entry, self._cluster, self._session.settings
        await self._list_missing_pods()
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
        # A process may have exited before it was observed as running.
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
        if view is not None and self._is_pod_of(part, view):
            part.view, part.vanished = merge_pod_view(part.view, view), None
            return
        last = self._cluster.last_views.pop(key, None)
        if last is not None and self._is_pod_of(part, last):
            part.view = merge_pod_view(part.view, last)
        if part.view is not None and part.vanished is None:  # it existed, and is gone
            part.vanished = time.monotonic()

    def _is_pod_of(self, part: PodProcess, view: PodView) -> bool:
        """Return whether a pod with the name of a process's pod belongs to this generation."""
        entry = self._entry
        own = (view.job, view.generation) == (entry.key, entry.number)
        return own and part.uid in {"", view.uid}

    async def _list_missing_pods(self) -> None:
        """List the pods if created ones had no event, because events may be late or coalesced."""
        missing = [
            part
            for part in self._entry.parts.values()
            if part.end is None and part.view is None and part.vanished is None
        ]
        now = time.monotonic()
        if not missing or not self._launched or now - self._listed_at < MISSING_POD_POLL_SECONDS:
            return
        if not self._list_backoff.over:
            return
        try:
            views = {view.process: view for view in await self._objects.pods()}
        except ApiError:
            self._list_backoff.record_failure()
            return  # a failed request doesn't prove that pods are missing
        self._listed_at = now
        self._list_backoff.reset()
        for part in missing:
            if part.process in views:
                part.view = views[part.process]
            else:
                part.vanished = time.monotonic()

    async def _mark_withdrawn(self, reason: str) -> None:
        """Record that the generation is to be withdrawn, before any object is deleted."""
        await self._write(closing=reason)
        self._entry.changed.set()

    async def _withdraw(self) -> None:
        """Delete the secret, and list the pods that have to end."""
        await self._objects.delete_named("secrets")
        views = {view.process: view for view in await self._objects.pods()}
        for part in self._entry.parts.values():
            if part.process in views:
                part.view = merge_pod_view(part.view, views[part.process])
            if part.view is None:
                part.end = ProcessExit(part.process, -1, time.time(), lost="it never existed")
        self._withdrawn = True

    async def _delete_pods_if_ending(self) -> None:
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
            if part.view is not None and part.view.deleting and part.deletion_began is None:
                # An earlier service or another client deleted it.
                part.deletion_began = time.monotonic() - self._seconds_since_deletion(part.view)
        undelivered = [
            item for item in entry.parts.values() if item.end is None and item.delivered != command
        ]
        await asyncio.gather(*(self._delete_pod(part, command, grace) for part in undelivered))

    async def _record_deciding_exits(self) -> None:
        """Record the deciding ends before other pods are deleted, for a restarted service."""
        parts = self._entry.parts
        ends = {name: part.exit_record() for name, part in parts.items() if part.end is not None}
        if len(ends) < len(parts) and not self._entry.state.get("deciding"):
            await self._write(deciding=ends)

    def _seconds_since_deletion(self, view: PodView) -> float:
        """Return the seconds since a pod's deletion; up to one more, as times are whole seconds."""
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
        began = now if part.deletion_began is None else part.deletion_began
        granted = min(part.granted_grace, now - began + grace)
        grace_seconds = 0 if lost else whole_grace_seconds(granted)  # a lost kubelet can't confirm
        await self._objects.delete("pods", part.pod, part.view.uid, grace_seconds)
        part.deletion_began, part.granted_grace = began, granted
        part.delivered = command
        self._progress_count += 1

    async def _follow_log(self, part: PodProcess) -> None:
        """Fetch and follow a pod's log, once; after the pod's deletion it can't be fetched."""
        if part.log_followed:
            return
        part.log_followed = True
        follower = self._objects.follower(part)
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(LOG_OPEN_TIMEOUT_SECONDS):
                await follower.fetch_new()
        opened = asyncio.Event()  # set at the first line
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
        """Fetch the rest of ended processes' logs in the background."""
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
            # Recorded before the pods are deleted. Otherwise a restarted service would find no
            # pods, and count the generation as lost.
            await self._write(end=end)
        if not await self._delete_all(may_continue=True):
            return
        if refused:
            await self._write(phase=Phase.REFUSED, reason=refused, plan=None)
        else:
            await self._write(**_ENDED, **end)

    async def _delete_all(self, *, may_continue: bool) -> bool:
        """Delete the generation's objects, and wait until no pod runs.

        If ``may_continue``, stop and return False if a process that counts as ended still runs.
        """
        await self._objects.delete_named("secrets")
        backoff = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
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
            await asyncio.sleep(backoff.record_failure())  # sidecars may need their grace period

    def _may_run(self, view: PodView) -> bool:
        """Return whether a pod may still run processes, on a node that isn't lost."""
        part = self._entry.parts.get(view.process)
        return view.may_run and not (part is not None and self._cluster.is_lost(part.server))

    async def _delete_objects(self, views: Iterable[PodView]) -> None:
        """Delete the pods and the service object; raise if a pod that may run remains."""
        for view in views:
            part = self._entry.parts.get(view.process)
            lost = part is not None and self._cluster.is_lost(part.server)
            # With 0, the API server doesn't wait until the kubelet has ended the pod.
            grace_seconds = 0 if lost or view.is_finished else 1
            try:
                await self._objects.delete("pods", view.name, view.uid, grace_seconds)
            except ApiError as error:
                if not error.refused or view.may_run:
                    raise
                log.warning("failed to delete the pod %s/%s: %s", view.namespace, view.name, error)
        if len(self._entry.parts) > 1:
            await self._objects.delete_named("services")

    def _result(self) -> dict[str, Any]:
        entry = self._entry
        ends = entry.process_exits()
        result = outcome_from_exits(
            ends, entry.workers, stop_ordered=entry.stop_ordered, tolerant=entry.tolerant
        )
        deciding = entry.parts[result.process]
        record = result.record()
        if deciding.unseen:
            record["code"] = None
        forced = any(end.killed for end in ends)
        return {**record, "tail": list(deciding.tail), "forced": forced}
