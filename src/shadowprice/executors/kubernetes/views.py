"""Compact state of nodes and pods, and the servers and jobs derived from it.

A cluster may have tens of thousands of pods, so only the needed fields are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.core.amounts import MILLI
from shadowprice.core.devices import is_device
from shadowprice.core.job_keys import MAX_KEY_CHARACTERS, name_of_key
from shadowprice.executors.contract import ROLE_LABEL, ObservedJob, ServerAllocation, ServerInfo
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.processes import PlacementError, gpu_millis, round_down_memory

# Number, and either a decimal exponent or a unit.
_QUANTITY: Final = re.compile(
    r"([+-]?[0-9]{0,20}(?:\.[0-9]{0,20})?)(?:[eE]([+-]?[0-9]{1,2})|([A-Za-z]{0,2}))"
)
_UNITS: Final = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{name: Fraction(1000) ** n for n, name in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{name: Fraction(1024) ** n for n, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}

_KIND_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
_KEPT_LABELS: Final = (*_KIND_LABELS, ROLE_LABEL)  # a node may have hundreds of labels
_IGNORED_PREFIXES: Final = ("attachable-volumes-", "hugepages-", "ephemeral-storage", "pods")
_REPELLING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
_STATE_TAINT_PREFIX: Final = "node.kubernetes.io/"  # taints that follow from a node's state
OUT_OF_SERVICE_TAINT: Final = "node.kubernetes.io/out-of-service"
"""Taint by which an operator declares that a node is shut down."""

_MAX_TEXT_CHARS: Final = 500
_JOB_LABELS: Final = (
    "training.kubeflow.org/job-name",
    "batch.kubernetes.io/job-name",
    "job-name",
    "volcano.sh/job-name",
    "ray.io/cluster",
)
_ROLE_LABELS: Final = ("training.kubeflow.org/replica-type", "replica-type", "volcano.sh/task-spec")


def parse_quantity(text: object, unit: int) -> int:
    """Parse a Kubernetes quantity, times ``unit`` and rounded down; 0 if it is invalid."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None or match[1] in {"", ".", "+", "-"} or (match[3] or "") not in _UNITS:
        return 0
    value = Fraction(match[1]) * Fraction(10) ** int(match[2] or 0) * _UNITS[match[3] or ""]
    return max(0, min(int(value * unit), int(bounds.MEMORY.maximum)))


def units_per_quantity(resource: str) -> int:
    """Return how many units of `core.amounts` a Kubernetes quantity of 1 has."""
    return 1 if resource == "memory" else MILLI


@dataclass(frozen=True, slots=True)
class NodeView:
    """The cached state of a node."""

    name: str
    uid: str
    allocatable: Mapping[str, int]  # in units of `core.amounts`, by Kubernetes resource
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True  # the node's Ready condition
    # Taints (key, value, effect) that repel pods, except those that follow from its state.
    taints: tuple[tuple[str, str, str], ...] = ()
    cordoned: bool = False  # new pods can't be scheduled on it
    out_of_service: bool = False  # an operator declared it shut down
    address: str = ""  # other nodes reach it by this address


def node_view(item: Mapping[str, Any]) -> NodeView:
    """Return the cached part of a node object."""
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or ()}
    taints = tuple(
        (str(entry["key"]), str(entry.get("value") or ""), str(entry["effect"]))
        for entry in spec.get("taints") or ()
        if entry.get("effect") in _REPELLING_EFFECTS
    )
    allocatable = {
        name: parse_quantity(text, units_per_quantity(name))
        for name, text in (status.get("allocatable") or {}).items()
        if not name.startswith(_IGNORED_PREFIXES)
    }
    addresses = {entry["type"]: entry["address"] for entry in status.get("addresses") or ()}
    labels = meta.get("labels") or {}
    return NodeView(
        name=str(meta["name"]),
        uid=str(meta.get("uid", "")),
        allocatable=allocatable,
        labels={name: str(labels[name]) for name in _KEPT_LABELS if name in labels},
        ready=conditions.get("Ready") == "True",
        taints=tuple(entry for entry in taints if not entry[0].startswith(_STATE_TAINT_PREFIX)),
        cordoned=bool(spec.get("unschedulable")),
        out_of_service=any(entry[0] == OUT_OF_SERVICE_TAINT for entry in taints),
        address=str(addresses.get("InternalIP") or addresses.get("Hostname") or meta["name"]),
    )


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: tuple[str, str, str]) -> bool:
    """Return whether any toleration matches a taint (key, value, effect)."""
    key, value, effect = taint
    return any(
        toleration.get("effect", "") in {"", effect}
        and toleration.get("key", "")
        in ({"", key} if toleration.get("operator") == "Exists" else {key})
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == value)
        for toleration in tolerations
    )


def to_server_info(
    node: NodeView,
    used: Mapping[str, int],
    *,
    gpu: str,
    tolerations: Sequence[Mapping[str, Any]],
) -> ServerInfo:
    """Return a node as a server, without the capacity that other pods use.

    Memory is rounded down by `round_down_memory`, and GPUs (the Kubernetes resource ``gpu``) to
    whole devices. All pods of jobs have ``tolerations``. A node with any other taint takes no new
    work, and evicts pods if the taint's effect is NoExecute.
    """
    capacity = {}
    for name, amount in node.allocatable.items():
        remaining = max(0, amount - used.get(name, 0))
        if name == gpu:
            remaining -= remaining % MILLI
        elif name == "memory":
            remaining = round_down_memory(remaining)
        capacity["gpu" if name == gpu else name] = remaining  # also 0, if other pods use it all
    kind = next((node.labels[label] for label in _KIND_LABELS if node.labels.get(label)), "")
    if kind and "gpu" in capacity:
        capacity[f"gpu/{kind}"] = capacity["gpu"]
    effects = {taint[2] for taint in node.taints if not tolerates(tolerations, taint)}
    return ServerInfo(
        node.name[: int(bounds.NAME.maximum)],
        capacity,
        node.labels,
        takes_work=not node.cordoned and not effects,
        evicts="NoExecute" in effects,
    )


def resource_requests(amounts: Mapping[str, int], node: NodeView, gpu: str) -> dict[str, str]:
    """Return the resource requests of a process's container; ``gpu`` is the resource of GPUs.

    Resources that the node doesn't have, such as bandwidth, are omitted, because no node would fit.
    """
    requests: dict[str, str] = {}
    gpus = gpu_millis(amounts)
    for name, amount in (*amounts.items(), (gpu, gpus)):
        if not amount or is_device(name):
            continue
        if name == "cpu":
            requests[name] = f"{amount}m"
        elif name == "memory":
            requests[name] = str(amount)
        elif name in node.allocatable or name == gpu:
            if amount % MILLI:
                raise PlacementError(
                    f"Kubernetes allocates whole units of {name}, not {amount / MILLI:g}"
                )
            requests[name] = str(amount // MILLI)
    return requests


def check_allocatable(
    node: NodeView,
    used: Mapping[str, int],
    wanted: Sequence[Mapping[str, int]],
    held: Sequence[Mapping[str, int]],
    gpu: str,
) -> None:
    """Raise `PlacementError` if a node lacks capacity for new processes; their pods would wait.

    ``used`` is the usage of other pods. ``wanted`` are the demands of the new processes, ``held``
    those of processes in running generations.
    """
    total, taken = node.allocatable.get(gpu, 0), used.get(gpu, 0) + sum(map(gpu_millis, held))
    for amount in map(gpu_millis, wanted):
        if amount % MILLI:
            raise PlacementError(
                f"{node.name} has no GPU with {amount / MILLI:g} of it free: Kubernetes "
                "allocates whole GPUs"
            )
    demand = sum(map(gpu_millis, wanted))
    if demand and taken + demand > total:
        free = max(0, total - taken) / MILLI
        raise PlacementError(
            f"{node.name} has {total / MILLI:g} GPUs, {free:g} of them free, and "
            f"{demand / MILLI:g} are requested"
        )
    for name in {key for amounts in wanted for key in amounts} & node.allocatable.keys():
        demand = sum(amounts.get(name, 0) for amounts in wanted)
        free_amount = (
            node.allocatable[name]
            - used.get(name, 0)
            - sum(existing.get(name, 0) for existing in held)
        )
        if demand > free_amount:
            unit = units_per_quantity(name)
            raise PlacementError(
                f"{node.name} has {max(0, free_amount) / unit:g} of {name} free, and "
                f"{demand / unit:g} is requested"
            )


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

    If a Shadowprice service created it, ``service``, ``job`` (the digest of a key), ``generation``
    and ``process`` are set. ``origin`` is job, tenant and role according to its labels, annotations
    or owners. The job in it is a key if a Shadowprice service created the pod, otherwise a name.
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
    began: float | None = None  # start of the job's container
    running: bool = False  # any of its containers runs, also a sidecar
    exit: ContainerExit | None = None
    waiting: tuple[str, str] = ("", "")  # why its container hasn't started: reason and message
    unschedulable: str = ""  # why the Kubernetes scheduler finds no node for it
    gated: bool = False  # it has scheduling gates, and waits for their removal
    service: names.ServiceId | None = None
    job: str = ""
    generation: int = 0
    process: str = ""
    requests: Mapping[str, int] = field(default_factory=dict)  # in units of `core.amounts`
    origin: tuple[str, str, str] = ("", "", "")

    @property
    def is_finished(self) -> bool:
        """Whether it is in a final phase."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def may_run(self) -> bool:
        """Whether it may still run processes."""
        return self.running or (self.exit is None and not self.is_finished)

    @property
    def continues(self) -> bool:
        """Whether it runs, or will run because its deletion wasn't requested."""
        return self.running or (self.may_run and not self.deleting)


def merge_pod_view(old: PodView | None, new: PodView) -> PodView:
    """Return the new state of a pod, keeping the observed start and end of its container.

    The last report of a kubelet before 1.22 may have an exit status of 0 without a time, or lack
    the start.
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
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    # Other schedulers' pods have no container of this name; then the first container counts.
    state: Mapping[str, Any] = next(
        (
            container["state"]
            for container in status.get("containerStatuses") or ()
            if container.get("name") == names.CONTAINER or names.SERVICE not in labels
        ),
        {},
    )
    ended, runs, waits = state.get("terminated"), state.get("running"), state.get("waiting") or {}
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
        began=_start_time(ended, runs),
        running=any(
            "running" in (container.get("state") or {})
            for container in status.get("containerStatuses") or ()
        ),
        exit=_container_exit(ended),
        waiting=(str(waits.get("reason", "")), str(waits.get("message", ""))[:_MAX_TEXT_CHARS]),
        unschedulable=_unscheduled_reason(status),
        gated=bool(spec.get("schedulingGates")),
        service=ServiceId(str(labels[names.SERVICE]), str(labels.get(names.SERVICE_NAMESPACE, "")))
        if names.SERVICE in labels
        else None,
        job=str(labels.get(names.JOB, "")),
        generation=int(number) if number.isdecimal() and len(number) < 16 else 0,
        process=str(labels.get(names.PROCESS, "")),
        requests=requested_resources(spec),
        origin=_origin(meta, labels, annotations),
    )


def _terminating_since(meta: Mapping[str, Any]) -> float | None:
    """Return the time of the first deletion request; grace periods always count from it."""
    until = parse_timestamp(meta.get("deletionTimestamp"))
    return until - float(meta.get("deletionGracePeriodSeconds") or 0) if until else None


def _unscheduled_reason(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        kind = (condition.get("type"), condition.get("status"), condition.get("reason"))
        if kind == ("PodScheduled", "False", "Unschedulable"):
            return str(condition.get("message", "no node accepts it"))[:_MAX_TEXT_CHARS]
    return ""


def _start_time(ended: Mapping[str, Any] | None, runs: Mapping[str, Any] | None) -> float | None:
    if runs is not None:
        return parse_timestamp(runs.get("startedAt"))
    if ended is None:
        return None
    times = map(parse_timestamp, (ended.get("startedAt"), ended.get("finishedAt")))
    return next(filter(None, times), None)


def _container_exit(ended: Mapping[str, Any] | None) -> ContainerExit | None:
    if ended is None or not (at := parse_timestamp(ended.get("finishedAt"))):
        return None
    reason, message = str(ended.get("reason") or ""), str(ended.get("message") or "")
    return ContainerExit(int(ended.get("exitCode", -1)), reason, message[:_MAX_TEXT_CHARS], at)


def requested_resources(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return a pod's effective resource requests.

    Sidecars are init containers that are always restarted. The result is the larger of two amounts,
    plus the overhead: the sum of containers and sidecars, and the maximum of each other init
    container with the sidecars before it.
    """
    sidecars: Counter[str] = Counter()
    starting: Counter[str] = Counter()  # maximum while init containers run
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
    # As in Kubernetes, a limit without a request is the request.
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(text, units_per_quantity(name)) for name, text in amounts.items()}


def _origin(
    meta: Mapping[str, Any], labels: Mapping[str, Any], annotations: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Return job, tenant and role of a pod; empty if it belongs to no job."""
    key = names.decode_job_name(annotations.get(names.JOB_NAME))[:MAX_KEY_CHARACTERS]
    owners: Iterable[Mapping[str, Any]] = meta.get("ownerReferences") or ()
    candidates = (
        key,
        annotations.get(names.JOB_NAME),
        *(labels.get(name) for name in _JOB_LABELS),
        *(owner["name"] for owner in owners if str(owner.get("kind")).endswith("Job")),
    )
    job = str(next(filter(None, candidates), ""))
    if not job:
        return ("", "", "")
    tenant = str(annotations.get(names.TENANT) or labels.get(names.TENANT) or meta["namespace"])
    role = str(next((labels[name] for name in _ROLE_LABELS if name in labels), "worker")).lower()
    job = key or job[: int(bounds.NAME.maximum)]
    return (job, tenant, "ps" if role in {"ps", "server"} else "worker")


def observe_jobs(
    pods: Iterable[PodView], namespace: str, skipped: ServiceId | None
) -> tuple[ObservedJob, ...]:
    """Return the jobs that pods belong to, except those of the service ``skipped``.

    Outside ``namespace``, a job's name is prefixed with its namespace.
    """
    by_job: dict[tuple[str, str, bool], list[PodView]] = {}
    for view in pods:
        job, tenant, _ = view.origin
        if not job or (skipped is not None and view.service == skipped):
            continue
        is_key = view.service is not None
        name = job if is_key or view.namespace == namespace else f"{view.namespace}/{job}"
        by_job.setdefault((name, tenant, is_key), []).append(view)
    jobs = (
        _to_observed_job(name_of_key(name) if is_key else name, tenant, views)
        for (name, tenant, is_key), views in sorted(by_job.items())
    )
    return tuple(item for item in jobs if item is not None)


def _to_observed_job(name: str, tenant: str, views: list[PodView]) -> ObservedJob | None:
    started = [view for view in views if view.node and view.began is not None]
    if not started:
        return None
    running = [view for view in started if not view.is_finished]
    shown = running or started
    counts: dict[str, list[int]] = {}
    for view in shown:
        counts.setdefault(view.node, [0, 0])[view.origin[2] == "ps"] += 1
    placement = tuple(ServerAllocation(node, *count) for node, count in sorted(counts.items()))
    since = min(view.began for view in shown if view.began is not None)
    ends = [view.exit.at for view in started if view.exit is not None]
    pending = any(not view.is_finished for view in views)
    has_ended = not running and not pending
    return ObservedJob(
        name,
        placement,
        since,
        tenant=tenant or None,
        ended=max(ends, default=since) if has_ended else None,
        done=all(view.phase == "Succeeded" for view in started) if has_ended else None,
    )
