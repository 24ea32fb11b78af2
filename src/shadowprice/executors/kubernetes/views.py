"""Compact cached state of pods, because a cluster may have tens of thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.core.job_keys import MAX_KEY_CHARACTERS
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.quantities import parse_quantity, units_per_quantity

_MAX_TEXT_CHARS: Final = 500
_JOB_LABELS: Final = (
    "training.kubeflow.org/job-name",
    "batch.kubernetes.io/job-name",
    "job-name",
    "volcano.sh/job-name",
    "ray.io/cluster",
)
_ROLE_LABELS: Final = ("training.kubeflow.org/replica-type", "replica-type", "volcano.sh/task-spec")


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a pod's container ended."""

    code: int
    reason: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class PodView:
    """The cached state of a pod. Times are in seconds since 1970.

    ``service``, ``job`` (a key), ``generation`` and ``process`` are set if a Shadowprice service
    created it. ``outer`` is job, tenant and role according to its labels, annotations or owners;
    the job is a key if a Shadowprice service created the pod.
    """

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    reason: str = ""  # of its phase
    message: str = ""
    deleting: bool = False  # its deletion was requested
    terminating_since: float | None = None  # first deletion request by the server's clock
    began: float | None = None  # start of its container
    running: bool = False  # any of its containers runs
    exit: ContainerExit | None = None
    waiting: tuple[str, str] = ("", "")  # why its container hasn't started: reason, message
    unplaced: str = ""  # why the Kubernetes scheduler finds no node for it
    gated: bool = False  # it has scheduling gates
    service: names.ServiceId | None = None
    job: str = ""
    generation: int = 0
    process: str = ""
    takes: Mapping[str, int] = field(default_factory=dict)  # requests in units of `core.amounts`
    outer: tuple[str, str, str] = ("", "", "")

    @property
    def over(self) -> bool:
        """Whether it is in a final phase."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def may_run(self) -> bool:
        """Return whether the pod may still run processes."""
        return self.running or (self.exit is None and not self.over)

    @property
    def continues(self) -> bool:
        """Return whether the pod runs, or will run because its deletion wasn't requested."""
        return self.running or (self.may_run and not self.deleting)


def merge_pod_view(old: PodView | None, new: PodView) -> PodView:
    """Return the new state of a pod, keeping the observed start and end of its container.

    Kubelets before 1.22 finally report for a deleted pod that its container exited 0 without a
    time, or hasn't started.
    """
    if old is None or old.uid != new.uid:
        return new
    exit_ = new.exit or old.exit
    start = new.began if new.began is not None else old.began
    return new if (exit_, start) == (new.exit, new.began) else replace(new, exit=exit_, began=start)


def parse_timestamp(text: object) -> float:
    """Return an API timestamp in seconds since 1970, 0 if it is invalid."""
    try:
        return max(0.0, datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def pod_view(item: Mapping[str, Any]) -> PodView:
    """Return the cached part of a pod object."""
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    own: Mapping[str, Any] = next(
        (
            container["state"]
            for container in status.get("containerStatuses") or ()
            if container.get("name") == names.CONTAINER or names.SERVICE not in labels
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
        reason=str(status.get("reason") or "")[:_MAX_TEXT_CHARS],
        message=str(status.get("message") or "")[:_MAX_TEXT_CHARS],
        deleting="deletionTimestamp" in meta,
        terminating_since=_terminating_since(meta),
        began=_began(ended, runs),
        running=any(
            "running" in (container.get("state") or {})
            for container in status.get("containerStatuses") or ()
        ),
        exit=None
        if ended is None or not parse_timestamp(ended.get("finishedAt"))
        else _exit(ended),
        waiting=(str(waits.get("reason", "")), str(waits.get("message", ""))[:_MAX_TEXT_CHARS]),
        unplaced=_unscheduled_reason(placed),
        gated=bool(spec.get("schedulingGates")),
        service=_service(labels),
        job=str(labels.get(names.JOB, "")),
        generation=int(number) if number.isdecimal() and len(number) < 16 else 0,
        process=str(labels.get(names.PROCESS, "")),
        takes=requested_resources(spec),
        outer=_read_labels(meta, labels, notes),
    )


def _service(labels: Mapping[str, Any]) -> names.ServiceId | None:
    if names.SERVICE not in labels:
        return None
    return names.ServiceId(str(labels[names.SERVICE]), str(labels.get(names.SERVICE_NAMESPACE, "")))


def _terminating_since(meta: Mapping[str, Any]) -> float | None:
    """Return the time of the first deletion request; a shorter grace period counts from it."""
    until = parse_timestamp(meta.get("deletionTimestamp"))
    return until - float(meta.get("deletionGracePeriodSeconds") or 0) if until else None


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    matching = (
        condition for condition in status.get("conditions") or () if condition.get("type") == kind
    )
    return next(matching, {})


def _unscheduled_reason(placed: Mapping[str, Any]) -> str:
    if placed.get("status") != "False" or placed.get("reason") != "Unschedulable":
        return ""
    return str(placed.get("message", "no node accepts it"))[:_MAX_TEXT_CHARS]


def _began(ended: Mapping[str, Any] | None, runs: Mapping[str, Any] | None) -> float | None:
    if runs is not None:
        return parse_timestamp(runs.get("startedAt"))
    if ended is not None:
        return (
            parse_timestamp(ended.get("startedAt"))
            or parse_timestamp(ended.get("finishedAt"))
            or None
        )
    return None


def _exit(ended: Mapping[str, Any]) -> ContainerExit:
    return ContainerExit(
        int(ended.get("exitCode", -1)),
        str(ended.get("reason") or ""),
        str(ended.get("message") or "")[:_MAX_TEXT_CHARS],
        parse_timestamp(ended.get("finishedAt")),
    )


def requested_resources(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return a pod's effective resource requests.

    This is the sum of its containers and sidecars (init containers that are always restarted), or
    the largest init container with the sidecars before it, whichever is greater; plus the overhead.
    """
    sidecars: Counter[str] = Counter()
    starting: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        requests = Counter(_requests(container))
        if container.get("restartPolicy") == "Always":
            sidecars += requests
        else:
            starting |= sidecars + requests
    total = sum(map(Counter, map(_requests, spec.get("containers") or ())), sidecars) | starting
    for name, text in (spec.get("overhead") or {}).items():
        total[name] += parse_quantity(text, units_per_quantity(name))
    return dict(total)


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(text, units_per_quantity(name)) for name, text in amounts.items()}


def _read_labels(
    meta: Mapping[str, Any], labels: Mapping[str, Any], notes: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Return job, tenant and role of a pod; empty if it belongs to no job."""
    key = names.decode_job_name(notes.get(names.JOB_NAME))[:MAX_KEY_CHARACTERS]
    job = key or str(notes.get(names.JOB_NAME, ""))
    if not job:
        job = str(next((labels[name] for name in _JOB_LABELS if labels.get(name)), ""))
    if not job:
        owners: Iterable[Mapping[str, Any]] = meta.get("ownerReferences") or ()
        job = next(
            (str(owner["name"]) for owner in owners if str(owner.get("kind")).endswith("Job")), ""
        )
    if not job:
        return ("", "", "")
    tenant = str(notes.get(names.TENANT) or labels.get(names.TENANT) or meta["namespace"])
    role = str(next((labels[name] for name in _ROLE_LABELS if name in labels), "worker")).lower()
    job = key or job[: int(bounds.NAME.maximum)]
    return (job, tenant, "ps" if role in {"ps", "server"} else "worker")
