"""What runs on the nodes: an actor a process, and what is done where an actor died.

Sent by value, with the supervisor's sources beside it (`bundle`): nodes need Ray and nothing of
this package. Standard library only, but for what Ray itself tells an actor.

An actor begins a process once at most, when told to `go`: the directory of the process is made then
and never twice. Whatever ends the actor ends the process, for it holds the supervisor's lifeline;
and `clear`, run on the node as a task, waits until that is so and tells how it ended.
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

IDLE = 180.0
"""Seconds that an actor waits to be told to go; one that nobody knows of ends by itself."""

LOOK = 0.1
"""Seconds between looks at what a supervisor wrote."""

CLAIM = 60.0
"""Seconds that a supervisor has to begin."""

DAMAGED = "damaged"
"""Where a process is of which nothing whole can be read."""

PORTS = range(20_000, 32_000)
PIECE = 256 << 10
_PROGRESS = 65_536


def prepare_code(root: str, digest: str, bundle: dict[str, str]) -> None:
    """Write the supervisor's sources, where they are not there yet, and let them be imported.

    Parameters
    ----------
    root : str
        The executor's directory on this node, made where it is not.
    digest : str
        Of the sources.
    bundle : dict of str to str
        The sources by path.
    """
    base = Path(root)
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{root} belongs to someone else; set node_dir to another place")
    code = base / "code" / digest
    if not code.is_dir():
        fresh = code.with_name(f".{digest}.{os.getpid()}.{time.monotonic_ns()}")
        for path, text in bundle.items():
            (fresh / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).write_text(text, encoding="utf-8")
        try:
            fresh.rename(code)
        except OSError:  # another was faster
            shutil.rmtree(fresh, ignore_errors=True)
    if str(code) not in sys.path:
        sys.path.insert(0, str(code))


def _parts() -> Any:
    from shadowprice.executors.generations import generation  # noqa: PLC0415  # from the bundle

    return generation


class Agent:
    """Begins one process on its node, and looks after it.

    Parameters
    ----------
    place : dict
        ``root``, ``digest``, ``bundle``: see `prepare_code`; ``key``: what tells this process of
        this generation from every other.
    """

    def __init__(self, place: dict[str, Any]) -> None:
        prepare_code(place["root"], place["digest"], place["bundle"])
        self._code = Path(place["root"]) / "code" / place["digest"]
        self._path = Path(place["root"]) / "parts" / place["key"]
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._gone = False
        self._lifeline = -1
        idle = threading.Timer(IDLE, self._end_idle)
        idle.daemon = True
        idle.start()

    def _end_idle(self) -> None:
        with self._lock:
            if not self._gone:
                os._exit(0)

    def prepared(
        self, base: str, token: str, folders: list[str], gpus: bool, inherit: list[str]
    ) -> dict[str, Any]:
        """Return what the service has to know of this place.

        Parameters
        ----------
        base : str
            The directory that the service and all nodes share; empty to see to none.
        token : str
            What stands in its file ``.shadowprice-id``.
        folders : list of str
            Directories to make.
        gpus : bool
            Whether the node has GPUs.
        inherit : list of str
            Variables of the node's environment that are wanted, beside ``LC_*``.
        """
        import ray  # noqa: PLC0415  # the node's own

        try:
            if base:
                found = (Path(base) / ".shadowprice-id").read_text(encoding="ascii").strip()
                if found != token:
                    raise FileNotFoundError(base)
            for folder in folders:
                Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileNotFoundError:
            return {"error": f"it does not see {base}, where the jobs' files are kept"}
        except OSError as error:
            return {"error": f"{error.filename}: {error.strerror}"}
        dealt = [str(one) for one in ray.get_gpu_ids()]
        return {
            "address": ray.util.get_node_ip_address(),
            "environment": {
                name: value
                for name, value in os.environ.items()
                if name in inherit or name.startswith("LC_")
            },
            "gpus": dealt if gpus else None,
            "port": _free_port(),
        }

    def go(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Begin the process, if that never was; return where it is.

        Parameters
        ----------
        plan : dict
            As of `local.planning.plan_of`, for one process.
        """
        with self._lock:
            if self._gone:
                return self.look()
            self._gone = True
            generation = _parts()
            state = {"phase": generation.ACCEPTED, "command": 0, "agent": os.getpid()}
            state |= {"accepted": time.time(), "at": time.time()}
            plan["processes"][0]["environment"]["SHADOWPRICE_PROGRESS_FILE"] = str(
                self._path / "progress.json"
            )
            one = generation.Generation.create(self._path, plan, state)
            self._launch(sys.executable)
        until = time.monotonic() + CLAIM
        while one.state()["phase"] in {generation.ACCEPTED, generation.LAUNCHING}:
            if time.monotonic() > until:
                raise TimeoutError("its supervisor did not begin")
            time.sleep(0.01)
        return self.look()

    def _launch(self, python: str) -> None:
        reading, self._lifeline = os.pipe2(os.O_CLOEXEC)
        log = str(self._path / "supervisor.log")
        program = str(self._code / "shadowprice" / "executors" / "ray" / "part.py")
        try:
            child = os.posix_spawn(
                python,
                [python, "-I", "-S", program, str(self._path), "3"],
                {
                    name: os.environ[name]
                    for name in ("LD_LIBRARY_PATH", "LANG")
                    if name in os.environ
                },
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reading, 3),
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    *([(os.POSIX_SPAWN_CLOSE, reading)] if reading > 3 else []),
                ],
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD),
            )
        finally:
            os.close(reading)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)  # it leaves its child behind at once

    def _generation(self) -> Any:
        return _parts().Generation(self._path)

    def look(self) -> dict[str, Any]:
        """Return where the process is; ``state`` is None before it was told to go."""
        if not self._path.is_dir():
            return {"version": "idle", "state": None, "progress": None}
        try:
            state, stop = self._generation().state(), self._generation().stop()["command"]
        except (OSError, ValueError):
            return {"version": DAMAGED, "state": None, "progress": None}
        progress, told = _progress(self._path / "progress.json")
        version = f"{state['phase']} {stop} {told}"
        return {"version": version, "state": state, "stop": stop, "progress": progress}

    def wait(self, version: str, most: float) -> dict[str, Any]:
        """Return where the process is once that is news, or after so many seconds.

        Parameters
        ----------
        version : str
            What was known last.
        most : float
            Seconds.
        """
        until = time.monotonic() + most
        while True:
            found = self.look()
            if found["version"] != version or time.monotonic() > until:
                return found
            if self._abandoned(found):
                os._exit(1)  # `clear` tells what is left, and how it ended
            time.sleep(LOOK)

    def _abandoned(self, found: dict[str, Any]) -> bool:
        """Whether a supervisor is not there any more that did not say how it ended."""
        generation = _parts()
        damaged = found["version"] == DAMAGED
        if not damaged and (
            found["state"] is None or found["state"]["phase"] != generation.RUNNING
        ):
            return False
        with self._lock:  # it is not being begun just now
            lock = self._generation().take_lock()
            if lock is None:
                return False
            lock.release()
            again = self.look()  # it may have ended between the two looks
        if damaged:
            return bool(again["version"] == DAMAGED)
        return again["state"] is not None and again["state"]["phase"] == generation.RUNNING

    def stop(self, command: int, grace: float) -> None:
        """Order the process to end; SIGKILL follows after the grace."""
        generation = _parts()
        one = self._generation()
        one.order_stop(command, max(0.0, grace), time.time())
        state = one.state()
        number, began = state.get("supervisor"), state.get("began")
        if state["phase"] not in {generation.LAUNCHING, generation.RUNNING}:
            return
        with contextlib.suppress(OSError, TypeError):
            handle = os.pidfd_open(number)
            try:
                if generation.start_time(number) == began:
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
            finally:
                os.close(handle)

    def logs(self, process: str, start: int | None, most: int, complete: bool) -> list[Any] | None:
        """Return a piece of the log as of `generations.logs.read`, and where the log ends."""
        from shadowprice.executors.generations import logs  # noqa: PLC0415  # from the bundle

        if not self._path.is_dir() or process not in logs.names(self._path / "logs"):
            return None
        folder = self._path / "logs"
        begin, end, text = logs.read(folder, process, start, most, complete=complete)
        return [begin, end, text, logs.read(folder, process, None, 1, complete=True)[1]]

    def segments(self) -> dict[str, int]:
        """Return the files of the log with their sizes."""
        return segments(str(self._path))

    def piece(self, name: str, offset: int) -> str:
        """Return a piece of such a file, in base 64."""
        return piece(str(self._path), name, offset)

    def retire(self) -> None:
        """Remove what is kept of the process, which is over."""
        until = time.monotonic() + CLAIM
        while self._path.is_dir() and time.monotonic() < until:
            lock = self._generation().take_lock()
            if lock is not None:  # its supervisor, which said how it ended, writes no more
                lock.release()
                break
            time.sleep(0.01)
        shutil.rmtree(self._path, ignore_errors=True)


def segments(path: str) -> dict[str, int]:
    """Return the files of a process's log with their sizes."""
    folder = Path(path) / "logs"
    if not folder.is_dir():
        return {}
    return {one.name: one.stat().st_size for one in folder.iterdir()}


def piece(path: str, name: str, offset: int) -> str:
    """Return a piece of a file of a process's log, in base 64."""
    with (Path(path) / "logs" / Path(name).name).open("rb") as stream:
        stream.seek(offset)
        return base64.b64encode(stream.read(PIECE)).decode("ascii")


def clear(place: dict[str, Any], patience: float) -> dict[str, Any]:
    """See to a process whose actor died, on its node: end what is left, and tell how it ended.

    Parameters
    ----------
    place : dict
        As of `Agent`.
    patience : float
        Seconds to wait for its supervisor, which the end of its lifeline tells to kill.

    Returns
    -------
    dict
        ``known``: whether it was ever begun here; ``cleared``: whether nothing of it runs; and
        ``state``.
    """
    prepare_code(place["root"], place["digest"], place["bundle"])
    generation = _parts()
    from shadowprice.executors.supervision import children  # noqa: PLC0415  # from the bundle

    path = Path(place["root"]) / "parts" / place["key"]
    if not path.is_dir():
        return {"known": False, "cleared": True, "state": None}
    one = generation.Generation(path)
    until = time.monotonic() + patience
    while time.monotonic() < until:
        lock = one.take_lock()
        if lock is None:
            time.sleep(0.1)
            continue
        lock.release()
        plan = one.plan()
        left = children.marked(plan["execution"]) if plan else set()
        if left:
            for process in left:
                children.signal_process(process, signal.SIGKILL)
            time.sleep(0.05)
            continue
        try:
            phase = one.state()["phase"]
        except ValueError:
            phase = generation.DAMAGED
        if phase == generation.ACCEPTED:
            claimed = one.claim({})  # so that none does that is late
            if claimed is None:
                continue
            claimed.release()
        if phase in generation.OVER or one.settle("its agent was killed"):
            return {"known": True, "cleared": True, "state": one.state()}
    return {"known": True, "cleared": False, "state": None}


def remove(paths: list[str]) -> None:
    """Remove directories on this node."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _free_port() -> int:
    draw = SystemRandom()
    for _ in range(200):
        port = draw.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("no port of this node is free for processes to meet")


def _progress(path: Path) -> tuple[list[Any] | None, str]:
    """Return what a process reported by file, with the time of that, and what tells it apart.

    The job may have put anything there: a link, a pipe, gigabytes.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None, ""
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None, ""
        text = os.read(descriptor, _PROGRESS).decode("utf-8", "replace")
        return [text, found.st_mtime], f"{found.st_mtime_ns}.{found.st_ino}"
    finally:
        os.close(descriptor)
