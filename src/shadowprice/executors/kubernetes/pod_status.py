"""Ends of processes, and refusals of generations, derived from the state of their pods."""

from __future__ import annotations

import re
import time
from typing import Final

from shadowprice.executors.generations.outcome import EXIT_SIGTERM, ProcessExit
from shadowprice.executors.kubernetes.session import KubernetesGeneration, PodProcess
from shadowprice.executors.kubernetes.views import ContainerExit, NodeView, PodView

POD_GONE_AFTER_SECONDS: Final = 5.0
"""Seconds after a forced deletion of a pod until its node has surely killed its processes.

It is also the time after which a created pod counts as missing if no event or list shows it.
"""

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


def process_exit_of(
    part: PodProcess,
    *,
    node: NodeView | None,
    lost_after: float,
    gone_since: float | None,
    withdrawn: bool,
) -> ProcessExit | None:
    """Return how a process ended, None if it hasn't.

    ``gone_since`` is the monotonic time since which its node is missing or not ready;
    ``lost_after`` seconds later the process counts as lost.
    """
    view = part.view
    now = time.monotonic()
    if view is None:
        since = part.vanished
        if since is None or now - since < (0.0 if withdrawn else POD_GONE_AFTER_SECONDS):
            return None
        return _unseen_exit(part, _deletion_reason(part))
    if view.exit is not None:  # injected sidecars may run on, until the pod is deleted
        return _observed_exit(part, view, view.exit, stop_requested=part.stop_requested)
    if gone_since is not None and (
        now - gone_since > lost_after or (node is not None and node.off)
    ):
        return _lost_exit(part, _node_loss_reason(part, node, lost_after))
    if view.over and not view.running and view.began is None and not part.stop_requested:
        return _exit_before_start(part, view)
    if part.vanished is None:
        if not view.over or not _has_ended(part, view, now):
            return None
        return _unseen_exit(part, _pod_end_reason(part, view))
    if gone_since is not None or (view.running and now - part.vanished < POD_GONE_AFTER_SECONDS):
        return None
    return _unseen_exit(part, _deletion_reason(part))


def _unseen_exit(part: PodProcess, lost_reason: str) -> ProcessExit:
    """Return the end of a process with an unknown status: lost, unless its stop was requested."""
    if not part.stop_requested:
        return _lost_exit(part, lost_reason)
    part.unseen = True
    return ProcessExit(part.process, EXIT_SIGTERM, time.time(), stop_requested=True)


def _lost_exit(part: PodProcess, why: str) -> ProcessExit:
    return ProcessExit(part.process, -1, time.time(), lost=why)


def _has_ended(part: PodProcess, view: PodView, now: float) -> bool:
    """Return whether the processes of a pod in a final phase, which may be evicted, have ended."""
    if not view.running:
        return True
    part.over_since = part.over_since or now
    return now - part.over_since > POD_GONE_AFTER_SECONDS


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
        if exit_.code == 0:  # only its progress shows whether its work is done
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
    """Return whether somebody other than the executor had asked a pod to end before its exit."""
    if view.reason in _EVICTION_REASONS:
        return True
    if not view.deleting:
        return False
    # The server's clock and the node's may differ, but these statuses are those of a deletion.
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
    elif node.off:
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
    """Return why a generation is refused, empty while it may start within ``patience`` seconds."""
    parts = entry.parts.values()
    for part in parts:
        if part.end is not None and part.end.lost:
            return part.end.lost
    pods = [(part, part.view) for part in parts if part.view is not None]
    for part, view in pods:
        if view.waiting[0] in _PERMANENT_WAIT_REASONS:
            return _wait_reason(part, view)
    if time.monotonic() - entry.since <= patience:
        return ""
    for part, view in pods:
        if view.unplaced:
            return f"no place on {part.server} within {patience:g} s: {view.unplaced}"
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
