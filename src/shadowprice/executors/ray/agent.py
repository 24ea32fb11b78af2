"""Code that runs on the nodes: one actor per process, and cleanup after an actor died.

The module is sent by value, together with the supervisor's sources (the bundle), so nodes need only
Ray. It uses only the standard library and Ray's runtime context.

An actor starts its process at most once, on `go`, which creates the directory of the process. When
the actor ends, its process ends too, because the pipe to its supervisor (the lifeline) closes.
`clean_up_dead_actor` then runs on the node as a task. It waits for the end of the process, and
returns the result.

``place`` has the node's directory (``root``), the ``digest`` and ``bundle`` of the sources, and the
actor's name (``key``).
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import stat
import sys
import threading
import time
from pathlib import Path
from random import SystemRandom
from typing import Any

IDLE_TIMEOUT_SECONDS = 180.0  # an actor that gets no `go` ends after it
POLL_SECONDS = 0.1  # seconds between polls of a supervisor's state
CLAIM_TIMEOUT_SECONDS = 60.0  # maximum seconds for a supervisor to start
IDLE = "idle"  # version of the state before `go`
DAMAGED = "damaged"  # version of a state that can't be read

PORTS = range(20_000, 32_000)  # below Linux's ephemeral range
_PORT_ATTEMPTS = 200
LOG_CHUNK_BYTES = 256 << 10
_MAX_PROGRESS_BYTES = 65_536  # a file with more is invalid, see `TrackedGeneration`


def prepare_code(root: str, digest: str, bundle: dict[str, str]) -> None:
    """Write the supervisor's sources (``bundle``) if they are missing, and make them importable."""
    base = Path(root)
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{root} belongs to another user; set node_dir to another directory")
    base.chmod(0o700)  # `mkdir` keeps the mode of an existing directory
    code = base / "code" / digest
    if not code.is_dir():
        temporary = code.with_name(f".{digest}.{os.getpid()}.{time.monotonic_ns()}")
        for path, text in bundle.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_text(text, encoding="utf-8")
        try:
            temporary.rename(code)
        except OSError:  # another process created it first
            shutil.rmtree(temporary, ignore_errors=True)
    if str(code) not in sys.path:
        sys.path.insert(0, str(code))


def _generation_module() -> Any:
    from shadowprice.executors.generations import generation  # noqa: PLC0415  # from the bundle

    return generation


def _children_module() -> Any:
    from shadowprice.executors.supervision import children  # noqa: PLC0415  # from the bundle

    return children


class ProcessActor:
    """Starts one process on its node, and reports its state."""

    def __init__(self, place: dict[str, Any]) -> None:
        prepare_code(place["root"], place["digest"], place["bundle"])
        self._path = Path(place["root"]) / "parts" / place["key"]
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._go_received = False
        self._claim_deadline = float("inf")
        self._lifeline = -1
        idle = threading.Timer(IDLE_TIMEOUT_SECONDS, self._end_idle)
        idle.daemon = True
        idle.start()

    def _end_idle(self) -> None:
        with self._lock:
            if not self._go_received:
                os._exit(0)

    def prepare(
        self, base: str, token: str, folders: list[str], gpus: bool, inherit: list[str]
    ) -> dict[str, Any]:
        """Check and create directories; return the node's address, environment, GPUs and port.

        Returns ``error`` instead if a directory isn't usable. ``base`` is the directory that all
        nodes must share; its file ``.shadowprice-id`` must have the content ``token``.
        """
        import ray  # noqa: PLC0415  # the node's version

        try:
            if base:
                actual = (Path(base) / ".shadowprice-id").read_text(encoding="ascii").strip()
                if actual != token:
                    raise FileNotFoundError(base)
            for folder in folders:
                Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileNotFoundError:
            return {"error": f"it does not see {base}, where the jobs' files are kept"}
        except OSError as error:
            return {"error": f"{error.filename}: {error.strerror}"}
        gpu_ids = [str(gpu_id) for gpu_id in ray.get_gpu_ids()]
        return {
            "address": ray.util.get_node_ip_address(),
            "environment": {
                name: value
                for name, value in os.environ.items()
                if name in inherit or name.startswith("LC_")
            },
            "gpus": gpu_ids if gpus else None,
            "port": _free_port(),
        }

    def go(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Start the process unless it has been started already; return its state, or ``error``."""
        with self._lock:
            if self._go_received:
                return self.look()
            generation = _generation_module()
            state = {"phase": generation.Phase.ACCEPTED, "command": 0, "agent": os.getpid()}
            state |= {"accepted": time.time(), "at": time.time()}
            plan["processes"][0]["environment"]["SHADOWPRICE_PROGRESS_FILE"] = str(
                self._path / "progress.json"
            )
            try:
                record = generation.GenerationDirectory.create(self._path, plan, state)
                self._launch()
            except OSError as error:  # a full disk, or too many processes
                shutil.rmtree(self._path, ignore_errors=True)
                return {"error": f"{error.filename or self._path}: {error.strerror}"}
            self._go_received = True
            self._claim_deadline = time.monotonic() + CLAIM_TIMEOUT_SECONDS
        while record.state()["phase"] in {generation.Phase.ACCEPTED, generation.Phase.LAUNCHING}:
            if time.monotonic() > self._claim_deadline:
                raise TimeoutError("its supervisor did not start")
            time.sleep(0.01)
        return self.look()

    def _launch(self) -> None:
        reading, self._lifeline = os.pipe2(os.O_CLOEXEC)
        try:
            child = _children_module().spawn_supervisor(self._path, reading, detach=True)
        finally:
            os.close(reading)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)  # it forks the supervisor and exits at once

    def _generation(self) -> Any:
        return _generation_module().GenerationDirectory(self._path)

    def look(self) -> dict[str, Any]:
        """Return the current state; ``state`` is None before `go`."""
        if not self._path.is_dir():
            return {"version": IDLE, "state": None, "progress": None}
        try:
            state, stop = self._generation().state(), self._generation().stop()["command"]
        except (OSError, ValueError):
            return {"version": DAMAGED, "state": None, "progress": None}
        progress, progress_version = _read_progress_file(self._path / "progress.json")
        version = f"{state['phase']} {stop} {progress_version}"
        return {"version": version, "state": state, "stop": stop, "progress": progress}

    def wait(self, version: str, timeout: float) -> dict[str, Any]:
        """Return the state once it differs from ``version``, or after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        while True:
            status = self.look()
            if status["version"] != version or time.monotonic() > until:
                return status
            if self._is_abandoned(status):
                os._exit(1)  # then the controller calls `clean_up_dead_actor`
            time.sleep(POLL_SECONDS)

    def _is_abandoned(self, status: dict[str, Any]) -> bool:
        """Return whether the supervisor died without a result, or didn't start in time."""
        generation = _generation_module()
        phases = {generation.Phase.LAUNCHING, generation.Phase.RUNNING}
        if time.monotonic() > self._claim_deadline:
            phases.add(generation.Phase.ACCEPTED)
        damaged = status["version"] == DAMAGED
        if not damaged and (status["state"] is None or status["state"]["phase"] not in phases):
            return False
        with self._lock:  # excludes a concurrent start
            lock = self._generation().try_lock()
            if lock is None:
                return False
            lock.release()
            again = self.look()  # it may have ended since ``status`` was read
        if damaged:
            return bool(again["version"] == DAMAGED)
        return again["state"] is not None and again["state"]["phase"] in phases

    def stop(self, command: int, grace: float) -> None:
        """Store a stop command, and make the supervisor apply it."""
        record = self._generation()
        record.request_stop(command, max(0.0, grace), time.time())
        # SIGCONT too, because a job may have sent SIGSTOP to the supervisor.
        _children_module().signal_supervisor(record.state(), signal.SIGTERM, signal.SIGCONT)

    def logs(
        self, process: str, start: int | None, max_bytes: int, complete: bool
    ) -> list[Any] | None:
        """Return the result of `generations.logs.read`; None if the process has no log."""
        from shadowprice.executors.generations import logs  # noqa: PLC0415  # from the bundle

        if not self._path.is_dir() or process not in logs.names(self._path / "logs"):
            return None
        return list(logs.read(self._path / "logs", process, start, max_bytes, complete=complete))

    def segments(self) -> dict[str, int]:
        """Return the log's files and their sizes."""
        return list_log_segments(str(self._path))

    def piece(self, name: str, offset: int) -> str:
        """Return a piece of a file of the log, in base64."""
        return read_segment_chunk(str(self._path), name, offset)

    def retire(self) -> None:
        """Remove the files of the ended process, once its supervisor has exited."""
        until = time.monotonic() + CLAIM_TIMEOUT_SECONDS
        while self._path.is_dir() and time.monotonic() < until:
            lock = self._generation().try_lock()
            if lock is not None:
                lock.release()
                break
            time.sleep(0.01)
        shutil.rmtree(self._path, ignore_errors=True)


def list_log_segments(path: str) -> dict[str, int]:
    """Return the files of a process's log and their sizes."""
    folder = Path(path) / "logs"
    if not folder.is_dir():
        return {}
    return {file.name: file.stat().st_size for file in folder.iterdir()}


def read_segment_chunk(path: str, name: str, offset: int) -> str:
    """Return a piece of a file of a process's log, in base64."""
    with (Path(path) / "logs" / Path(name).name).open("rb") as stream:
        stream.seek(offset)
        return base64.b64encode(stream.read(LOG_CHUNK_BYTES)).decode("ascii")


def clean_up_dead_actor(place: dict[str, Any], patience: float) -> dict[str, Any]:
    """Clean up after a dead actor, on its node: kill its processes, and return the result.

    In the result, ``known`` is true if the process was ever started here, ``cleared`` if none of
    its processes runs, and ``state`` is its last state.
    """
    prepare_code(place["root"], place["digest"], place["bundle"])
    generation, children = _generation_module(), _children_module()
    path = Path(place["root"]) / "parts" / place["key"]
    if not (path / "state").exists():
        shutil.rmtree(path, ignore_errors=True)  # an interrupted `go` may have created it
        return {"known": False, "cleared": True, "state": None}
    record = generation.GenerationDirectory(path)
    until = time.monotonic() + patience
    while time.monotonic() < until:
        lock = record.try_lock()
        if lock is None:
            time.sleep(0.1)
            continue
        lock.release()
        try:
            state = record.state()
        except ValueError:
            state = {"phase": generation.Phase.DAMAGED}
        phase = state["phase"]
        remaining = children.find_by_execution_id(place["key"])
        is_over = phase in generation.TERMINAL_PHASES or state.get("boot") != generation.boot_id()
        if not is_over:  # otherwise other processes may have its pids
            remaining |= children.find_by_sessions(state.get("processes", {}).values())
        if remaining:
            for process in remaining:
                children.signal_process(process, signal.SIGKILL)
            time.sleep(0.05)
            continue
        if phase == generation.Phase.ACCEPTED:
            claim = record.claim({})  # prevents a late supervisor from starting
            if claim is None:
                continue
            claim.release()
        if phase in generation.TERMINAL_PHASES or record.mark_lost_if_dead("its agent was killed"):
            return {"known": True, "cleared": True, "state": record.state()}
    return {"known": True, "cleared": False, "state": None}


def remove(paths: list[str]) -> None:
    """Remove directories on this node."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _free_port() -> int:
    draw = SystemRandom()
    for _ in range(_PORT_ATTEMPTS):
        port = draw.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("this node has no free port for the processes")


def _read_progress_file(path: Path) -> tuple[list[Any] | None, str]:
    """Return content, time and version of a progress file."""
    from shadowprice.executors.generations import disk  # noqa: PLC0415  # from the bundle

    try:
        content, status = disk.read_untrusted(path, _MAX_PROGRESS_BYTES + 1)
    except (OSError, ValueError):
        return None, ""
    # Not only the time: within one clock tick, a file may be read half-written and then grow.
    version = f"{status.st_mtime_ns}.{status.st_ino}.{status.st_size}"
    return [content.decode("utf-8", "surrogateescape"), status.st_mtime], version
