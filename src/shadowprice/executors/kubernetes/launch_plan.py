"""Plans for generations on Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from random import SystemRandom
from typing import Any

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.environment import Process, list_processes
from shadowprice.executors.generations.placement_checks import (
    RENDEZVOUS_PORTS,
    PlacementError,
    allocated_on,
    list_allocations,
    validate_spec,
)
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.nodes import NodeView, check_allocatable, resource_requests
from shadowprice.executors.kubernetes.pods import RENDEZVOUS_PORT, check_pod
from shadowprice.executors.kubernetes.settings import KubernetesSettings


def build_launch_plan(
    spec: GenerationSpec,
    *,
    nodes: Mapping[str, NodeView],
    servers: Collection[str],
    used: Callable[[str], Mapping[str, int]],
    held: Iterable[Mapping[str, Any]],
    settings: KubernetesSettings,
    namespace: str,
) -> tuple[dict[str, Any], str]:
    """Return the plan of a generation, and a reason if it is refused.

    ``servers`` are the nodes that currently are servers. ``used`` returns the usage of other pods
    on a node. ``held`` has the ``allocations`` of other generations.
    """
    held = list(held)
    processes = list_processes(spec)
    try:
        validate_spec(spec)
        check_pod(spec, settings)
        allocations = list_allocations(spec, processes)
        for server in dict.fromkeys(item.server for item in processes):
            if server not in nodes:
                raise PlacementError(f"the cluster has no node named {server!r}")
            if server not in servers:
                raise PlacementError(f"the node {server} is not ready")
            demands, existing = allocated_on(server, allocations), allocated_on(server, held)
            check_allocatable(nodes[server], used(server), demands, existing, settings.gpu)
            for item in demands:
                resource_requests(item, nodes[server], settings.gpu)
    except PlacementError as error:
        return {}, str(error)
    return {
        "namespace": namespace,
        "parts": [
            {
                "process": item.name,
                "server": item.server,
                "pod": names.pod_name(spec.job, spec.generation, item.name),
            }
            for item in processes
        ],
        "allocations": allocations,
        "grace": spec.program.grace,
        "tolerates_workers": spec.program.tolerates_workers,
        "master": _master(spec, processes, nodes, settings),
        "port": 0,
    }, ""


def _master(
    spec: GenerationSpec,
    processes: tuple[Process, ...],
    nodes: Mapping[str, NodeView],
    settings: KubernetesSettings,
) -> tuple[str, int]:
    if settings.network == "host" or spec.program.pod.get("host_network"):
        port = SystemRandom().choice(RENDEZVOUS_PORTS)  # random: other pods share the node's ports
        return nodes[processes[0].server].address, port
    if len(processes) == 1:
        return "127.0.0.1", RENDEZVOUS_PORT
    return (
        f"{processes[0].name}.{names.generation_name(spec.job, spec.generation)}",
        RENDEZVOUS_PORT,
    )
