"""The processes that run copies of tasks, and the pool of idle ones."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import weakref
from typing import TYPE_CHECKING, Final

from shadowprice.training.bag.attempt import READY, worker_main
from shadowprice.training.errors import TrainingError

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

_READY_TIMEOUT_SECONDS: Final = 60.0  # timeout of a new process, which first imports the function


class PoolWorker:
    """A process that runs copies of tasks one after the other, with one pickled function."""

    def __init__(self, function: bytes) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, child_connection = context.Pipe()
        # This pipe carries no data: the child reads end of file when this process ends.
        child_lifeline, self._lifeline = context.Pipe(duplex=False)
        self.ready = False
        self.process: ForkServerProcess = context.Process(
            target=worker_main,
            args=(child_connection, child_lifeline, function, dict(os.environ)),
            daemon=False,
        )
        try:
            self.process.start()
        except BaseException:
            self.connection.close()
            self._lifeline.close()
            raise
        finally:
            child_connection.close()
            child_lifeline.close()

    def wait_until_ready(self) -> None:
        """Wait until the process can take a task.

        Raises `TrainingError` if it can't import the function, dies or times out.
        """
        if self.ready:
            return
        try:
            if not self.connection.poll(_READY_TIMEOUT_SECONDS):
                raise TrainingError(
                    f"a process was not ready after {_READY_TIMEOUT_SECONDS:g} seconds"
                )
            kind, _, text = self.connection.recv()
        except EOFError:
            raise TrainingError(f"a process failed to start: it {self.death()}") from None
        if kind != READY:
            raise TrainingError(f"a process failed to import the function: {text}")
        self.ready = True

    def death(self) -> str:
        """Return how the process died, as text."""
        self.process.join(5.0)
        code = self.process.exitcode
        if code is None:
            return "closed its pipe"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"died of {signal.Signals(-code).name}"
        return f"exited {code} before its task was done"

    def kill(self) -> None:
        """Kill the process and all its children, and wait for its end."""
        number = self.process.pid
        if number is not None:
            # Kill the process first, so that it starts no further children, then its group.
            self.process.kill()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(number, signal.SIGKILL)
            self.process.join()
            self.process.close()
        self.connection.close()
        self._lifeline.close()


class Pool:
    """Idle processes with one pickled function; ``processes`` is the maximum at once."""

    def __init__(self, function: bytes, processes: int) -> None:
        self._function = function
        self.processes = processes
        self._idle: list[PoolWorker] = []
        # At exit, multiprocessing joins its children, which wait for this process: a deadlock.
        weakref.finalize(self, _kill_all, self._idle)

    def close(self) -> None:
        """End all processes."""
        _kill_all(self._idle)

    def prepare(self, count: int) -> None:
        """Make a number of idle processes ready, so that their tasks can start together."""
        fresh = [PoolWorker(self._function) for _ in range(count - len(self._idle))]
        self._idle.extend(fresh)
        try:
            for worker in self._idle:
                worker.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def acquire(self) -> PoolWorker:
        """Take an idle process from the pool; start one if there is none."""
        if not self._idle:
            self.prepare(1)
        return self._idle.pop()

    def release(self, worker: PoolWorker) -> None:
        """Return a process to the pool after its task."""
        self._idle.append(worker)


def _kill_all(workers: list[PoolWorker]) -> None:
    while workers:
        workers.pop().kill()
