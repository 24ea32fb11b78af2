"""The pool of worker processes that runs bags of tasks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from shadowprice.training.bag import nursery
from shadowprice.training.bag.attempt import READY, serve
from shadowprice.training.bag.commits import Commits
from shadowprice.training.bag.copies import Planner, StatedCopies
from shadowprice.training.bag.outcome import Outcome, Progress
from shadowprice.training.bag.running import Run
from shadowprice.training.errors import TrainingError

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

MAX_PROCESSES: Final = 4096
"""Maximum number of processes at once; each takes four file descriptors."""

_READY_TIMEOUT_SECONDS: Final = 60.0
"""Timeout of a new process, which first imports the function."""


class Worker:
    """A process that runs copies of tasks one after the other, with one pickled function."""

    def __init__(self, function: bytes) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, child_connection = context.Pipe()
        # This pipe carries no data: the child reads end of file when this process ends.
        child_lifeline, self._lifeline = context.Pipe(duplex=False)
        self.ready = False
        self.process: ForkServerProcess = context.Process(
            target=serve,
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


class Workers:
    """A pool of processes for the tasks of a function; bags run on it one after the other.

    The processes come from a fork server that starts before any thread. So the function, its tasks
    and its results must be picklable: use a module's function, not a lambda. A script must guard
    its own code with ``if __name__ == "__main__":``. ``processes`` is the maximum at once. Raises
    `TrainingError` if it is out of range or the function can't be pickled.
    """

    def __init__(self, function: Callable[[Any], Any], processes: int) -> None:
        if not 1 <= processes <= MAX_PROCESSES:
            raise TrainingError(f"processes: expected 1 to {MAX_PROCESSES}, got {processes}")
        self._function = function
        self._pickled_function = _pickle(function, "function")
        self._processes = processes
        self._idle: list[Worker] = []
        nursery.begin(getattr(function, "__module__", None) or "__main__")
        # At exit, multiprocessing joins its children, which wait for this process: a deadlock.
        weakref.finalize(self, _kill_all, self._idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        _kill_all(self._idle)

    def run(
        self,
        tasks: Iterable[Any],
        *,
        copies: int | Sequence[int] | Planner = 1,
        deadline: float | None = None,
        retries: int = 0,
        keep_going: bool = False,
        directory: str | Path | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Outcome:
        """Run the function over tasks, in copies.

        No copy outlives the call, even after an exception or Ctrl-C. Results committed to the
        directory remain, and the next run in the directory resumes from them.

        ``copies`` is the number of copies of each task at its start, or a planner that chooses it.
        ``deadline`` is in seconds from the moment when all processes are ready. A copy fails if it
        raises or its process dies. A task fails after more than ``retries`` failures, but not while
        another copy of it runs. With ``keep_going``, the other tasks continue then; see
        `Outcome.failed`. ``directory`` is for results and files of finished tasks. ``progress`` is
        called at every start and end of a copy.

        Raises `TrainingError` if an argument is invalid or the directory contains another bag, and
        `TaskFailedError` if a task failed, unless ``keep_going``. A planner may raise errors of its
        own.
        """
        task_list = list(tasks)
        if retries < 0:
            raise TrainingError(f"retries: expected 0 or more, got {retries}")
        payloads = [_pickle(task, f"tasks[{index}]") for index, task in enumerate(task_list)]
        store = None
        if directory is not None:
            store = Commits(Path(directory), self._function, payloads)
        try:
            finished = store.done() if store is not None else {}
            remaining = [task for task in range(len(task_list)) if task not in finished]
            planner = copies if isinstance(copies, Planner) else StatedCopies(copies)
            plan = planner.plan(len(task_list), remaining, self._processes, deadline)
            run = Run(
                self, plan, payloads, remaining, finished,
                retries=retries, keep_going=keep_going, store=store, progress=progress,
            )  # fmt: skip
            return run.finish()
        finally:
            if store is not None:
                store.close()

    # ------------------------------------------------------------------ for a run

    @property
    def processes(self) -> int:
        """Maximum number of processes at once."""
        return self._processes

    def prepare(self, count: int) -> None:
        """Make a number of idle processes ready, so that their tasks can start together."""
        fresh = [Worker(self._pickled_function) for _ in range(count - len(self._idle))]
        self._idle.extend(fresh)
        try:
            for worker in self._idle:
                worker.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def acquire(self) -> Worker:
        """Take an idle process from the pool; start one if there is none."""
        if not self._idle:
            self.prepare(1)
        return self._idle.pop()

    def release(self, worker: Worker) -> None:
        """Return a process to the pool after its task."""
        self._idle.append(worker)


def _kill_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().kill()


def _pickle(value: object, location: str) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise TrainingError(
            f"{location}: can't be pickled ({error}); use plain values and a module's functions"
        ) from error
