"""Real generations of a script for tests, with the environment that an executor sets.

Processes are forked from one that has loaded torch, so that a generation starts at once.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shadowprice.core.program import Program
from shadowprice.executors.contract import GenerationSpec, ServerAllocation
from shadowprice.executors.processes import build_environment, list_processes
from tests.train.backends import share_gpus
from tests.train.forking import CONTEXT, preload

SCRIPTS = Path(__file__).with_name("scripts")
PATIENCE = 280.0
"""Timeout of every wait on a busy machine, in seconds."""

preload("shadowprice.training.allreduce.run", __name__, "pytest")


def _run(environment: dict[str, str], script: str, words: Sequence[str], log: str) -> None:
    """Run as one process of a job."""
    os.setsid()
    for name in list(os.environ):
        if name.startswith("SHADOWPRICE_"):
            del os.environ[name]
    os.environ.update(environment)
    share_gpus(int(environment.get("RANK", "0")))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    warnings.simplefilter("default")
    faulthandler.enable()
    # A test starts as many processes as share few processors. With several threads each, they would
    # wait for each other for minutes.
    torch.set_num_threads(1)
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Generation:
    """The processes of one generation."""

    processes: list[Any]
    folder: Path
    number: int

    def log(self, rank: int = 0) -> str:
        path = self.folder / f"{self.number}-{rank}.log"
        return path.read_text() if path.exists() else ""

    def logs(self) -> list[str]:
        return [self.log(rank) for rank in range(len(self.processes))]

    def signal(self, number: int, *ranks: int) -> None:
        """Send a signal to some processes and their children, or to all."""
        for rank in ranks or range(len(self.processes)):
            leader = self.processes[rank].pid
            try:
                os.killpg(leader, number)
            except ProcessLookupError:  # it leads no group yet, or is gone
                with suppress(ProcessLookupError):
                    os.kill(leader, number)

    def ended(self) -> list[int]:
        """Wait until all have ended, and return their statuses as a shell does."""
        until = time.monotonic() + PATIENCE
        for rank, process in enumerate(self.processes):
            process.join(max(0.1, until - time.monotonic()))
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGABRT)  # the dump shows where it hangs
                process.join(10.0)
                raise AssertionError(f"worker {rank} hangs:\n{self.log(rank)}")
        return [
            process.exitcode if process.exitcode >= 0 else 128 - process.exitcode
            for process in self.processes
        ]


@dataclass
class Job:
    """A job of a script whose generations are started and stopped by the test."""

    folder: Path
    script: str = "small.py"
    words: Sequence[str] = ()
    generation: int = 0
    began: list[Generation] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def start(self, workers: int, *words: str) -> Generation:
        """Start the next generation."""
        self.generation += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        spec = GenerationSpec(
            command=self.generation,
            job="job",
            generation=self.generation,
            placement=(ServerAllocation("here", workers),),
            program=Program(("python", self.script), {}, ""),
        )
        port, processes = free_port(), []
        for process in list_processes(spec):
            variables = build_environment(
                spec,
                process,
                master_address="127.0.0.1",
                master_port=port,
                checkpoint_dir=str(self.checkpoints),
            )
            variables["SHADOWPRICE_PROGRESS_FILE"] = str(self.folder / "progress.json")
            log = str(self.folder / f"{self.generation}-{process.rank}.log")
            arguments = (variables, str(SCRIPTS / self.script), [*self.words, *words], log)
            one = CONTEXT.Process(target=_run, args=arguments)
            one.start()
            processes.append(one)
        generation = Generation(processes, self.folder, self.generation)
        self.began.append(generation)
        return generation

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; fail if the newest generation ends before."""
        until = time.monotonic() + PATIENCE
        generation = self.began[-1]
        while not condition():
            over = [
                process.exitcode for process in generation.processes if process.exitcode is not None
            ]
            assert not over or condition(), (over, generation.logs())
            assert time.monotonic() < until, generation.logs()
            time.sleep(0.01)

    def run(self, workers: int, *words: str) -> None:
        """Run a generation to its end, which must be successful."""
        generation = self.start(workers, *words)
        codes = generation.ended()
        assert codes == [0] * workers, generation.logs()

    def end(self) -> None:
        for generation in self.began:
            generation.signal(signal.SIGKILL)
            for process in generation.processes:
                process.join(PATIENCE)
                assert process.exitcode is not None, f"process {process.pid} outlives SIGKILL"
