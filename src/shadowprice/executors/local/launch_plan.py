"""Plans for supervisors: command, environment and limits of every process."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.environment import build_environment, inherited_environment
from shadowprice.executors.generations.generation import EXECUTION_VARIABLE
from shadowprice.executors.generations.placement_checks import RENDEZVOUS_PORTS, PlacementError
from shadowprice.executors.local.machine import ProcessAllocation

PROGRESS_FILE: Final = "SHADOWPRICE_PROGRESS_FILE"
_MIN_MEMORY_LIMIT_BYTES: Final = 64 << 20
"""With a lower limit, programs can't start."""


def build_launch_plan(
    spec: GenerationSpec,
    allocations: Sequence[ProcessAllocation],
    *,
    job_directory: Path,
    progress: Path,
    port: int,
    log_bytes: int,
    bell: Path,
    cgroup: Path | None,
    memory: str,
    user: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the plan of a generation as JSON-compatible values.

    ``job_directory`` is the default parent of the job's working and checkpoint directories.
    ``port`` is the rendezvous port of its processes on this machine. ``bell`` is the executor's
    named pipe, through which supervisors notify it. ``memory`` is ``cgroup``, ``rlimit`` or
    ``off``. ``user`` is from `users.user_credentials`; None runs the processes as the executor's
    user.
    """
    execution = secrets.token_hex(16)
    checkpoints = spec.checkpoint_dir or str(job_directory / "checkpoints")
    user_variables = {} if user is None else user["environment"]
    inherited = inherited_environment(spec, {**os.environ, **user_variables})
    processes = []
    for allocation in allocations:
        environment = inherited | build_environment(
            spec,
            allocation.process,
            master_address="127.0.0.1",
            master_port=port,
            checkpoint_dir=checkpoints,
            devices=allocation.visible_devices,
        )
        environment[PROGRESS_FILE] = str(progress)
        environment[EXECUTION_VARIABLE] = execution
        limit = max(allocation.memory, _MIN_MEMORY_LIMIT_BYTES) if allocation.memory else 0
        processes.append(
            {
                "name": allocation.process.name,
                "command": list(spec.program.command),
                "environment": environment,
                "directory": spec.program.directory or str(job_directory / "work"),
                "cores": list(allocation.cores),
                "memory": limit if memory == "rlimit" else 0,
                "cgroup_memory": limit if memory == "cgroup" else 0,
                "user": None if user is None else [user["uid"], user["gid"], user["groups"]],
            }
        )
    return {
        "execution": execution,
        "processes": processes,
        "allocations": [allocation.record() for allocation in allocations],
        "grace": spec.program.grace,
        "tolerates_workers": spec.program.tolerates_workers,
        "port": port,
        "secrets": [spec.progress_token],
        "log_bytes": log_bytes,
        "bell": str(bell),
        "progress": str(progress),
        "cgroup": str(cgroup) if cgroup is not None else "",
        "folders": []
        if user is not None
        else [checkpoints, *([] if spec.program.directory else [str(job_directory / "work")])],
    }


def free_port(taken: Container[int]) -> int:
    """Return a port of this machine that is free and not in ``taken``.

    Raises `PlacementError` if none of 200 random ports is free.
    """
    draw = SystemRandom()
    for _ in range(200):
        port = draw.choice(RENDEZVOUS_PORTS)
        if port in taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise PlacementError("this machine has no free port for its processes")
