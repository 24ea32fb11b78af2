"""Execution of one bag: start copies, keep each task's winner, kill the others, retry."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from shadowprice import jobs
from shadowprice.training.bag.attempt import CLAIM, DONE, READY, worker_main
from shadowprice.training.bag.commits import ResultStore
from shadowprice.training.bag.copies import Plan
from shadowprice.training.bag.outcome import BagResult, CopyEnding, Progress, TaskFailedError, Try
from shadowprice.training.errors import TrainingError

_READY_TIMEOUT_SECONDS: Final = 60.0  # timeout of a new process, which first imports the function

_tokens = itertools.count(1)  # tokens of bags without a store


class PoolWorker:
    """A process that runs copies of tasks one after the other, with one pickled function."""

    def __init__(self, function: bytes) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, child_connection = context.Pipe()
        # This pipe carries no data: when this process ends, the child reads end of file and exits.
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
        """Wait until the process can take a task; raise `TrainingError` if that fails."""
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


@dataclass(slots=True)
class _Copy:
    """A running copy of a task."""

    task: int
    number: int
    worker: PoolWorker
    started: float
    scratch: Path | None
    is_planned: bool  # a copy of the plan or a retry, and not added by idle processes
    has_token: bool = False  # it claimed its task, so no other copy of the task runs or starts


@dataclass(eq=False)
class BagRun:
    """A bag while it runs. Keyword arguments are as in `Workers.run`."""

    pool: Pool
    plan: Plan
    payloads: Sequence[bytes]
    remaining: Sequence[int]
    values: dict[int, Any]  # results of the finished tasks, also of earlier runs
    retries: int
    keep_going: bool
    store: ResultStore | None
    progress: Callable[[Progress], None] | None

    def __post_init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._positions = {task: position for position, task in enumerate(self.remaining)}
        self._running: dict[int, list[_Copy]] = {}  # running copies of each task that has any
        self._running_count = 0
        self._unstarted = len(self.remaining)  # tasks of which no copy has started yet
        self._started_copies = dict.fromkeys(self.remaining, 0)
        self._failures = dict.fromkeys(self.remaining, 0)
        self._failed: dict[int, TaskFailedError] = {}
        self._ends: dict[int, float] = {}
        self._tries: list[Try] = []
        self._savings = self.plan.savings

    def finish(self) -> BagResult:
        """Run until every task is done or abandoned; no copy runs afterwards."""
        # All first copies come before second copies: few processes first run every task once.
        for number in range(max(self.plan.copies, default=0)):
            planned = zip(self.remaining, self.plan.copies, strict=True)
            for task, count in planned:
                if number < count:
                    self._waiting.append(task)
        self.pool.prepare(min(len(self._waiting), self.pool.processes))
        self._start_time = time.monotonic()  # the deadline counts from here
        try:
            while self._waiting or self._running:
                self._start_copies()
                self._report_progress()
                self._handle_responses()
            self._report_progress()
        finally:
            for copies in self._running.values():
                for copy in copies:
                    copy.worker.kill()
        seconds = max(self._ends.values(), default=0.0)
        return BagResult(
            self.values, self._failed, len(self.payloads), self._ends, seconds, self.plan,
            tuple(self._tries),
        )  # fmt: skip

    # ------------------------------------------------------------------ starting copies

    def _start_copies(self) -> None:
        while self._running_count < self.pool.processes:
            task, is_planned = self._next_waiting(), True
            if task is None:
                task, is_planned = self._next_late(), False
            if task is None:
                return
            self._start(task, is_planned=is_planned)

    def _next_waiting(self) -> int | None:
        """Take the next copy that can start from the queue; return its task, or None."""
        for _ in range(len(self._waiting)):
            task = self._waiting.popleft()
            if task in self.values or task in self._failed:
                continue
            if not any(copy.has_token for copy in self._running.get(task, ())):
                return task
            self._waiting.append(task)  # it starts if the copy with the token fails
        return None

    def _next_late(self) -> int | None:
        """Return the late task whose next copy saves most time, None if no copy saves any."""
        if self._savings is None:
            return None
        positions = sorted(  # of running tasks without a winner, in ``remaining``
            self._positions[task]
            for task, copies in self._running.items()
            if not any(copy.has_token for copy in copies)
        )
        start_times = [
            [copy.started for copy in self._running[self.remaining[position]]]
            for position in positions
        ]
        position = self._savings.best(time.monotonic(), positions, start_times)
        return None if position is None else self.remaining[position]

    def _start(self, task: int, *, is_planned: bool) -> None:
        number = self._started_copies[task]
        scratch = None if self.store is None else self.store.scratch(task, number)
        directory = None if scratch is None else str(scratch)
        while True:
            worker, started = self.pool.acquire(), time.monotonic()
            try:
                worker.connection.send((task, number, directory, self.payloads[task]))
            except OSError:
                worker.kill()  # it died while idle, so no task has failed
            else:
                break
        self._unstarted -= number == 0  # the task's first copy
        self._started_copies[task] += 1
        self._running_count += 1
        copy = _Copy(task, number, worker, started, scratch, is_planned)
        self._running.setdefault(task, []).append(copy)

    # ------------------------------------------------------------------ responses

    def _handle_responses(self) -> None:
        copy_by_handle: dict[Any, _Copy] = {}
        for copies in self._running.values():
            for copy in copies:
                copy_by_handle[copy.worker.connection] = copy
                # The sentinel, too: children of a dead process may hold its pipe open.
                copy_by_handle[copy.worker.process.sentinel] = copy
        if not copy_by_handle:
            return
        timeout = None if self._savings is None else self._savings.check_period
        for ready in wait(list(copy_by_handle), timeout):
            copy = copy_by_handle[ready]
            if copy not in self._running.get(copy.task, ()):
                continue  # ended by an earlier response of this round
            try:
                if not copy.worker.connection.poll():  # its process died without a response
                    raise EOFError
                kind, timestamp, content = copy.worker.connection.recv()
            except (EOFError, OSError):
                self._fail(copy, f"its process {copy.worker.death()}")
                continue
            if kind == CLAIM:
                self._cancel_others(copy)
                token = next(_tokens) if self.store is None else self.store.grant()
                with contextlib.suppress(OSError):  # its process died, as the next round will see
                    copy.worker.connection.send(token)
            elif kind == DONE:
                self._cancel_others(copy)
                self._record_result(copy, timestamp, content)
            else:
                self._fail(copy, content, is_alive=True)

    def _cancel_others(self, winner: _Copy) -> None:
        """Cancel a task's other copies; planned ones wait again, in case the winner fails."""
        for copy in tuple(self._running[winner.task]):
            if copy is not winner:
                copy.worker.kill()
                self._record_end(copy, time.monotonic(), CopyEnding.CANCELLED)
                if copy.is_planned:
                    self._waiting.append(copy.task)
        winner.has_token = True

    def _record_result(self, copy: _Copy, timestamp: float, content: bytes) -> None:
        try:
            value = pickle.loads(content)
        except Exception as error:  # unpickling may raise anything
            kind = type(error).__name__
            self._fail(copy, f"its result can't be unpickled ({kind}: {error})", is_alive=True)
            return
        if self.store is not None and copy.scratch is not None:
            refusal = self.store.refusal_reason(copy.scratch)
            if refusal:
                self._fail(copy, refusal, is_alive=True)
                return
            self.store.commit(copy.task, copy.scratch, content)
        self.values[copy.task] = value
        self._ends[copy.task] = timestamp - self._start_time
        self._record_end(copy, timestamp, CopyEnding.WON)
        self.pool.release(copy.worker)
        jobs.report(len(self.values))

    def _fail(self, copy: _Copy, reason: str, *, is_alive: bool = False) -> None:
        if is_alive:
            self.pool.release(copy.worker)
        else:
            copy.worker.kill()
        self._record_end(copy, time.monotonic(), CopyEnding.FAILED, reason)
        task = copy.task
        self._failures[task] += 1
        if self._failures[task] <= self.retries:
            self._waiting.append(task)
        elif task not in self._running and task not in self._waiting:  # else another copy may win
            error = TaskFailedError(task, self._failures[task], reason)
            if not self.keep_going:
                raise error
            self._failed[task] = error

    def _record_end(
        self, copy: _Copy, timestamp: float, ending: CopyEnding, reason: str = ""
    ) -> None:
        copies = self._running[copy.task]
        copies.remove(copy)
        if not copies:
            del self._running[copy.task]
        self._running_count -= 1
        if ending is not CopyEnding.WON and self.store is not None:
            self.store.drop(copy.scratch)
        started = copy.started - self._start_time
        self._tries.append(
            Try(copy.task, copy.number, started, timestamp - copy.started, ending, reason)
        )

    def _report_progress(self) -> None:
        if self.progress is None:
            return
        self.progress(
            Progress(
                tasks=len(self.payloads),
                done=len(self.values),
                failed=len(self._failed),
                waiting=self._unstarted,
                copies=self._running_count,
                failures=sum(self._failures.values()),
                seconds=time.monotonic() - self._start_time,
            )
        )
