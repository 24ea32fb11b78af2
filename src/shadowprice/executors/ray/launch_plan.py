"""Ray nodes as servers, and the plans of generations and processes on them."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core import bounds
from shadowprice.core.amounts import MILLI
from shadowprice.core.devices import is_device
from shadowprice.executors.contract import GenerationSpec, ServerInfo
from shadowprice.executors.generations.generation import EXECUTION_VARIABLE
from shadowprice.executors.processes import (
    PlacementError,
    Process,
    allocated_on,
    build_environment,
    gpu_millis,
    inherited_environment,
    list_allocations,
    list_processes,
    process_demand,
    round_down_memory,
    validate_spec,
)

_RESOURCE_NAMES: Final = {"CPU": "cpu", "GPU": "gpu"}
_IGNORED_PREFIXES: Final = ("node:", "object_store_memory", "accelerator_type:")
_ACCELERATOR: Final = "ray.io/accelerator-type"
_MAX_NAMES: Final = int(bounds.RESOURCES.maximum)  # of resources and of labels of a node

_MIN_MEMORY_LIMIT_BYTES: Final = 64 << 20  # with a lower limit, programs can't start


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of the Ray cluster; ``id`` changes with every start of its raylet."""

    id: str
    address: str
    server: ServerInfo


def list_nodes(
    records: Iterable[Mapping[str, Any]], known: Mapping[str, str]
) -> dict[str, RayNode]:
    """Return the nodes with CPU or GPU by server name.

    ``known`` are ids of the last nodes, by server name. They win over other nodes with their name.
    """
    nodes: dict[str, RayNode] = {}
    usable = _usable_nodes(records)
    usable.sort(key=lambda node: (known.get(node.server.name) != node.id, node.id))
    for node in usable:
        nodes.setdefault(node.server.name, node)
    return nodes


def find_duplicate_names(records: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of servers that several nodes claim; see `list_nodes`."""
    counts = Counter(node.server.name for node in _usable_nodes(records))
    return frozenset(name for name, count in counts.items() if count > 1)


def _usable_nodes(records: Iterable[Mapping[str, Any]]) -> list[RayNode]:
    nodes = [_parse_node(record) for record in records if record.get("Alive")]
    return [node for node in nodes if {"cpu", "gpu"} & node.server.capacity.keys()]


def _node_name(record: Mapping[str, Any]) -> str:
    return str(record.get("NodeName") or record["NodeManagerAddress"])[: int(bounds.NAME.maximum)]


def _parse_node(record: Mapping[str, Any]) -> RayNode:
    capacity: dict[str, int] = {}
    for name, amount in list(record.get("Resources", {}).items())[:_MAX_NAMES]:
        if name.startswith(_IGNORED_PREFIXES):
            continue
        unit = 1 if name == "memory" else MILLI
        # Rounded first, because 1.001 * 1000 is less than 1001 in floating point.
        units = min(int(round(float(amount) * unit, 6)), int(bounds.MEMORY.maximum))
        if name == "memory":
            units = round_down_memory(units)
        if units > 0:
            capacity[_RESOURCE_NAMES.get(name, name)] = units
    labels = dict(list(record.get("Labels", {}).items())[:_MAX_NAMES])
    kind = labels.get(_ACCELERATOR)
    if kind and "gpu" in capacity:
        capacity[f"gpu/{kind}"] = capacity["gpu"]
    server = ServerInfo(_node_name(record), capacity, labels)
    return RayNode(str(record["NodeID"]), str(record["NodeManagerAddress"]), server)


def actor_resources(amounts: Mapping[str, int], node: RayNode) -> dict[str, Any]:
    """Return the actor options that request those of a process's resources that Ray knows."""
    options: dict[str, Any] = {"num_cpus": amounts.get("cpu", 0) / MILLI}
    options["num_gpus"] = gpu_millis(amounts) / MILLI
    if amounts.get("memory"):
        options["memory"] = amounts["memory"]
    own = {"cpu", "memory"}
    options["resources"] = {
        name: amount / MILLI
        for name, amount in amounts.items()
        if amount and name not in own and name in node.server.capacity and not is_device(name)
    }
    return options


def check_available(
    node: RayNode, wanted: Iterable[Mapping[str, int]], held: Iterable[Mapping[str, int]]
) -> None:
    """Raise `PlacementError` if a node can't fit ``wanted`` besides ``held``.

    Both are demands by process. Without this check, Ray would let the actors wait.
    """
    name, capacity = node.server.name, node.server.capacity
    new, old = list(wanted), list(held)
    total, used = capacity.get("gpu", 0), sum(map(gpu_millis, old))
    free, requested = max(0, total - used) / MILLI, sum(map(gpu_millis, new)) / MILLI
    for amounts in new:
        amount = gpu_millis(amounts)
        if amount > MILLI and amount % MILLI:
            raise PlacementError(f"Ray allocates whole GPUs above one, not {amount / MILLI:g}")
        if amount and used + amount > total:
            if amount % MILLI:
                raise PlacementError(f"{name} has no GPU with {amount / MILLI:g} of it free")
            raise PlacementError(
                f"{name} has {total / MILLI:g} GPUs, {free:g} of them free, and {requested:g} are "
                "requested"
            )
        used += amount
    for resource in {key for amounts in new for key in amounts} & capacity.keys():
        if is_device(resource):
            continue
        demand = sum(amounts.get(resource, 0) for amounts in new)
        free_amount = capacity[resource] - sum(amounts.get(resource, 0) for amounts in old)
        if demand > free_amount:
            unit = 1 if resource == "memory" else MILLI
            raise PlacementError(
                f"insufficient {resource} on {name}: {demand / unit:g} requested, "
                f"{max(0, free_amount) / unit:g} free"
            )


def build_launch_plan(
    spec: GenerationSpec, nodes: Mapping[str, RayNode], held: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Return a generation's plan, or an empty plan and the reason why it is refused.

    ``held`` are the allocations of running generations; see `GenerationRegistry.allocations`.
    """
    held = list(held)
    processes = list_processes(spec)
    try:
        validate_spec(spec)
        if spec.devices:
            raise PlacementError("Ray assigns devices itself; don't name any")
        allocations = list_allocations(spec, processes)
        for server in dict.fromkeys(process.server for process in processes):
            if server not in nodes:
                raise PlacementError(f"the Ray cluster has no node named {server!r}")
            check_available(
                nodes[server], allocated_on(server, allocations), allocated_on(server, held)
            )
    except PlacementError as error:
        return {}, str(error)
    execution = secrets.token_hex(16)
    parts = [
        {
            "process": process.name,
            "server": process.server,
            "node": nodes[process.server].id,
            "actor": f"{execution}.{process.name}",
        }
        for process in processes
    ]
    return {
        "execution": execution,
        "spec": spec.record(),
        "processes": [{"name": process.name} for process in processes],
        "parts": parts,
        "allocations": allocations,
        "grace": spec.program.grace,
        "tolerates_workers": spec.program.tolerates_workers,
        "port": 0,
    }, ""


def build_process_plan(
    spec: GenerationSpec,
    process: Process,
    *,
    actor: str,
    master: tuple[str, int],
    checkpoints: str,
    work: str,
    inherited: Mapping[str, str],
    gpus: Sequence[str] | None,
    log_bytes: int,
    limit_memory: bool,
) -> dict[str, Any]:
    """Return the supervisor's plan for one process; its environment is marked with ``actor``.

    ``master`` is the rendezvous address and port, on the node of worker 0. ``gpus`` are the devices
    that Ray allocated; None if the node has none.
    """
    environment = inherited_environment(spec, inherited) | build_environment(
        spec,
        process,
        master_address=master[0],
        master_port=master[1],
        checkpoint_dir=checkpoints,
        devices=gpus,
    )
    environment[EXECUTION_VARIABLE] = actor
    memory = process_demand(spec, process).get("memory", 0)
    return {
        "execution": actor,
        "processes": [
            {
                "name": process.name,
                "command": list(spec.program.command),
                "environment": environment,
                "directory": spec.program.directory or work,
                "cores": [],
                "memory": max(memory, _MIN_MEMORY_LIMIT_BYTES) if memory and limit_memory else 0,
                "cgroup_memory": 0,
            }
        ],
        "grace": spec.program.grace,
        "tolerates_workers": False,  # one process per supervisor; the controller decides
        "secrets": [spec.progress_token],
        "log_bytes": log_bytes,
        "bell": "",
        "cgroup": "",
    }
