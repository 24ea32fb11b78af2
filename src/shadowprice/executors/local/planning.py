"""What a supervisor is to run, worked out before it begins: every word, variable and limit."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.environment import environment_of, own_environment
from shadowprice.executors.generations.generation import MARK
from shadowprice.executors.generations.placing import PORTS, NoPlaceError
from shadowprice.executors.local.machine import Dealt

PROGRESS_FILE: Final = "SHADOWPRICE_PROGRESS_FILE"
_DATA_LIMIT: Final = 64 << 20
"""Least bytes of private memory that a limit leaves: less, and no program begins at all."""


def plan_of(
    spec: GenerationSpec,
    dealt: Sequence[Dealt],
    *,
    own: Path,
    progress: Path,
    port: int,
    log_bytes: int,
    bell: Path,
    cgroup: Path | None,
    memory: str,
    user: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the plan of a generation.

    Parameters
    ----------
    spec : GenerationSpec
        The generation.
    dealt : sequence of Dealt
        What every process gets.
    own : Path
        The job's directory, for what the job leaves and no other place is named for.
    progress : Path
        The file by which it may report.
    port : int
        Where its processes meet on this machine.
    log_bytes : int
        Most bytes kept of what a process writes.
    bell : Path
        The executor's pipe.
    cgroup : Path or None
        The generation's control group.
    memory : str
        ``cgroup``, ``rlimit`` or ``off``.
    user : mapping, optional
        Who its processes are, as `users.identity` tells it; by default who the executor is.
    """
    execution = secrets.token_hex(16)
    checkpoints = spec.checkpoint_dir or str(own / "checkpoints")
    told = {} if user is None else user["environment"]
    inherited = own_environment(spec, {**os.environ, **told})
    processes = []
    for one in dealt:
        environment = inherited | environment_of(
            spec,
            one.process,
            master_address="127.0.0.1",
            master_port=port,
            checkpoint_dir=checkpoints,
            devices=one.told,
        )
        environment[PROGRESS_FILE] = str(progress)
        environment[MARK] = execution
        limit = max(one.memory, _DATA_LIMIT) if one.memory else 0
        processes.append(
            {
                "name": one.process.name,
                "command": list(spec.program.command),
                "environment": environment,
                "directory": spec.program.directory or str(own / "work"),
                "cores": list(one.cores),
                "memory": limit if memory == "rlimit" else 0,
                "cgroup_memory": limit if memory == "cgroup" else 0,
                "user": None if user is None else [user["uid"], user["gid"], user["groups"]],
            }
        )
    return {
        "execution": execution,
        "processes": processes,
        "deals": [one.record() for one in dealt],
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
        else [checkpoints, *([] if spec.program.directory else [str(own / "work")])],
    }


def free_port(taken: Container[int]) -> int:
    """Return a port of this machine that nobody listens on, and no other generation was told.

    Raises
    ------
    NoPlaceError
        If none is found.
    """
    draw = SystemRandom()
    for _ in range(200):
        port = draw.choice(PORTS)
        if port in taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise NoPlaceError("no port of this machine is free for its processes to meet")
