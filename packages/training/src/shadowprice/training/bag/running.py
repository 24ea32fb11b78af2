"""Execution of one bag: the winner of each task, killed copies, and retries."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice import jobs
from shadowprice.training.bag.attempt import CLAIM, DONE
from shadowprice.training.bag.outcome import Ending, Outcome, Progress, TaskFailedError, Try

if TYPE_CHECKING:
    from shadowprice.training.bag.commits import Commits
    from shadowprice.training.bag.copies import Plan
    from shadowprice.training.bag.workers import Worker, Workers


@dataclass(slots=True)
class _Copy:
    """A copy that runs."""

    task: int
    number: int
    worker: Worker
    started: float
    scratch: Path | None
    holds: bool = False
    """Whether it has its task's token: while it lives, no other copy runs or starts."""


class Run:
    """A bag while it runs.

    ``plan`` is for the tasks ``left``, given by index; ``known`` has the results of the other
    tasks. ``payloads`` are all tasks, pickled. The keyword arguments are as in `Workers.run`.
    """

    def __init__(
        self,
        workers: Workers,
        plan: Plan,
        payloads: Sequence[bytes],
        left: Sequence[int],
        known: Mapping[int, Any],
        *,
        retries: int,
        keep_going: bool,
        store: Commits | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._workers = workers
        self._plan = plan
        self._payloads = payloads
        self._left = tuple(left)
        self._values = dict(known)
        self._retries = retries
        self._keep_going = keep_going
        self._store = store
        self._progress = progress
        self._waiting: deque[int] = deque()
        self._running: dict[int, list[_Copy]] = {task: [] for task in left}
        self._begun = dict.fromkeys(left, 0)
        self._failures = dict.fromkeys(left, 0)
        self._failed: dict[int, TaskFailedError] = {}
        self._ends: dict[int, float] = {}
        self._tries: list[Try] = []
        self._savings = plan.savings

    def finish(self) -> Outcome:
        """Run until every task is done or abandoned; no copy runs afterwards."""
        # All first copies come before second ones, so that few processes run every task once.
        maximum = max(self._plan.copies, default=0)
        for number in range(maximum):
            planned = zip(self._left, self._plan.copies, strict=True)
            self._waiting.extend(task for task, copies in planned if number < copies)
        self._workers.prepare(min(len(self._waiting), self._workers.processes))
        self._began = time.monotonic()
        try:
            while self._waiting or any(self._running.values()):
                self._begin_copies()
                self._report_progress()
                self._take_answers()
            self._report_progress()
        finally:
            for copies in self._running.values():
                for copy in copies:
                    copy.worker.kill()
        seconds = max(self._ends.values(), default=0.0)
        return Outcome(
            self._values, self._failed, len(self._payloads), self._ends, seconds, self._plan,
            tuple(self._tries),
        )  # fmt: skip

    # ------------------------------------------------------------------ beginning

    @property
    def _busy(self) -> int:
        return sum(map(len, self._running.values()))

    def _over(self, task: int) -> bool:
        return task in self._values or task in self._failed

    def _begin_copies(self) -> None:
        while self._busy < self._workers.processes:
            task = self._next()
            if task is None:
                return
            self._begin(task)

    def _next(self) -> int | None:
        """Return the task of the next copy to start, None if there is none."""
        while self._waiting:
            task = self._waiting.popleft()
            settled = any(copy.holds for copy in self._running[task])
            if not self._over(task) and not settled:
                return task
        if self._savings is None:
            return None
        open_tasks = [
            index
            for index, task in enumerate(self._left)
            if self._running[task] and not any(copy.holds for copy in self._running[task])
        ]
        begun = [
            [copy.started for copy in self._running[self._left[position]]]
            for position in open_tasks
        ]
        index = self._savings.best(time.monotonic(), open_tasks, begun)
        return None if index is None else self._left[index]

    def _begin(self, task: int) -> None:
        number = self._begun[task]
        scratch = None if self._store is None else self._store.scratch(task, number)
        directory = None if scratch is None else str(scratch)
        while True:
            worker, started = self._workers.take(), time.monotonic()
            try:
                worker.connection.send((task, number, directory, self._payloads[task]))
            except OSError:
                worker.kill()  # it died while idle, so no task has failed
            else:
                break
        self._begun[task] += 1
        self._running[task].append(_Copy(task, number, worker, started, scratch))

    # ------------------------------------------------------------------ answers

    def _take_answers(self) -> None:
        answering: dict[Any, _Copy] = {}
        for copies in self._running.values():
            for copy in copies:
                answering[copy.worker.connection] = copy
                # A child process that it forked may hold the pipe open after it died.
                answering[copy.worker.process.sentinel] = copy
        if not answering:
            return
        timeout = None if self._savings is None else self._savings.look
        for ready in wait(list(answering), timeout):
            copy = answering[ready]
            if copy not in self._running[copy.task]:
                continue  # ended by an earlier response of this round
            try:
                if not copy.worker.connection.poll():
                    raise EOFError
                kind, timestamp, content = copy.worker.connection.recv()
            except (EOFError, OSError):
                self._fail(copy, f"its process {copy.worker.death()}")
                continue
            if kind == CLAIM:
                self._settle(copy)
                token = next(_tokens) if self._store is None else self._store.grant()
                with contextlib.suppress(OSError):  # it died meanwhile: its pipe shows it later
                    copy.worker.connection.send(token)
            elif kind == DONE:
                self._settle(copy)
                self._win(copy, timestamp, content)
            else:
                self._fail(copy, content, alive=True)

    def _settle(self, winner: _Copy) -> None:
        """Kill the other copies of a task, so that the first to claim or end has it alone."""
        for copy in tuple(self._running[winner.task]):
            if copy is not winner:
                copy.worker.kill()
                self._end(copy, time.monotonic(), Ending.CANCELLED)
        winner.holds = True

    def _win(self, copy: _Copy, at: float, content: bytes) -> None:
        try:
            value = pickle.loads(content)
        except Exception as error:  # unpickling may raise anything
            kind = type(error).__name__
            self._fail(copy, f"its result cannot be unpickled ({kind}: {error})", alive=True)
            return
        if self._store is not None and copy.scratch is not None:
            refusal = self._store.refused(copy.scratch)
            if refusal:
                self._fail(copy, refusal, alive=True)
                return
            self._store.commit(copy.task, copy.scratch, content)
        self._values[copy.task] = value
        self._ends[copy.task] = at - self._began
        self._end(copy, at, Ending.WON)
        self._workers.give(copy.worker)
        jobs.report(len(self._values))

    def _fail(self, copy: _Copy, reason: str, *, alive: bool = False) -> None:
        if alive:
            self._workers.give(copy.worker)
        else:
            copy.worker.kill()
        self._end(copy, time.monotonic(), Ending.FAILED, reason)
        task = copy.task
        self._failures[task] += 1
        if self._failures[task] <= self._retries:
            self._waiting.append(task)
        elif not self._running[task] and task not in self._waiting:
            error = TaskFailedError(task, self._failures[task], reason)
            if not self._keep_going:
                raise error
            self._failed[task] = error

    def _end(self, copy: _Copy, at: float, ending: Ending, reason: str = "") -> None:
        self._running[copy.task].remove(copy)
        if ending is not Ending.WON and self._store is not None:
            self._store.drop(copy.scratch)
        started = copy.started - self._began
        self._tries.append(Try(copy.task, copy.number, started, at - copy.started, ending, reason))

    def _report_progress(self) -> None:
        if self._progress is None:
            return
        unbegun = {task for task in self._waiting if not self._begun[task]}
        self._progress(
            Progress(
                tasks=len(self._payloads),
                done=len(self._values),
                failed=len(self._failed),
                waiting=len(unbegun),
                copies=self._busy,
                failures=sum(self._failures.values()),
                seconds=time.monotonic() - self._began,
            )
        )


_tokens = itertools.count(1)
