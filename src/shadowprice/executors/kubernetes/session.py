"""Connection and tracked generations of a Kubernetes executor, and the ends of their pods."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from shadowprice.executors.background import BackgroundTasks
from shadowprice.executors.contract import Ending, GenerationSpec, Report, ServerAllocation
from shadowprice.executors.generations.generation import GenerationDirectory, Phase
from shadowprice.executors.generations.outcome import EXIT_SIGTERM, ProcessExit
from shadowprice.executors.generations.registry import RemoteGeneration
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.cluster_cache import ClusterCache
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.pod_logs import PodLogFollower
from shadowprice.executors.kubernetes.records import ConfigMapStore
from shadowprice.executors.kubernetes.settings import KubernetesSettings
from shadowprice.executors.kubernetes.views import ContainerExit, NodeView, PodView, pod_view
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError

log = logging.getLogger("shadowprice.executors")

MAX_PODS_READ_BY_NAME: Final = 8  # more pods are listed by label, in one request

# Seconds until the node of a pod that is gone has surely killed its processes. Also the time after
# which a created pod counts as gone if no event or list shows it.
POD_GONE_AFTER_SECONDS: Final = 5.0

EXIT_SIGKILL: Final = 137
_PERMANENT_WAIT_REASONS: Final = frozenset({"ErrImageNeverPull", "InvalidImageName"})
_NORMAL_WAIT_REASONS: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_EVICTION_REASONS: Final = frozenset(
    {"Evicted", "Preempted", "NodeShutdown", "Shutdown", "Terminated"}
)
"""Reasons of pods that their node or the cluster ended."""

_START_ERRORS: Final = (
    ("no such file or directory", "No such file or directory"),
    ("executable file not found", "No such file or directory"),
    ("permission denied", "Permission denied"),
    ("is a directory", "Permission denied"),
)


@dataclass
class PodProcess:
    """One process of a generation, and its pod."""

    process: str
    server: str
    pod: str
    uid: str = ""  # uid of the pod, if this service created it
    view: PodView | None = None  # the last observed state of the pod
    vanished: float | None = None  # monotonic time since which the pod is missing
    finished_since: float | None = None  # monotonic, since a finished pod's container seems to run
    delivered: int = 0  # the newest stop command that the API server accepted
    deletion_began: float | None = None  # monotonic time of the first known deletion request
    granted_grace: float = math.inf  # grace period in seconds from ``deletion_began`` on
    stop_requested: bool = False  # whether its deletion was requested, even without a response
    end: ProcessExit | None = None
    log_followed: bool = False  # whether its log is, or was, followed
    unseen: bool = False  # whether it ended with an unknown exit status
    tail: tuple[str, ...] = ()  # last lines of its log
    follower: PodLogFollower | None = None

    @property
    def has_started(self) -> bool:
        """Whether its process has started."""
        return self.view is not None and self.view.began is not None

    def exit_record(self) -> dict[str, Any]:
        """Return its end for the record; a restarted service collects its log again."""
        assert self.end is not None
        return {"end": asdict(self.end), "unseen": self.unseen}

    def load_exit_record(self, record: Mapping[str, Any]) -> None:
        """Restore its end from the result of `exit_record`."""
        self.end, self.unseen = ProcessExit(**record["end"]), bool(record["unseen"])


class KubernetesGeneration(RemoteGeneration):
    """One generation on Kubernetes; its directory only has logs."""

    def __init__(self, job: str, number: int, generation: GenerationDirectory) -> None:
        super().__init__(job, number, generation)
        self.parts: dict[str, PodProcess] = {}
        self.spec: GenerationSpec | None = None  # None if another service accepted it
        self.token = ""  # for progress reports; masked in logs
        self.namespace = ""
        self.obstacle = ""  # why the API server doesn't let it start or end; empty if it does
        self.tracked_since = time.monotonic()

    def load_state(self, state: dict[str, Any]) -> None:
        """Apply the state in its record."""
        self.state = state
        stop = state.get("stop", {})
        self._stop_command = int(stop.get("command", 0))
        self.stop_ordered = bool(self._stop_command)
        self.placement = tuple(ServerAllocation(*share) for share in state.get("placement", ()))
        plan = state.get("plan")
        if plan and not self.parts:
            self.set_plan(
                {"processes": [{"name": part["process"]} for part in plan["parts"]], **plan}
            )
            parts = [PodProcess(**part) for part in plan["parts"]]
            self.parts = {part.process: part for part in parts}
            self.namespace = str(plan["namespace"])
            for name, end in (state.get("deciding") or {}).items():
                self.parts[name].load_exit_record(end)

    def state_without_record(self) -> dict[str, Any]:
        """Return its state after its record was deleted: lost, unless it had ended before."""
        if self.is_finished:
            return dict(self.state)
        lost = {"ending": Ending.LOST.value, "code": None, "reason": "its record was deleted"}
        return {**self.state, "phase": Phase.ENDED, "at": time.time(), **lost}

    def accepts_state(self, state: Mapping[str, Any]) -> bool:
        """Return whether a stored state belongs to this generation.

        After its record was deleted, a stop command stores a refused generation of its number.
        """
        return self.phase not in {Phase.RUNNING, Phase.ENDED} or state["phase"] != Phase.REFUSED

    @property
    def termination_requested(self) -> bool:
        """Whether this or an earlier service may have deleted its pods."""
        return self.stop_ordered or bool(self.state.get("deciding"))

    def read(self) -> None:
        """Do nothing: its record is in the API server; see `load_state`."""


@dataclass
class KubernetesSession:
    """An executor's open connection to its cluster, with everything that depends on it."""

    settings: KubernetesSettings
    identity: ServiceId
    connection: ApiClient
    records: ConfigMapStore
    cluster: ClusterCache
    background: BackgroundTasks
    emit: Callable[[Iterable[Report]], None]
    mark_strays: Callable[[Iterable[PodView]], None]  # of pods that couldn't be deleted
    gates: bool = False  # whether the API server supports scheduling gates of pods


class GenerationObjects:
    """Reads, changes and deletes the objects of a generation."""

    def __init__(self, session: KubernetesSession, entry: KubernetesGeneration) -> None:
        self._session = session
        self._entry = entry
        self.connection = session.connection
        self.uids: dict[str, str] = {}  # uids of the generation's own secret and service, by kind

    def path(self, kind: str, name: str = "") -> str:
        """Return the API path of a kind of objects, or of one object."""
        path = f"/api/v1/namespaces/{self._entry.namespace}/{kind}"
        return f"{path}/{name}" if name else path

    @property
    def name(self) -> str:
        """Name of the secret and the service."""
        return names.generation_name(self._entry.job, self._entry.number)

    async def pods(self) -> list[PodView]:
        """Return the generation's pods. Few are read by name: a list by label reads every pod."""
        parts = self._entry.parts.values()
        if not 0 < len(parts) <= MAX_PODS_READ_BY_NAME:
            return await self._list()
        lists = await asyncio.gather(*(self._list(f"metadata.name={part.pod}") for part in parts))
        return [view for views in lists for view in views]

    async def _list(self, fields: str = "") -> list[PodView]:
        entry = self._entry
        query = {"labelSelector": self._session.identity.selector(entry.job, entry.number)}
        if fields:
            query["fieldSelector"] = fields
        page = await self.connection.get(self.path("pods"), **query)
        return [pod_view(item) for item in page.get("items") or ()]

    def is_own(self, item: Mapping[str, Any], execution: str = "") -> bool:
        """Return whether the generation created an object, in the launch ``execution`` if given."""
        entry, meta = self._entry, item["metadata"]
        labels = self._session.identity.labels(entry.job, entry.number)
        owner = (entry.state.get("plan") or {}).get("owner")
        return (
            labels.items() <= (meta.get("labels") or {}).items()
            and (
                owner is None
                or owner["uid"]
                in {reference.get("uid") for reference in meta.get("ownerReferences") or ()}
            )
            and execution in {"", (meta.get("annotations") or {}).get(names.EXECUTION)}
        )

    def follower(self, part: PodProcess) -> PodLogFollower:
        """Return the follower of a process's log, created on first use."""
        if part.follower is None:
            part.follower = PodLogFollower(
                self.connection,
                self.path("pods", part.pod),
                self._entry.generation.logs,
                part.process,
                self._session.settings.log_bytes,
                self._entry.token,
            )
        return part.follower

    async def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object by its name, None if it doesn't exist."""
        if kind == "pods":  # a list needs no right that watching pods doesn't need
            page = await self.connection.get(self.path(kind), fieldSelector=f"metadata.name={name}")
            items = page.get("items") or ()
            return dict(items[0]) if items else None
        return await self.connection.find(self.path(kind, name))

    async def remove_scheduling_gates(self) -> None:
        """Remove the scheduling gates, once all pods exist."""
        for view in await self.pods():
            if view.gated:
                try:
                    await self.connection.patch(
                        self.path("pods", view.name), {"spec": {"schedulingGates": None}}
                    )
                except ApiError as error:
                    if not error.not_found:  # deleted meanwhile, which is reported as its end
                        raise

    async def delete_named(self, kind: str) -> None:
        """Delete the generation's secret or service object; log it if the API server refuses."""
        entry = self._entry
        try:
            if kind not in self.uids:
                item = await self.find(kind, self.name)
                if item is None or not self.is_own(item):
                    return
                self.uids[kind] = str(item["metadata"]["uid"])
            await self.delete(kind, self.name, self.uids[kind])
        except ApiError as error:
            if not error.refused:
                raise
            message = "failed to delete %s of generation %d of %r: %s"
            log.warning(message, kind, entry.number, entry.job, error)

    async def delete(
        self, kind: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> None:
        """Delete an object by name if it still has this uid."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self.connection.delete(self.path(kind, name), body)
        except ApiError as error:
            if not (error.not_found or error.conflict):  # conflict: a new object has this name
                raise


def process_exit_of(
    part: PodProcess,
    *,
    node: NodeView | None,
    lost_after: float,
    gone_since: float | None,
    withdrawn: bool,
) -> ProcessExit | None:
    """Return how a process ended, None if it hasn't.

    ``gone_since`` is the monotonic time since which its node is missing or not ready. The process
    counts as lost ``lost_after`` seconds later. ``withdrawn`` says that no pod can start any more.
    """
    view = part.view
    now = time.monotonic()
    if view is None:  # its pod was created, but never observed
        since = part.vanished
        if since is None or now - since < (0.0 if withdrawn else POD_GONE_AFTER_SECONDS):
            return None
        return _unseen_exit(part, _deletion_reason(part))
    if view.exit is not None:  # injected sidecars may run on, until the pod is deleted
        return _observed_exit(part, view, view.exit, stop_requested=part.stop_requested)
    if gone_since is not None and (
        now - gone_since > lost_after or (node is not None and node.out_of_service)
    ):
        return _lost_exit(part, _node_loss_reason(part, node, lost_after))
    if view.is_finished and not view.running and view.began is None and not part.stop_requested:
        # The kubelet or an eviction ended the pod before the container started.
        return _exit_before_start(part, view)
    if part.vanished is None:  # the pod exists
        if not view.is_finished or not _has_ended(part, view, now):
            return None
        return _unseen_exit(part, _pod_end_reason(part, view))
    # An unready node may still run the processes of a deleted pod, until they count as lost.
    if gone_since is not None or (view.running and now - part.vanished < POD_GONE_AFTER_SECONDS):
        return None
    return _unseen_exit(part, _deletion_reason(part))


def _unseen_exit(part: PodProcess, lost_reason: str) -> ProcessExit:
    """Return the end of a process with an unknown exit status: lost, unless it was stopped."""
    if not part.stop_requested:
        return _lost_exit(part, lost_reason)
    part.unseen = True
    return ProcessExit(part.process, EXIT_SIGTERM, time.time(), stop_requested=True)


def _lost_exit(part: PodProcess, reason: str) -> ProcessExit:
    return ProcessExit(part.process, -1, time.time(), lost=reason)


def _has_ended(part: PodProcess, view: PodView, now: float) -> bool:
    """Return whether the processes of a pod in a final phase have ended.

    The containers of an evicted pod may run on for a moment, or be reported so forever.
    """
    if not view.running:
        return True
    part.finished_since = part.finished_since or now
    return now - part.finished_since > POD_GONE_AFTER_SECONDS


def _observed_exit(
    part: PodProcess, view: PodView, exit_: ContainerExit, *, stop_requested: bool
) -> ProcessExit:
    out_of_memory = exit_.reason == "OOMKilled"
    note = ""
    if out_of_memory:
        note = "it used more memory than its job requests (OOMKilled)"
    elif exit_.reason in {"StartError", "ContainerCannotRun", "RunContainerError"}:
        note = start_error_message(exit_.message)
    if not stop_requested and _was_ended_from_outside(view, exit_):
        if exit_.code == 0:  # the job's progress shows whether its work is done
            return ProcessExit(
                part.process, 0, exit_.at, stop_requested=True, outside=True, note=note
            )
        evicted = view.reason in _EVICTION_REASONS
        reason = _pod_end_reason(part, view) if evicted else _deletion_reason(part)
        return ProcessExit(part.process, -1, exit_.at, lost=reason)
    killed = stop_requested and exit_.code == EXIT_SIGKILL and not out_of_memory
    return ProcessExit(
        part.process, exit_.code, exit_.at, stop_requested=stop_requested, killed=killed, note=note
    )


def _was_ended_from_outside(view: PodView, exit_: ContainerExit) -> bool:
    """Return whether something other than the executor asked a pod to end before its exit."""
    if view.reason in _EVICTION_REASONS:
        return True
    if not view.deleting:
        return False
    # By these statuses a signal ended it. Other exits are compared by time, but clocks may differ.
    since = view.terminating_since
    return exit_.code in {EXIT_SIGTERM, EXIT_SIGKILL} or since is None or exit_.at >= since


def start_error_message(message: str) -> str:
    """Return why a program couldn't be started, from the container runtime's message."""
    match = re.search(r'exec: "([^"]*)"', message)
    program = match[1] if match else "it"
    reason = next((text for pattern, text in _START_ERRORS if pattern in message), message)
    return f"cannot run {program}: {reason}"


def _node_loss_reason(part: PodProcess, node: NodeView | None, lost_after: float) -> str:
    if node is None:
        event = "left the cluster"
    elif node.out_of_service:
        event = "was declared out of service"
    else:
        event = f"was not ready for {lost_after:g} s"
    return f"the node {part.server} {event} while {part.process} was on it"


def _exit_before_start(part: PodProcess, view: PodView) -> ProcessExit:
    if view.reason in _EVICTION_REASONS:
        return _lost_exit(part, _pod_end_reason(part, view))
    details = ": ".join(filter(None, (view.reason, view.message))) or "no reason given"
    return _lost_exit(part, f"the kubelet on {part.server} rejected {part.process}: {details}")


def _deletion_reason(part: PodProcess) -> str:
    return f"the pod of {part.process} was deleted by someone other than the scheduler"


def _pod_end_reason(part: PodProcess, view: PodView) -> str:
    reason = f"{view.reason}: {view.message}" if view.message else view.reason
    return f"the pod of {part.process} was ended on {part.server}: {reason or 'no reason given'}"


def start_failure_reason(entry: KubernetesGeneration, patience: float) -> str:
    """Return why a generation is refused; empty while it may still start.

    Lasting causes count at once, others after ``patience`` seconds.
    """
    parts = entry.parts.values()
    for part in parts:
        if part.end is not None and part.end.lost:
            return part.end.lost
    pods = [(part, part.view) for part in parts if part.view is not None]
    for part, view in pods:
        if view.waiting[0] in _PERMANENT_WAIT_REASONS:
            return _wait_reason(part, view)
    if time.monotonic() - entry.tracked_since <= patience:
        return ""
    for part, view in pods:
        if view.unschedulable:
            return f"no place on {part.server} within {patience:g} s: {view.unschedulable}"
        if view.waiting[0] not in _NORMAL_WAIT_REASONS:
            return _wait_reason(part, view)
    for part in parts:
        if not part.has_started:
            return f"{part.process} did not start on {part.server} within {patience:g} s"
    return ""


def _wait_reason(part: PodProcess, view: PodView) -> str:
    reason, message = view.waiting
    details = f": {message}" if message else ""
    return f"{part.process} can't start on {part.server}: {reason}{details}"
