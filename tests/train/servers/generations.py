"""Generations of real processes, begun quickly: forked from one that has torch loaded already."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.train.backends import share_gpus
from tests.train.forking import CONTEXT, preload

PATIENCE = 240.0
"""Seconds that anything may take on a busy machine."""

Process = multiprocessing.context.ForkServerProcess
preload("tests.train.servers.scripts")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _begin(
    environment: Mapping[str, str], log: str, script: Callable[..., None], given: Mapping[str, Any]
) -> None:
    os.environ.update(environment)
    share_gpus(int(environment["RANK"]))
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    status = 0
    try:
        script(**given)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0
    except BaseException:
        traceback.print_exc()
        status = 1
    # As a script ends that was begun by itself: the interpreter is taken down. A process that
    # multiprocessing ends takes nothing down, and threads that still hang then do no harm.
    ctypes.pythonapi.Py_Exit(status)


class Generation:
    """The processes of one generation, told what an executor tells them.

    Parameters
    ----------
    folder : Path
        Of the job: checkpoints, what it reports, logs.
    script : callable
        What every process runs.
    workers, ps : int
        How many there are.
    number : int
        Which generation it is.
    address : str
        Where they meet.
    variables : mapping
        Additional environment variables.
    own_told : mapping
        What single processes are told besides, by name.
    absent : tuple of str
        Processes that never come.
    **given
        What the script is called with.
    """

    def __init__(
        self,
        folder: Path,
        script: Callable[..., None],
        workers: int,
        ps: int,
        number: int = 1,
        address: str = "127.0.0.1",
        variables: Mapping[str, str] = MappingProxyType({}),
        own_told: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
        absent: tuple[str, ...] = (),
        **given: Any,
    ) -> None:
        self.folder = folder
        port = _free_port()
        world = workers + ps
        self.processes: dict[str, Any] = {}
        for rank in range(world):
            role, own = ("worker", rank) if rank < workers else ("ps", rank - workers)
            if f"{role}-{own}" in absent:
                continue
            environment = {
                "SHADOWPRICE_JOB": "job",
                "SHADOWPRICE_GENERATION": str(number),
                "SHADOWPRICE_ROLE": role,
                "SHADOWPRICE_RANK": str(own),
                "SHADOWPRICE_WORKERS": str(workers),
                "SHADOWPRICE_PS": str(ps),
                "SHADOWPRICE_CHECKPOINT_DIR": str(folder / "checkpoints"),
                "SHADOWPRICE_PROGRESS_FILE": str(folder / "progress.json"),
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                **variables,
                **own_told.get(f"{role}-{own}", {}),
            }
            log = str(folder / f"{role}-{own}.log")
            process = CONTEXT.Process(
                target=_begin, args=(environment, log, script, given), daemon=True
            )
            process.start()
            self.processes[f"{role}-{own}"] = process

    def signal(self, number: int, *names: str) -> None:
        """Send a signal to processes, to all where none is named."""
        for name in names or tuple(self.processes):
            process = self.processes[name]
            if process.is_alive():
                os.kill(process.pid, number)

    def kill(self, *names: str) -> None:
        """Kill processes."""
        self.signal(signal.SIGKILL, *names)

    def ended(self) -> dict[str, int]:
        """Wait until all have ended; return how, by name."""
        until = time.monotonic() + PATIENCE
        for name, process in self.processes.items():
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                self.kill()
                raise AssertionError(f"{name} did not end; {self.said()}")
        return {name: process.exitcode for name, process in self.processes.items()}

    def stop(self) -> dict[str, int]:
        """Tell all to end, as an executor does, and wait until they have."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, self.said()
            assert any(process.is_alive() for process in self.processes.values()), self.said()
            time.sleep(0.01)

    def said(self) -> str:
        """Return the ends of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs)
