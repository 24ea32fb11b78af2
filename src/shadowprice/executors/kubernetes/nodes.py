"""Nodes as servers: what they can give, less what pods of others have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.core.amounts import MILLI
from shadowprice.executors.contract import ServerSlice
from shadowprice.executors.generations.placing import NoPlaceError
from shadowprice.executors.kubernetes.quantities import unit_of, units
from shadowprice.executors.memory import counted_memory

_KIND_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
_LEFT_OUT: Final = ("attachable-volumes-", "hugepages-", "ephemeral-storage", "pods")
_KEEPS_OFF: Final = frozenset({"NoSchedule", "NoExecute"})
_STATES: Final = "node.kubernetes.io/"
SURELY_OFF: Final = "node.kubernetes.io/out-of-service"
"""A taint by which an operator says that a node is off."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """What is known of a node.

    Parameters
    ----------
    name, uid : str
        As the API has them.
    has : mapping of str to int
        What it can give to pods, by the node's names, in the units of `core.amounts`.
    labels : mapping of str to str
        Its labels.
    ready : bool
        Whether its kubelet is heard of, and well.
    taints : tuple of (str, str, str)
        Key, value and effect of each that keeps pods off; those that tell its state are left out.
    cordoned : bool
        Whether it takes no new pods.
    off : bool
        Whether somebody said that it is surely off.
    address : str
        By which other nodes reach it.
    """

    name: str
    uid: str
    has: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True
    taints: tuple[tuple[str, str, str], ...] = ()
    cordoned: bool = False
    off: bool = False
    address: str = ""


def node_view(item: Mapping[str, Any]) -> NodeView:
    """Return what is kept of a node."""
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    taints = tuple(
        (str(one["key"]), str(one.get("value") or ""), str(one["effect"]))
        for one in spec.get("taints") or ()
        if one.get("effect") in _KEEPS_OFF
    )
    most = int(bounds.RESOURCES.most)
    has = {
        name: units(text, unit_of(name))
        for name, text in list((status.get("allocatable") or {}).items())[:most]
        if not name.startswith(_LEFT_OUT)
    }
    addresses = {one["type"]: one["address"] for one in status.get("addresses") or ()}
    labels = {k: str(v) for k, v in list((meta.get("labels") or {}).items())[:most]}
    return NodeView(
        name=str(meta["name"]),
        uid=str(meta.get("uid", "")),
        has=has,
        labels=labels,
        ready=conditions.get("Ready") == "True",
        taints=tuple(one for one in taints if not one[0].startswith(_STATES)),
        cordoned=bool(spec.get("unschedulable")),
        off=any(one[0] == SURELY_OFF for one in taints),
        address=str(addresses.get("InternalIP") or addresses.get("Hostname") or meta["name"]),
    )


def bears(tolerations: Iterable[Mapping[str, Any]], taint: tuple[str, str, str]) -> bool:
    """Return whether pods with these tolerations bear a taint."""
    key, value, effect = taint
    return any(
        one.get("effect", "") in {"", effect}
        and one.get("key", "") in ({"", key} if one.get("operator") == "Exists" else {key})
        and (one.get("operator") == "Exists" or one.get("value", "") == value)
        for one in tolerations
    )


def server_of(
    node: NodeView,
    used: Mapping[str, int],
    *,
    gpu: str,
    tolerations: Sequence[Mapping[str, Any]],
) -> ServerSlice:
    """Return what a node is to a scheduler.

    Parameters
    ----------
    node : NodeView
        The node.
    used : mapping of str to int
        What pods of others have there.
    gpu : str
        What a GPU is called among its resources.
    tolerations : sequence of mapping
        What all jobs' pods bear; a node with another taint takes no new work.
    """
    capacity = {}
    for name, amount in node.has.items():
        left = max(0, amount - used.get(name, 0))
        if name == gpu:
            left -= left % MILLI
        elif name == "memory":
            left = counted_memory(left)
        if left:
            capacity["gpu" if name == gpu else name] = left
    kind = next((node.labels[label] for label in _KIND_LABELS if node.labels.get(label)), "")
    if kind and "gpu" in capacity:
        capacity[f"gpu/{kind}"] = capacity["gpu"]
    open_ = not node.cordoned and all(bears(tolerations, taint) for taint in node.taints)
    return ServerSlice(node.name[: int(bounds.NAME.most)], capacity, node.labels, takes_work=open_)


def asked_of(amounts: Mapping[str, int], node: NodeView, gpu: str) -> dict[str, str]:
    """Return what a pod is to ask its node for.

    What the node does not count (a bandwidth, say) is the scheduler's to count.

    Parameters
    ----------
    amounts : mapping of str to int
        What its process takes.
    node : NodeView
        Where it is to run.
    gpu : str
        What a GPU is called among a node's resources.

    Raises
    ------
    NoPlaceError
        If it asks for a part of what is given as a whole only.
    """
    asked: dict[str, str] = {}
    gpus = gpus_of(amounts)
    for name, amount in (*amounts.items(), (gpu, gpus)):
        if not amount or gpus_of({name: 1}):
            continue
        if name == "cpu":
            asked[name] = f"{amount}m"
        elif name == "memory":
            asked[name] = str(amount)
        elif name in node.has or name == gpu:
            if amount % MILLI:
                raise NoPlaceError(f"Kubernetes gives {name} as wholes, not {amount / MILLI:g}")
            asked[name] = str(amount // MILLI)
    return asked


def gpus_of(amounts: Mapping[str, int]) -> int:
    """Return what is asked of GPUs of any kind, in thousandths."""
    return sum(n for name, n in amounts.items() if name == "gpu" or name.startswith("gpu/"))


def check_room(
    node: NodeView,
    used: Mapping[str, int],
    wanted: Sequence[Mapping[str, int]],
    held: Sequence[Mapping[str, int]],
    gpu: str,
) -> None:
    """Refuse what a node cannot give, before its pods would wait for it.

    Parameters
    ----------
    node : NodeView
        The node.
    used : mapping of str to int
        What pods of others have there.
    wanted, held : sequence of mapping
        What each new process takes there, and each that is there already.
    gpu : str
        What a GPU is called among its resources.

    Raises
    ------
    NoPlaceError
        If it has too little.
    """
    total, taken = node.has.get(gpu, 0), used.get(gpu, 0) + sum(map(gpus_of, held))
    for amount in map(gpus_of, wanted):
        if amount % MILLI:
            raise NoPlaceError(
                f"{node.name} has no GPU with {amount / MILLI:g} of it free: Kubernetes gives "
                "whole ones"
            )
    asked = sum(map(gpus_of, wanted))
    if asked and taken + asked > total:
        free = max(0, total - taken) / MILLI
        raise NoPlaceError(
            f"{node.name} has {total / MILLI:g} GPUs, {free:g} of them free, and "
            f"{asked / MILLI:g} are asked for"
        )
    for name in {key for amounts in wanted for key in amounts} & node.has.keys():
        asked = sum(amounts.get(name, 0) for amounts in wanted)
        room = node.has[name] - used.get(name, 0) - sum(one.get(name, 0) for one in held)
        if asked > room:
            unit = unit_of(name)
            raise NoPlaceError(
                f"{node.name} has {max(0, room) / unit:g} of {name} free, and "
                f"{asked / unit:g} is asked for"
            )
