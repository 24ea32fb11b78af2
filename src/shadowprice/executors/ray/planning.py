"""Plans for generations and their processes on Ray."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.environment import Process, environment_of, own_environment, processes_of
from shadowprice.executors.generations.generation import MARK
from shadowprice.executors.generations.placing import (
    NoPlaceError,
    allocations_of,
    amounts,
    check,
    on_server,
)
from shadowprice.executors.ray.nodes import Node, check_room

_DATA_LIMIT: Final = 64 << 20


def plan_of(
    spec: GenerationSpec, nodes: Mapping[str, Node], held: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Return the plan of a generation, and a reason if it is refused.

    ``nodes`` are by server. ``held`` are the ``deals`` of other generations.
    """
    held = list(held)
    processes = processes_of(spec)
    try:
        check(spec)
        if spec.devices:
            raise NoPlaceError("Ray deals out devices itself: none may be named")
        deals = allocations_of(spec, processes)
        for server in dict.fromkeys(process.server for process in processes):
            if server not in nodes:
                raise NoPlaceError(f"the Ray cluster has no node called {server!r}")
            check_room(nodes[server], on_server(server, deals), on_server(server, held))
    except NoPlaceError as error:
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
        "deals": deals,
        "grace": spec.program.grace,
        "tolerates_workers": spec.program.tolerates_workers,
        "port": 0,
    }, ""


def part_plan(
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
    """Return the supervisor's plan for one process; see `local.planning.plan_of`.

    Parameters
    ----------
    actor : str
        Name of its actor, which also marks its processes.
    master : (str, int)
        Rendezvous address and port, on the node of worker 0.
    checkpoints, work : str
        The job's directories.
    inherited : mapping of str to str
        The node's environment.
    gpus : sequence of str or None
        GPUs that Ray allocated; None if its node has none.
    log_bytes : int
        Maximum bytes kept of its log.
    limit_memory : bool
        Whether to limit its private memory to its demand.
    """
    environment = own_environment(spec, inherited) | environment_of(
        spec,
        process,
        master_address=master[0],
        master_port=master[1],
        checkpoint_dir=checkpoints,
        devices=gpus,
    )
    environment[MARK] = actor
    memory = amounts(spec, process).get("memory", 0)
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
        "tolerates_workers": False,  # a supervisor has one process; `Drive` decides
        "secrets": [spec.progress_token],
        "log_bytes": log_bytes,
        "bell": "",
        "cgroup": "",
    }
