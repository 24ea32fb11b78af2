"""Plans for generations and their processes on Ray."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.environment import (
    Process,
    build_environment,
    inherited_environment,
    list_processes,
)
from shadowprice.executors.generations.generation import EXECUTION_VARIABLE
from shadowprice.executors.generations.placement_checks import (
    PlacementError,
    allocated_on,
    list_allocations,
    process_demand,
    validate_spec,
)
from shadowprice.executors.ray.nodes import RayNode, check_available

_DATA_LIMIT: Final = 64 << 20


def build_launch_plan(
    spec: GenerationSpec, nodes: Mapping[str, RayNode], held: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Return a generation's plan, or an empty plan and the reason why it is refused.

    ``nodes`` are keyed by server. ``held`` contains the ``allocations`` of other generations.
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
    """Return the supervisor's plan for one process; see `local.launch_plan.build_launch_plan`.

    ``actor`` is the name of its actor; an environment variable marks its processes with it.
    ``master`` is the rendezvous address and port, on the node of worker 0. ``inherited`` is the
    node's environment. ``gpus`` were allocated by Ray; None if the node has none.
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
                "memory": max(memory, _DATA_LIMIT) if memory and limit_memory else 0,
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
