"""How a process ended, and why one does not begin, by what is told of its pod."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from shadowprice.executors.generations.parts import PartEnd
from shadowprice.executors.generations.verdict import TERMINATED
from shadowprice.executors.kubernetes.entry import KubernetesEntry, Part
from shadowprice.executors.kubernetes.nodes import NodeView
from shadowprice.executors.kubernetes.views import Exit, PodView

VANISHED: Final = 5.0
"""Seconds from when a pod that ran is deleted by force until its node has surely ended it; also
from when one that was asked for, and that no event told of, was looked for and is not there."""

KILLED: Final = 137
REFUSING: Final[dict[str, Any]] = {"command": 0, "at": 0.0, "reason": "another service took over"}

_NEVER: Final = frozenset({"ErrImageNeverPull", "InvalidImageName"})
_BEGINS: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_WHY: Final = (
    ("no such file or directory", "No such file or directory"),
    ("executable file not found", "No such file or directory"),
    ("permission denied", "Permission denied"),
    ("is a directory", "Permission denied"),
)


def end_of(
    part: Part,
    *,
    node: NodeView | None,
    lost_after: float,
    gone_since: float | None,
    withdrawn: bool,
) -> PartEnd | None:
    """Return how a process ended, None where that was not seen yet.

    Parameters
    ----------
    part : Part
        The process and its pod.
    node : NodeView or None
        The node that it was to run on, as it is now.
    lost_after : float
        Seconds from when a node is gone until what ran there is taken for ended.
    gone_since : float or None
        Since when it is gone, on the monotonic clock.
    withdrawn : bool
        Whether its generation is being taken back.
    """
    view = part.view
    now = time.monotonic()
    if view is None:
        since = part.vanished
        if since is None or now - since < (0.0 if withdrawn else VANISHED):
            return None
        return _unseen(part) if part.told else _lost(part, _removed(part))
    told = part.told
    if view.exit is not None and not view.running:
        return _exited(part, view, view.exit, told=told)
    if gone_since is not None and (
        now - gone_since > lost_after or (node is not None and node.off)
    ):
        why = f"the node {part.server} is not there any more, and {part.process} with it"
        return PartEnd(part.process, -1, time.time(), lost=why)
    if view.over and not view.running and view.began is None and not told:
        return _never_began(part, view)
    if part.vanished is None:
        if not view.over or not _seems_over(part, view, now):
            return None
        return _unseen(part) if told else _lost(part, _why_over(part, view))
    if gone_since is not None or (view.running and now - part.vanished < VANISHED):
        return None
    return _unseen(part) if told else _lost(part, _removed(part))


def _unseen(part: Part) -> PartEnd:
    """Return the end of a process that was told to, and of which nobody saw how it did."""
    part.unseen = True
    return PartEnd(part.process, TERMINATED, time.time(), told=True)


def _lost(part: Part, why: str) -> PartEnd:
    return PartEnd(part.process, -1, time.time(), lost=why)


def _seems_over(part: Part, view: PodView, now: float) -> bool:
    """Whether a pod that is over on paper is so in truth: an evicted one is said so before."""
    if not view.running:
        return True
    part.over_since = part.over_since or now
    return now - part.over_since > VANISHED


def _exited(part: Part, view: PodView, exit_: Exit, *, told: bool) -> PartEnd:
    out_of_memory = exit_.reason == "OOMKilled"
    note = ""
    if out_of_memory:
        note = "it needed more memory than its job asks for (OOMKilled)"
    elif exit_.reason in {"StartError", "ContainerCannotRun", "RunContainerError"}:
        note = cannot_run(exit_.message)
    if view.reason in {"Evicted", "Preempted", "NodeShutdown", "Shutdown", "Terminated"}:
        if not (told or exit_.code == 0):
            return PartEnd(part.process, -1, exit_.at, lost=_why_over(part, view))
    elif view.deleting and not told and exit_.code in {TERMINATED, KILLED}:
        return PartEnd(part.process, -1, exit_.at, lost=_removed(part))
    killed = told and exit_.code == KILLED and not out_of_memory
    return PartEnd(part.process, exit_.code, exit_.at, told=told, killed=killed, note=note)


def cannot_run(message: str) -> str:
    """Return why a program could not be begun, from what a container runtime says of it."""
    found = re.search(r'exec: "([^"]*)"', message)
    what = found[1] if found else "it"
    why = next((said for told, said in _WHY if told in message), message)
    return f"cannot run {what}: {why}"


def _never_began(part: Part, view: PodView) -> PartEnd:
    why = view.message or view.reason or "its pod ended before it began"
    where = f"{part.server} did not take {part.process}"
    return PartEnd(part.process, -1, time.time(), lost=f"{where}: {view.reason}: {why}")


def _removed(part: Part) -> str:
    return f"the pod of {part.process} was deleted, but not by the scheduler"


def _why_over(part: Part, view: PodView) -> str:
    why = f"{view.reason}: {view.message}" if view.message else view.reason
    return f"the pod of {part.process} was ended on {part.server}: {why or 'nobody says why'}"


def refusal_of(entry: KubernetesEntry, patience: float) -> str:
    """Return why a generation that has not begun never will, empty while it may.

    Parameters
    ----------
    entry : KubernetesEntry
        The generation.
    patience : float
        Seconds that its pods have.
    """
    waited = time.monotonic() - entry.since
    for part in entry.parts.values():
        if part.end is not None and part.end.lost:
            return part.end.lost
    for part in entry.parts.values():
        view = part.view
        if view is not None and view.waiting[0] in _NEVER:
            return _waits(part, view)
    if waited <= patience:
        return ""
    for part in entry.parts.values():
        view = part.view
        if view is not None and view.unplaced:
            return f"no place on {part.server} within {patience:g} s: {view.unplaced}"
        if view is not None and view.waiting[0] not in _BEGINS:
            return _waits(part, view)
    late = next((part for part in entry.parts.values() if not part.began), None)
    return (
        ""
        if late is None
        else f"{late.process} did not begin on {late.server} within {patience:g} s"
    )


def _waits(part: Part, view: PodView) -> str:
    reason, message = view.waiting
    told = f": {message}" if message else ""
    return f"{part.process} cannot begin on {part.server}: {reason}{told}"
