"""What a Ray node is to a scheduler, and what a process asks of Ray."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.core.amounts import MILLI
from shadowprice.executors.contract import ServerSlice
from shadowprice.executors.generations.placing import NoPlaceError
from shadowprice.executors.memory import counted_memory

log = logging.getLogger("shadowprice.executors")

_OWN: Final = {"CPU": "cpu", "GPU": "gpu"}
_LEFT_OUT: Final = ("node:", "object_store_memory", "accelerator_type:")
_ACCELERATOR: Final = "ray.io/accelerator-type"
_MOST_NAMES: Final = int(bounds.RESOURCES.most)
"""Resources and labels taken of one node."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster.

    Parameters
    ----------
    id : str
        Its number in Ray: another one whenever a raylet is started.
    address : str
        By which other nodes reach it.
    server : ServerSlice
        What it is to a scheduler.
    """

    id: str
    address: str
    server: ServerSlice


def nodes_of(records: Iterable[Mapping[str, Any]], known: Mapping[str, str]) -> dict[str, Node]:
    """Return the nodes that may carry work, by server.

    Those without a CPU and a GPU are left out, and of two with one name the one that came later.

    Parameters
    ----------
    records : iterable of mapping
        What ``ray.nodes()`` tells.
    known : mapping of str to str
        Numbers of the nodes by server, as they were.
    """
    found: dict[str, Node] = {}
    alive = [one for one in records if one.get("Alive")]
    alive.sort(key=lambda one: (known.get(_name(one)) != one["NodeID"], one["NodeID"]))
    for record in alive:
        node = _node(record)
        if not {"cpu", "gpu"} & node.server.capacity.keys():
            continue
        if node.server.name in found:
            log.warning(
                "two nodes of the Ray cluster are called %s; one is left out: "
                "give each its own `ray start --node-name`",
                node.server.name,
            )
            continue
        found[node.server.name] = node
    return found


def _name(record: Mapping[str, Any]) -> str:
    return str(record.get("NodeName") or record["NodeManagerAddress"])[: int(bounds.NAME.most)]


def _node(record: Mapping[str, Any]) -> Node:
    capacity: dict[str, int] = {}
    for name, amount in list(record.get("Resources", {}).items())[:_MOST_NAMES]:
        if name.startswith(_LEFT_OUT):
            continue
        unit = 1 if name == "memory" else MILLI
        units = min(int(float(amount) * unit), int(bounds.MEMORY.most))
        if name == "memory":
            units = counted_memory(units)
        if units > 0:
            capacity[_OWN.get(name, name)] = units
    labels = dict(list(record.get("Labels", {}).items())[:_MOST_NAMES])
    kind = labels.get(_ACCELERATOR)
    if kind and "gpu" in capacity:
        capacity[f"gpu/{kind}"] = capacity["gpu"]
    server = ServerSlice(_name(record), capacity, labels)
    return Node(str(record["NodeID"]), str(record["NodeManagerAddress"]), server)


def gpus(amounts: Mapping[str, int]) -> int:
    """Return what is asked of GPUs of any kind, in thousandths."""
    return sum(n for name, n in amounts.items() if name == "gpu" or name.startswith("gpu/"))


def asked_of(amounts: Mapping[str, int], node: Node) -> dict[str, Any]:
    """Return what an actor is to ask of Ray for a process.

    What Ray does not know of the node (a bandwidth, say) is the scheduler's to count.

    Parameters
    ----------
    amounts : mapping of str to int
        What the process takes, in the units of `core.amounts`.
    node : Node
        Where it is to run.
    """
    options: dict[str, Any] = {"num_cpus": amounts.get("cpu", 0) / MILLI}
    wanted = gpus(amounts)
    options["num_gpus"] = wanted / MILLI
    if amounts.get("memory"):
        options["memory"] = amounts["memory"]
    own = {"cpu", "memory"}
    options["resources"] = {
        name: amount / MILLI
        for name, amount in amounts.items()
        if amount and name not in own and name in node.server.capacity and not gpus({name: amount})
    }
    return options


def check_room(
    node: Node, wanted: Iterable[Mapping[str, int]], held: Iterable[Mapping[str, int]]
) -> None:
    """Refuse what a node cannot give, before Ray would wait for it.

    Parameters
    ----------
    node : Node
        The node.
    wanted : iterable of mapping
        What each new process there takes.
    held : iterable of mapping
        What each process takes that is there already.

    Raises
    ------
    NoPlaceError
        If it has too little of anything that Ray counts.
    """
    name, has = node.server.name, node.server.capacity
    new, old = list(wanted), list(held)
    total, used = has.get("gpu", 0), sum(map(gpus, old))
    for amounts in new:
        amount = gpus(amounts)
        if amount > MILLI and amount % MILLI:
            raise NoPlaceError(f"Ray gives whole GPUs beyond one, not {amount / MILLI:g}")
        if amount and used + amount > total:
            if amount % MILLI:
                raise NoPlaceError(f"{name} has no GPU with {amount / MILLI:g} of it free")
            free = max(0, total - used) / MILLI
            raise NoPlaceError(
                f"{name} has {total / MILLI:g} GPUs, {free:g} of them free, and a process asks for "
                f"{amount / MILLI:g}"
            )
        used += amount
    for resource in {key for amounts in new for key in amounts} & has.keys():
        if gpus({resource: 1}):
            continue
        asked = sum(amounts.get(resource, 0) for amounts in new)
        room = has[resource] - sum(amounts.get(resource, 0) for amounts in old)
        if asked > room:
            unit = 1 if resource == "memory" else MILLI
            raise NoPlaceError(
                f"{name} has {max(0, room) / unit:g} of {resource} free in Ray, and "
                f"{asked / unit:g} is asked for"
            )
