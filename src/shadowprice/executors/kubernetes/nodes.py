"""Nodes as servers: their allocatable capacity, less the usage of other pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.core.amounts import MILLI
from shadowprice.core.devices import is_device
from shadowprice.executors.contract import ROLE_LABEL, ServerInfo
from shadowprice.executors.generations.placement_checks import PlacementError, gpu_millis
from shadowprice.executors.kubernetes.quantities import parse_quantity, units_per_quantity
from shadowprice.executors.memory import round_down_memory

_KIND_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
_KEPT_LABELS: Final = (*_KIND_LABELS, ROLE_LABEL)
"""Labels with a meaning here; node feature discovery adds hundreds of others to a node."""

_IGNORED_PREFIXES: Final = ("attachable-volumes-", "hugepages-", "ephemeral-storage", "pods")
_REPELLING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
_STATE_TAINT_PREFIX: Final = "node.kubernetes.io/"
OUT_OF_SERVICE_TAINT: Final = "node.kubernetes.io/out-of-service"
"""Taint by which an operator declares that a node is shut down."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """The cached state of a node.

    ``has`` are allocatable amounts by Kubernetes resource, in the units of `core.amounts`.
    ``labels`` are those that Shadowprice reads.
    ``taints`` are key, value and effect of each taint that repels pods, except those of the node's
    state.
    """

    name: str
    uid: str
    has: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True  # the node's Ready condition
    taints: tuple[tuple[str, str, str], ...] = ()
    cordoned: bool = False  # new pods can't be scheduled on it
    off: bool = False  # an operator declared it shut down
    address: str = ""  # by which other nodes reach it


def node_view(item: Mapping[str, Any]) -> NodeView:
    """Return the cached part of a node object."""
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or ()}
    taints = tuple(
        (str(entry["key"]), str(entry.get("value") or ""), str(entry["effect"]))
        for entry in spec.get("taints") or ()
        if entry.get("effect") in _REPELLING_EFFECTS
    )
    has = {
        name: parse_quantity(text, units_per_quantity(name))
        for name, text in (status.get("allocatable") or {}).items()
        if not name.startswith(_IGNORED_PREFIXES)
    }
    addresses = {entry["type"]: entry["address"] for entry in status.get("addresses") or ()}
    labels = meta.get("labels") or {}
    return NodeView(
        name=str(meta["name"]),
        uid=str(meta.get("uid", "")),
        has=has,
        labels={name: str(labels[name]) for name in _KEPT_LABELS if name in labels},
        ready=conditions.get("Ready") == "True",
        taints=tuple(entry for entry in taints if not entry[0].startswith(_STATE_TAINT_PREFIX)),
        cordoned=bool(spec.get("unschedulable")),
        off=any(entry[0] == OUT_OF_SERVICE_TAINT for entry in taints),
        address=str(addresses.get("InternalIP") or addresses.get("Hostname") or meta["name"]),
    )


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: tuple[str, str, str]) -> bool:
    """Return whether tolerations tolerate a taint."""
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
    """Return a node as a server, less the usage of other pods.

    Its memory is rounded (`round_down_memory`), and its GPUs (the Kubernetes resource ``gpu``) to
    whole ones. ``tolerations`` are those of all jobs' pods; a node with any other taint takes no
    new work, and evicts pods if its effect is NoExecute.
    """
    capacity = {}
    for name, amount in node.has.items():
        remaining = max(0, amount - used.get(name, 0))
        if name == gpu:
            remaining -= remaining % MILLI
        elif name == "memory":
            remaining = round_down_memory(remaining)
        capacity["gpu" if name == gpu else name] = remaining  # 0 too: other pods use all of it
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

    Resources that the node doesn't count, such as bandwidth, are left to the scheduler. Raises
    `PlacementError` if a fraction of an indivisible resource is requested.
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
        elif name in node.has or name == gpu:
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
    """Check that a node has capacity for new processes, because pods would wait for it.

    ``used`` is the usage of other pods. ``wanted`` and ``held`` are the demands of the new and the
    existing processes there. ``gpu`` is the Kubernetes resource of GPUs. Raises `PlacementError` if
    any resource is insufficient.
    """
    total, taken = node.has.get(gpu, 0), used.get(gpu, 0) + sum(map(gpu_millis, held))
    for amount in map(gpu_millis, wanted):
        if amount % MILLI:
            raise PlacementError(
                f"{node.name} has no GPU with {amount / MILLI:g} of it free: Kubernetes gives "
                "whole ones"
            )
    demand = sum(map(gpu_millis, wanted))
    if demand and taken + demand > total:
        free = max(0, total - taken) / MILLI
        raise PlacementError(
            f"{node.name} has {total / MILLI:g} GPUs, {free:g} of them free, and "
            f"{demand / MILLI:g} are requested"
        )
    for name in {key for amounts in wanted for key in amounts} & node.has.keys():
        demand = sum(amounts.get(name, 0) for amounts in wanted)
        free_amount = (
            node.has[name] - used.get(name, 0) - sum(existing.get(name, 0) for existing in held)
        )
        if demand > free_amount:
            unit = units_per_quantity(name)
            raise PlacementError(
                f"{node.name} has {max(0, free_amount) / unit:g} of {name} free, and "
                f"{demand / unit:g} is asked for"
            )
