"""What is kept of pods and nodes: little, for a cluster may have tens of thousands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.quantities import unit_of, units

_MOST_TEXT: Final = 500
_JOB_LABELS: Final = (
    "training.kubeflow.org/job-name",
    "batch.kubernetes.io/job-name",
    "job-name",
    "volcano.sh/job-name",
    "ray.io/cluster",
)
_ROLE_LABELS: Final = ("training.kubeflow.org/replica-type", "replica-type", "volcano.sh/task-spec")


@dataclass(frozen=True, slots=True)
class Exit:
    """How a pod's container ended."""

    code: int
    reason: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class PodView:
    """What is known of a pod.

    Parameters
    ----------
    namespace, name, uid, node, phase
        As the API has them.
    reason, message : str
        Why it is in its phase.
    deleting : bool
        Whether its deletion was asked for.
    told : float or None
        When that was asked for first, by the server's clock, seconds since 1970.
    began : float or None
        When its container began, seconds since 1970.
    running : bool
        Whether a container of it runs.
    exit : Exit or None
        How its container ended.
    waiting : (str, str)
        Why its container has not begun: reason and message.
    unplaced : str
        Why the scheduler finds no node for it.
    gated : bool
        Whether it waits for others of its generation.
    service, job, generation, process
        Whose it is, where it is one of a service's.
    takes : mapping of str to int
        What it asks its node for, in the units of `core.amounts`, by the node's names.
    outer : (str, str, str)
        Job, tenant and role of a pod, as its labels, its notes or its owner say.
    created : float
        When it was made.
    """

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    reason: str = ""
    message: str = ""
    deleting: bool = False
    told: float | None = None
    began: float | None = None
    running: bool = False
    exit: Exit | None = None
    waiting: tuple[str, str] = ("", "")
    unplaced: str = ""
    gated: bool = False
    service: str = ""
    job: str = ""
    generation: int = 0
    process: str = ""
    takes: Mapping[str, int] = field(default_factory=dict)
    outer: tuple[str, str, str] = ("", "", "")
    created: float = 0.0

    @property
    def over(self) -> bool:
        """Whether it is in a phase that it never leaves."""
        return self.phase in {"Succeeded", "Failed"}


def kept(old: PodView | None, new: PodView) -> PodView:
    """Return what is known of a pod: what was seen of its container stays seen.

    Kubelets before 1.22 say of a pod that is deleted, in the end, that its container exited 0 at no
    time, or that it has not begun.
    """
    if old is None or old.uid != new.uid:
        return new
    exit_ = new.exit or old.exit
    began = new.began if new.began is not None else old.began
    return new if (exit_, began) == (new.exit, new.began) else replace(new, exit=exit_, began=began)


def moment(text: object) -> float:
    """Return a time of the API in seconds since 1970, 0 where it is none."""
    try:
        return max(0.0, datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def pod_view(item: Mapping[str, Any]) -> PodView:
    """Return what is kept of a pod."""
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    own: Mapping[str, Any] = next(
        (
            one["state"]
            for one in status.get("containerStatuses") or ()
            if one.get("name") == names.CONTAINER or names.SERVICE not in labels
        ),
        {},
    )
    ended, runs, waits = own.get("terminated"), own.get("running"), own.get("waiting") or {}
    placed = _condition(status, "PodScheduled")
    number = str(labels.get(names.GENERATION, ""))
    return PodView(
        namespace=str(meta["namespace"]),
        name=str(meta["name"]),
        uid=str(meta.get("uid", "")),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Pending"),
        reason=str(status.get("reason") or "")[:_MOST_TEXT],
        message=str(status.get("message") or "")[:_MOST_TEXT],
        deleting="deletionTimestamp" in meta,
        told=_told(meta),
        began=_began(ended, runs),
        running=any(
            "running" in (one.get("state") or {}) for one in status.get("containerStatuses") or ()
        ),
        exit=None if ended is None or not moment(ended.get("finishedAt")) else _exit(ended),
        waiting=(str(waits.get("reason", "")), str(waits.get("message", ""))[:_MOST_TEXT]),
        unplaced=_unplaced(placed),
        gated=bool(spec.get("schedulingGates")),
        service=str(labels.get(names.SERVICE, "")),
        job=str(labels.get(names.JOB, "")),
        generation=int(number) if number.isdecimal() and len(number) < 16 else 0,
        process=str(labels.get(names.PROCESS, "")),
        takes=taken(spec),
        outer=_outer(meta, labels, notes),
        created=moment(meta.get("creationTimestamp")),
    )


def _told(meta: Mapping[str, Any]) -> float | None:
    """Return when an object's deletion was asked for first: a shorter grace counts from then."""
    until = moment(meta.get("deletionTimestamp"))
    return until - float(meta.get("deletionGracePeriodSeconds") or 0) if until else None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = (one for one in status.get("conditions") or () if one.get("type") == kind)
    return next(found, {})


def _unplaced(placed: Mapping[str, Any]) -> str:
    if placed.get("status") != "False" or placed.get("reason") != "Unschedulable":
        return ""
    return str(placed.get("message", "no node takes it"))[:_MOST_TEXT]


def _began(ended: Mapping[str, Any] | None, runs: Mapping[str, Any] | None) -> float | None:
    if runs is not None:
        return moment(runs.get("startedAt"))
    if ended is not None:
        return moment(ended.get("startedAt")) or moment(ended.get("finishedAt")) or None
    return None


def _exit(ended: Mapping[str, Any]) -> Exit:
    return Exit(
        int(ended.get("exitCode", -1)),
        str(ended.get("reason") or ""),
        str(ended.get("message") or "")[:_MOST_TEXT],
        moment(ended.get("finishedAt")),
    )


def taken(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return what a pod asks its node for: all its containers, or its largest first one."""
    total: dict[str, int] = {}
    for one in spec.get("containers") or ():
        for name, amount in _requests(one).items():
            total[name] = total.get(name, 0) + amount
    for one in spec.get("initContainers") or ():
        for name, amount in _requests(one).items():
            total[name] = max(total.get(name, 0), amount)
    for name, text in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, 0) + units(text, unit_of(name))
    return total


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    told = container.get("resources") or {}
    asked = {**(told.get("limits") or {}), **(told.get("requests") or {})}
    return {name: units(text, unit_of(name)) for name, text in asked.items()}


def _outer(
    meta: Mapping[str, Any], labels: Mapping[str, Any], notes: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Return job, tenant and role of a pod that belongs to a job of others; empty elsewhere."""
    job = names.read(notes.get(names.JOB_NAME)) or str(notes.get(names.JOB_NAME, ""))
    if not job:
        job = str(next((labels[name] for name in _JOB_LABELS if labels.get(name)), ""))
    if not job:
        owners: Iterable[Mapping[str, Any]] = meta.get("ownerReferences") or ()
        job = next((str(one["name"]) for one in owners if str(one.get("kind")).endswith("Job")), "")
    if not job:
        return ("", "", "")
    tenant = str(notes.get(names.TENANT) or labels.get(names.TENANT) or meta["namespace"])
    role = str(next((labels[name] for name in _ROLE_LABELS if name in labels), "worker")).lower()
    return (job[: int(bounds.NAME.most)], tenant, "ps" if role in {"ps", "server"} else "worker")
