"""What a generation's processes are to run on their nodes, worked out before any is begun."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.environment import Process, environment_of, own_environment, processes_of
from shadowprice.executors.generations.generation import MARK
from shadowprice.executors.generations.placing import (
    NoPlaceError,
    amounts,
    check,
    deals_of,
    on_server,
)
from shadowprice.executors.ray.nodes import Node, check_room

_DATA_LIMIT: Final = 64 << 20


def plan_of(
    spec: GenerationSpec, nodes: Mapping[str, Node], held: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Return the plan of a generation, and why there is none.

    Parameters
    ----------
    spec : GenerationSpec
        The generation.
    nodes : mapping of str to Node
        The nodes by server.
    held : iterable of mapping
        The ``deals`` of other generations.
    """
    held = list(held)
    processes = processes_of(spec)
    try:
        check(spec)
        if spec.devices:
            raise NoPlaceError("Ray deals out devices itself: none may be named")
        deals = deals_of(spec, processes)
        for server in dict.fromkeys(one.server for one in processes):
            if server not in nodes:
                raise NoPlaceError(f"the Ray cluster has no node called {server!r}")
            check_room(nodes[server], on_server(server, deals), on_server(server, held))
    except NoPlaceError as error:
        return {}, str(error)
    execution = secrets.token_hex(16)
    parts = [
        {
            "process": one.name,
            "server": one.server,
            "node": nodes[one.server].id,
            "actor": f"{execution}.{one.name}",
        }
        for one in processes
    ]
    return {
        "execution": execution,
        "spec": spec.record(),
        "processes": [{"name": one.name} for one in processes],
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
    """Return what the supervisor of one process is to run; see `local.planning.plan_of`.

    Parameters
    ----------
    spec, process
        Which process of which generation.
    actor : str
        Name of its actor: the mark that its processes carry.
    master : (str, int)
        Address and port of the node of worker 0, where the processes meet.
    checkpoints, work : str
        The job's directories.
    inherited : mapping of str to str
        The node's environment.
    gpus : sequence of str or None
        GPUs that Ray gave it; None where its node has none.
    log_bytes : int
        Most bytes kept of what it writes.
    limit_memory : bool
        Whether it is held to the memory that its job asks for.
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
        "tolerates_workers": False,  # of one process: the service judges them together
        "secrets": [spec.progress_token],
        "log_bytes": log_bytes,
        "bell": "",
        "cgroup": "",
    }
