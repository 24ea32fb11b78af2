"""Plans for supervisors: user, command, environment and limits of every process.

To run jobs as other users, the service has to be root. These users can't enter the executor's own
directory, so the files of their jobs (work, checkpoints, progress) are in a separate tree. There,
root owns each job's directory, so that the user can't replace its subdirectories by links. The user
owns only the subdirectories.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import shutil
import socket
import stat
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.generations.generation import EXECUTION_VARIABLE
from shadowprice.executors.local.machine import ProcessAllocation
from shadowprice.executors.processes import (
    RENDEZVOUS_PORTS,
    PlacementError,
    build_environment,
    inherited_environment,
)
from shadowprice.uploads.unpacking import remove_unpacked

PROGRESS_FILE: Final = "SHADOWPRICE_PROGRESS_FILE"  # variable with the path of the progress file
_PORT_ATTEMPTS: Final = 200
_MIN_MEMORY_LIMIT_BYTES: Final = 64 << 20  # with a lower limit, programs can't start


def user_credentials(name: str) -> dict[str, Any]:
    """Return uid, gid, groups and variables of a user; raise `PlacementError` if unusable."""
    if os.geteuid() != 0:
        raise PlacementError(
            "the service doesn't run as root, so its jobs can't run as other users"
        )
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise PlacementError(f"this machine has no user {name!r}") from None
    if entry.pw_uid == 0:
        raise PlacementError("jobs may not run as root")
    return {
        "uid": entry.pw_uid,
        "gid": entry.pw_gid,
        # Jobs may not run in root's group (0) either.
        "groups": [group for group in os.getgrouplist(name, entry.pw_gid) if group != 0],
        "environment": {
            "HOME": entry.pw_dir,
            "USER": name,
            "LOGNAME": name,
            "SHELL": entry.pw_shell or "/bin/sh",
        },
    }


class UserJobDirs:
    """Directories of jobs that run as other users; ``root`` is created if missing."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def job(self, key: str) -> Path:
        """Return the directory of a job."""
        return self._root / key

    def make(self, key: str, user: dict[str, Any]) -> None:
        """Create a job's directories; raise OSError if another user can write to the tree."""
        self._root.mkdir(mode=0o711, parents=True, exist_ok=True)
        status = os.lstat(self._root)
        open_to_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or open_to_others:
            reason = "must belong to root and be writable only by root"
            raise PermissionError(errno.EPERM, reason, str(self._root))
        self.job(key).mkdir(mode=0o711, exist_ok=True)
        self.job(key).chmod(0o711)  # regardless of the umask
        self._root.chmod(0o711)
        for name in ("work", "checkpoints", "progress"):
            folder = self.job(key) / name
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, user["uid"], user["gid"], follow_symlinks=False)

    def remove(self, key: str) -> None:
        """Remove the directories of a job."""
        remove_unpacked(self.job(key) / "work")
        shutil.rmtree(self.job(key), ignore_errors=True)


def build_launch_plan(
    spec: GenerationSpec,
    allocations: Sequence[ProcessAllocation],
    *,
    job_directory: Path,
    progress: Path,
    port: int,
    memory: str,
    user: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the part of a generation's plan that depends on the job, as JSON-compatible values.

    ``port`` is the processes' rendezvous port on this machine. ``memory`` is ``cgroup``, ``rlimit``
    or ``off``. ``user`` is from `user_credentials`; None if jobs run as the executor's user.
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
        "progress": str(progress),
        # Folders to create. `UserJobDirs` has created those of other users.
        "folders": []
        if user is not None
        else [checkpoints, *([] if spec.program.directory else [str(job_directory / "work")])],
    }


def free_port(taken: Container[int]) -> int:
    """Return a free port that isn't in ``taken``, or raise `PlacementError`."""
    draw = SystemRandom()
    for _ in range(_PORT_ATTEMPTS):
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
