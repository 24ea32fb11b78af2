"""Spawn, find and signal processes and their descendants. Linux, standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from shadowprice.executors.generations.disk import list_names
from shadowprice.executors.generations.generation import (
    EXECUTION_VARIABLE,
    Phase,
    boot_id,
    read_stat,
    start_time,
)
from shadowprice.executors.supervision import cgroups

AGENT: Final = Path(__file__).with_name("agent.py")  # the supervisor's program file

_MAX_SHOWN_NAMES: Final = 5
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38


def _prctl(option: int, value: int) -> None:
    # Looked up on each call: a fork could inherit a cached lookup in a half-initialized state.
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def become_subreaper() -> None:
    """Make this process the subreaper: it adopts every descendant whose parent exits."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def spawn(plan: Mapping[str, Any], cgroup: Path | None) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process in a new session; return it with the read end of its output pipe.

    ``plan`` has ``command``, ``environment``, ``directory``, ``cores`` (empty for all), ``memory``
    (limit of private memory in bytes, 0 for none) and ``user`` (uid, gid, supplementary groups).
    """
    parent = os.getpid()
    cores, memory = plan["cores"], plan["memory"]
    libc = ctypes.CDLL(None, use_errno=True)
    user = plan.get("user")

    def prepare() -> None:
        # Runs in the child between fork and exec; safe because the supervisor has one thread.
        try:
            if cgroup is not None:
                cgroups.join(cgroup)
            if cores:
                with contextlib.suppress(OSError):  # a core may have been taken offline
                    os.sched_setaffinity(0, cores)
            if memory:
                limit_memory()
            if user is not None:
                become(user, plan["directory"])
        except OSError as error:  # `Popen` would only report that this function failed
            where = f"{error.filename}: " if error.filename else ""
            os.write(2, f"cannot prepare the process: {where}{error.strerror}\n".encode())
            os._exit(126)
        # After the change of user, because that clears the parent-death signal.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the prctl
            os._exit(127)

    def limit_memory() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)  # only root may raise it
        limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def become(ids: Any, directory: str) -> None:
        uid, gid, groups = ids
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # setuid programs can't raise privileges
        try:
            os.chdir(directory)  # checked with the job user's permissions
        except OSError as error:
            os.write(2, f"cannot enter its directory {directory}: {error.strerror}\n".encode())
            os._exit(126)

    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.set_blocking(writing, True)
        process = subprocess.Popen(  # one thread, see above
            plan["command"],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.STDOUT,
            cwd=plan["directory"] if user is None else None,
            env=plan["environment"],
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509  # one thread, see above
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return process, reading


def spawn_supervisor(directory: Path, lifeline: int | None, *, detach: bool = False) -> int:
    """Start a supervisor in a new session; return its pid.

    If ``detach``, the started process forks the supervisor and exits.
    """
    argv = [sys.executable, "-I", "-S", str(AGENT), str(directory)]
    output = str(directory / "supervisor.log")
    file_actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    if lifeline is not None:
        argv += ["3", "detach"] if detach else ["3"]
        file_actions.append((os.POSIX_SPAWN_DUP2, lifeline, 3))
    inherited = ("LD_LIBRARY_PATH", "LANG")  # other variables may be secrets
    return os.posix_spawn(
        sys.executable,
        argv,
        {name: os.environ[name] for name in inherited if name in os.environ},
        file_actions=file_actions,
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD),
    )


def signal_supervisor(state: Mapping[str, Any], *numbers: int) -> None:
    """Signal the supervisor that a state names, if it lives and its pid wasn't reused."""
    pid = state.get("supervisor")
    if state["phase"] not in {Phase.LAUNCHING, Phase.RUNNING} or not isinstance(pid, int):
        return
    if state.get("boot") != boot_id():
        return
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if start_time(pid) == state.get("began"):
                for number in numbers:
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def is_stopped(process: int) -> bool:
    """Return whether a signal, such as SIGSTOP, has stopped a process."""
    return read_stat(process)[:1] == [b"T"]


def signal_group(leader: int, number: int) -> None:
    """Signal a process group; do nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def signal_process(process: int, number: int) -> None:
    """Signal a process; do nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def process_group(process: int) -> int:
    """Return the process group of a process, 0 if it has ended."""
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return 0


def processes() -> Iterator[tuple[int, int, int]]:
    """Yield pid, parent pid and process group of every process that hasn't ended."""
    for name in list_names(Path("/proc")):
        fields = read_stat(name) if name.isdecimal() else []
        if fields and fields[0] not in {b"Z", b"X"}:
            yield int(name), int(fields[1]), int(fields[2])


def descendants(root: int) -> dict[int, int]:
    """Return the descendants of a process that haven't ended, with their process groups."""
    children: dict[int, list[tuple[int, int]]] = {}
    for process, parent, group in processes():
        children.setdefault(parent, []).append((process, group))
    groups: dict[int, int] = {}
    pending = [root]
    while pending:
        for process, group in children.get(pending.pop(), ()):
            if process not in groups:
                groups[process] = group
                pending.append(process)
    return groups


def find_by_execution_id(execution: str) -> set[int]:
    """Return the processes whose environment has `EXECUTION_VARIABLE` with this value."""
    mark = f"{EXECUTION_VARIABLE}={execution}".encode()
    matching = set()
    for process, _, _ in processes():
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                matching.add(process)
    return matching


def find_by_sessions(leaders: Iterable[tuple[int, int | None]]) -> set[int]:
    """Return the leaders, given by pid and start time, and the processes in their sessions.

    Sessions of ended leaders count too: a pid isn't reused while its session has a process. If the
    start time of a leader's pid differs, the pid was reused, and that session has ended.
    """
    sessions = {
        leader
        for leader, started in leaders
        if started is not None and start_time(leader) in {None, started}
    }
    members = set()
    for process, _, _ in processes():
        with contextlib.suppress(ProcessLookupError):
            if process in sessions or os.getsid(process) in sessions:
                members.add(process)
    return members


def read_environ(process: int) -> dict[str, str]:
    """Return the initial environment of a process, empty if it can't be read."""
    try:
        content = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.decode("utf-8", "replace").partition("=") for part in content.split(b"\0"))
    return {name: value for name, _, value in pairs}


def process_names(pids: Iterable[int]) -> str:
    """Return the command names of processes. Arguments are omitted: they may contain secrets."""
    counts: dict[str, int] = {}
    for process in pids:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{process}/comm").read_bytes().decode("utf-8", "replace").strip()
            counts[name] = counts.get(name, 0) + 1
    shown = [name if count == 1 else f"{count} {name}" for name, count in sorted(counts.items())]
    return ", ".join([*shown[:_MAX_SHOWN_NAMES], "..."] if len(shown) > _MAX_SHOWN_NAMES else shown)


def _missing_interpreter(program: Path) -> str:
    """Return which interpreter or loader is missing to run an existing file."""
    with contextlib.suppress(OSError):
        with program.open("rb") as file:
            line = file.readline(256)
        if line.startswith(b"#!"):
            words = line[2:].decode("utf-8", "replace").split(" ")
            interpreter = next(filter(None, words), "").rstrip("\n")
            if interpreter.endswith("\r"):
                return "its lines end as on Windows; convert it: sed -i 's/\\r$//' FILE"
            return f"its first line names {interpreter!r}, which this machine doesn't have"
    return "this machine lacks its loader; check that it is a program for this system"


def spawn_error_message(error: Exception, plan: dict[str, Any]) -> str:
    """Return why `spawn` failed, with a hint."""
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.filename == plan["directory"]:
        return f"cannot start in {plan['directory']}: {reason}; check run.workdir"
    hint = ""
    program = Path(plan["directory"], plan["command"][0])
    if isinstance(error, PermissionError):
        hint = "; make it executable (chmod +x)"
        if program.is_dir():
            hint = "; it is a directory: name the program in it"
    elif isinstance(error, FileNotFoundError) and program.is_file():
        reason, hint = _missing_interpreter(program), ""
    elif isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        hint = "; name its interpreter in the first line (#!)"
    return f"cannot run {plan['command'][0]}: {reason}{hint}"
