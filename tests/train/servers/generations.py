"""Generations of real processes that start fast, forked from one that has loaded torch."""

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
"""Timeout of every wait on a busy machine, in seconds."""

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
    # A script that was started directly ends with its interpreter's shutdown. A process that
    # multiprocessing ends skips it, so threads that still hang do no harm.
    ctypes.pythonapi.Py_Exit(status)


class Generation:
    """The processes of one generation, with the environment that an executor sets.

    Parameters
    ----------
    folder : Path
        Folder of the job: checkpoints, reports, logs.
    script : callable
        Script of every process.
    workers, ps : int
        Number of each.
    number : int
        Number of the generation.
    address : str
        Address where the processes meet.
    variables : mapping
        Additional environment variables.
    own_told : mapping
        Additional environment variables of single processes, by name.
    absent : tuple of str
        Processes that never start.
    **given
        Arguments of the script.
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
        """Send a signal to processes, to all if none is named."""
        for name in names or tuple(self.processes):
            process = self.processes[name]
            if process.is_alive():
                os.kill(process.pid, number)

    def kill(self, *names: str) -> None:
        """Kill processes."""
        self.signal(signal.SIGKILL, *names)

    def ended(self) -> dict[str, int]:
        """Wait until all have ended; return their exit statuses by name."""
        until = time.monotonic() + PATIENCE
        for name, process in self.processes.items():
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                self.kill()
                raise AssertionError(f"{name} did not end; {self.said()}")
        return {name: process.exitcode for name, process in self.processes.items()}

    def stop(self) -> dict[str, int]:
        """Stop all processes, as an executor does, and wait until they have ended."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, self.said()
            assert any(process.is_alive() for process in self.processes.values()), self.said()
            time.sleep(0.01)

    def said(self) -> str:
        """Return the ends of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs)
