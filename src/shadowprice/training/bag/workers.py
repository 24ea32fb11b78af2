"""Processes that run copies, and the bags that are run on them."""

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

from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.training.bag import nursery
from shadowprice.training.bag.attempt import READY, serve
from shadowprice.training.bag.commits import Commits
from shadowprice.training.bag.outcome import Outcome, Progress
from shadowprice.training.bag.planning import LawArgument, plan_copies
from shadowprice.training.bag.running import Run

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

MOST: Final = 4096
"""Processes at once: each takes four descriptors."""

_PATIENCE: Final = 60.0
"""Seconds that a process has to import what it needs."""


class Worker:
    """One process that runs copies, one after the other.

    Parameters
    ----------
    function : bytes
        What it runs, pickled.
    """

    def __init__(self, function: bytes) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, other = context.Pipe()
        # Never written to: its end is what tells a process that this one is gone.
        held, self._lifeline = context.Pipe(duplex=False)
        self.ready = False
        self.process: ForkServerProcess = context.Process(
            target=serve, args=(other, held, function, dict(os.environ)), daemon=False
        )
        try:
            self.process.start()
        except BaseException:
            self.connection.close()
            self._lifeline.close()
            raise
        finally:
            other.close()
            held.close()

    def get_ready(self) -> None:
        """Wait until it can take a task.

        Raises
        ------
        ShadowpriceError
            If it cannot import the function, or dies before.
        """
        if self.ready:
            return
        try:
            if not self.connection.poll(_PATIENCE):
                raise ShadowpriceError(f"a process was not ready after {_PATIENCE:g} seconds")
            kind, _, text = self.connection.recv()
        except EOFError:
            raise ShadowpriceError(f"a process could not begin: it {self.death()}") from None
        if kind != READY:
            raise ShadowpriceError(f"a process could not import the function: {text}")
        self.ready = True

    def death(self) -> str:
        """Return how it died, for people."""
        self.process.join(5.0)
        code = self.process.exitcode
        if code is None:
            return "closed its pipe"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"died of {signal.Signals(-code).name}"
        return f"exited {code} before its task was done"

    def kill(self) -> None:
        """End it and all it started, and wait until it is gone."""
        number = self.process.pid
        if number is not None:
            # First itself, so that it starts nothing any more, then its group.
            self.process.kill()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(number, signal.SIGKILL)
            self.process.join()
            self.process.close()
        self.connection.close()
        self._lifeline.close()


class Workers:
    """Processes for a function's tasks; bags are run on them one after the other.

    They come from a server that is forked before any thread is, so the function, its tasks and
    results have to be picklable: a function of a module, no lambda. As with every such process, a
    script's own ``if __name__ == "__main__":`` has to guard what begins it.

    Parameters
    ----------
    function : callable
        Takes a task, returns its result; both may be anything that can be pickled.
    processes : int
        Most at once.

    Raises
    ------
    InputError
        If the function cannot be pickled, or the number is out of range.
    """

    def __init__(self, function: Callable[[Any], Any], processes: int) -> None:
        if not 1 <= processes <= MOST:
            mend = f"write a number from 1 to {MOST}"
            raise InputError(Fault("processes", f"{processes} processes", mend))
        self._function = function
        self._pickled = _pickled(function, "function")
        self._processes = processes
        self._idle: list[Worker] = []
        nursery.begin(getattr(function, "__module__", None) or "__main__")
        # A program that ends would wait for processes that wait for it.
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
        law: LawArgument = None,
        deadline: float | None = None,
        miss_probability: float = 0.05,
        copies: int | Sequence[int] | None = None,
        retries: int = 0,
        keep_going: bool = False,
        directory: str | Path | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Outcome:
        """Run the function over tasks, in copies.

        Whatever ends it, an exception or Ctrl-C included, no copy is left running; what was
        committed to the directory stays, and another run there goes on from it.

        Parameters
        ----------
        tasks : iterable
            The tasks.
        law, deadline, miss_probability, copies
            What copies are planned by; see `plan_copies`. Time begins when all processes are ready.
        retries : int
            Failures that each task is allowed; a copy that raises, or whose process dies, has
            failed. While another copy of the task runs, one failure more does not end it.
        keep_going : bool
            Whether the other tasks go on when one has failed; see `Outcome.failed`.
        directory : path, optional
            Where results and files of finished tasks are kept.
        progress : callable, optional
            Told of every start and end.

        Raises
        ------
        InputError
            If an argument is wrong, no copies keep the deadline, or the directory holds another
            bag.
        TaskFailedError
            If a task failed more often than it may, unless ``keep_going``.
        """
        listed = list(tasks)
        if retries < 0:
            raise InputError(Fault("retries", f"{retries} retries", "write 0 or more"))
        payloads = [_pickled(task, f"tasks[{at}]") for at, task in enumerate(listed)]
        store = None
        if directory is not None:
            store = Commits(Path(directory), self._function, payloads)
        try:
            known = store.done() if store is not None else {}
            left = [task for task in range(len(listed)) if task not in known]
            if isinstance(law, Sequence) and len(law) == len(listed):
                law = tuple(law[task] for task in left)
            if isinstance(copies, Sequence) and len(copies) == len(listed):
                copies = tuple(copies[task] for task in left)
            plan = plan_copies(
                len(left),
                self._processes,
                law=law,
                deadline=deadline,
                miss_probability=miss_probability,
                copies=copies,
            )
            run = Run(
                self, plan, payloads, left, known, law,
                retries=retries, keep_going=keep_going, store=store, progress=progress,
            )  # fmt: skip
            return run.finish()
        finally:
            if store is not None:
                store.close()

    # ------------------------------------------------------------------ for a run

    @property
    def processes(self) -> int:
        """Most processes at once."""
        return self._processes

    def prepare(self, count: int) -> None:
        """Have so many processes ready, so that tasks can begin at the same time."""
        fresh = [Worker(self._pickled) for _ in range(count - len(self._idle))]
        self._idle.extend(fresh)
        try:
            for worker in self._idle:
                worker.get_ready()
        except BaseException:
            self.close()
            raise

    def take(self) -> Worker:
        """Return a process that can take a task."""
        if not self._idle:
            self.prepare(1)
        return self._idle.pop()

    def give(self, worker: Worker) -> None:
        """Take back a process whose task is done."""
        self._idle.append(worker)


def _kill_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().kill()


def _pickled(value: object, place: str) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        mend = "processes are sent what can be pickled: values, and functions of a module"
        raise InputError(Fault(place, f"it cannot be pickled ({error})", mend)) from error
