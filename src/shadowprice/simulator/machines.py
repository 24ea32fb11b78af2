"""The simulated cluster. It executes the engine's commands, and reads no other engine state.

A task of a bag of tasks may run as several copies. It finishes when its first copy finishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shadowprice.core import events
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.events import Run
from shadowprice.core.job import Job
from shadowprice.distributions.empirical import build_distribution
from shadowprice.simulator.execution import ExecutionModel


@dataclass(eq=False)
class _Attempt:
    """Copies of one plan of a bag."""

    plan: int  # number of the plan among the bag's
    start: int  # slot in which all copies started
    unfinished: int  # number of unfinished tasks
    entry: Integers  # index into `Run.copies` of each task
    ends: Floats
    """Slots after the start at which each copy would finish; inf beyond a task's copies."""
    alive: Integers
    """Number of running copies of each task: its first columns of ``ends``; 0 once it finished."""


class BagExecution:
    """Draws the durations of copies, and finishes tasks.

    A copy that runs at the start of a slot occupies a worker for the slot. If a slot has fewer
    workers than running copies, the tasks with the most copies lose some first, so that no task
    loses its last copy before every task has only one. A task that lost its last copy, or hasn't
    finished when its plan ends, starts over if it is planned again. The draws of a bag depend on
    the seed, its name and the number of its plan, but on no other job.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._attempts: dict[str, _Attempt] = {}

    def copy(self) -> BagExecution:
        """Return an independent copy of the running tasks."""
        twin = BagExecution(self.seed)
        twin._attempts = {
            name: replace(attempt, alive=attempt.alive.copy())
            for name, attempt in self._attempts.items()
        }
        return twin

    def run(self, job: Job, order: Run, slot: int) -> tuple[int, ...]:
        """Run a bag for one slot by its last command.

        Returns how many tasks of each entry of ``order.copies`` finished in the slot. Tasks that
        finish after the deadline don't count.
        """
        bag = job.bag
        assert bag is not None
        attempt = self._attempts.get(job.name)
        if attempt is None or attempt.plan != order.plan:
            attempt = self._attempts[job.name] = self._begin(job, order, slot)
        _stop_redundant(attempt.alive, order.placement.total_workers)
        elapsed = slot + 1 - attempt.start
        until = min(elapsed, job.arrival + bag.deadline - attempt.start)
        columns = np.arange(attempt.ends.shape[1])
        running = columns < attempt.alive[:, None]
        first = np.where(running, attempt.ends, np.inf).min(axis=1, initial=np.inf)
        done = first <= until
        attempt.alive[done] = 0
        finished = np.bincount(attempt.entry[done], minlength=len(order.copies))
        attempt.unfinished -= int(done.sum())
        if not attempt.unfinished:
            del self._attempts[job.name]
        return tuple(finished.tolist())

    def _begin(self, job: Job, order: Run, slot: int) -> _Attempt:
        bag, copies = job.bag, order.copies
        assert bag is not None
        rng = np.random.default_rng([self.seed, order.plan, *job.name.encode()])
        max_copies = max(entry.copies for entry in copies)
        tasks = sum(entry.tasks for entry in copies)
        ends = np.full((tasks, max_copies), np.inf)
        row = 0
        for entry in copies:
            distribution = build_distribution(bag.groups[entry.group].distribution)
            # In (0, 1], where the inverse survival is finite.
            survival = 1.0 - rng.random((entry.tasks, entry.copies))
            seconds = distribution.inverse_survival(survival)
            ends[row : row + entry.tasks, : entry.copies] = seconds / bag.slot_seconds
            row += entry.tasks
        task_counts = [entry.tasks for entry in copies]
        return _Attempt(
            plan=order.plan,
            start=slot,
            unfinished=tasks,
            entry=np.repeat(np.arange(len(copies)), task_counts),
            ends=ends,
            alive=np.repeat(np.array([entry.copies for entry in copies]), task_counts),
        )


def _stop_redundant(alive: Integers, workers: int) -> None:
    """Stop copies of the tasks with the most, until no more run than there are workers."""
    excess = int(alive.sum()) - workers
    while excess > 0:
        max_copies = int(alive.max())
        candidates = np.flatnonzero(alive == max_copies)
        # One level at a time, from the last task on.
        stopped = candidates[max(len(candidates) - excess, 0) :]
        alive[stopped] -= 1
        excess -= len(stopped)


@dataclass(slots=True)
class _Running:
    job: Job
    order: events.Start | events.Resize
    restarts: bool  # whether its start loses time and it hasn't run for a slot yet


class SimulatedCluster:
    """Running generations and their progress, driven by commands alone.

    ``restart_first`` is as in `Cluster`. ``seed`` seeds the durations of tasks.
    """

    def __init__(
        self, execution: ExecutionModel, seed: int, *, restart_first: bool = False
    ) -> None:
        self._restart_first = restart_first
        self._execution = execution
        self._steady = getattr(execution, "steady", False)
        self._bags = BagExecution(seed)
        self._open: dict[str, Job] = {}
        # Jobs that the policy committed or placed, until they end, are paused or are displaced.
        self._admitted: set[str] = set()
        self._running: dict[str, _Running] = {}
        # Progress per slot of each running job, in order of their starts.
        self._gains: dict[str, int] = {}
        # Running jobs whose progress in the next slot has to be computed: it isn't in `_gains`.
        self._varying: dict[str, _Running] = {}

    def copy(self) -> SimulatedCluster:
        """Return an independent copy in the same state."""
        twin = copy(self)
        twin._bags = self._bags.copy()
        twin._open, twin._admitted = self._open.copy(), self._admitted.copy()
        twin._running = {name: copy(running) for name, running in self._running.items()}
        twin._gains = self._gains.copy()
        # Jobs in `_varying` are also in `_running`: both hold the same object.
        twin._varying = {name: twin._running[name] for name in self._varying}
        return twin

    @property
    def idle(self) -> bool:
        """Whether nothing runs or is about to start."""
        return not self._running and not self._admitted

    @property
    def has_open_jobs(self) -> bool:
        """Whether any job is open."""
        return bool(self._open)

    @property
    def steady_progress(self) -> Mapping[str, int] | None:
        """Progress of each running job in the next slots; None if it varies or nothing runs."""
        return self._gains if self._running and not self._varying else None

    def submit(self, event: events.JobsArrived) -> None:
        """Record submitted jobs."""
        self._open.update((job.name, job) for job in event.jobs)

    def withdraw(self, name: str) -> None:
        """Record that a job was cancelled."""
        self._open.pop(name, None)
        self._admitted.discard(name)

    def execute(self, commands: Iterable[events.Command]) -> None:
        """Execute commands of the engine."""
        command: Any
        for command in commands:
            # The most frequent types come first, because large simulations spend most time here.
            kind = type(command)
            if kind is events.Decided:
                self._record_decision(command.decision)
            elif kind is events.Start:
                self._begin(command, restarts=self._restart_first or command.generation > 1)
            elif kind is events.Stop:
                name = command.job
                del self._running[name], self._gains[name]
                self._varying.pop(name, None)
            elif kind is events.Completed:
                self.withdraw(command.job)
            elif kind is events.Resize:
                self._begin(command, restarts=True)
            elif kind is events.Displaced:
                self._admitted.discard(command.job)

    def run(self, slot: int) -> events.SlotEnded:
        """Run everything for a slot; return its progress."""
        gained = self._gains.copy()
        finished: dict[str, tuple[int, ...]] = {}
        settled = []
        for name, running in self._varying.items():
            job, order = running.job, running.order
            if job.bag is None:
                gained[name] = self._execution.progress(
                    job, order.placement, slot, moved=running.restarts
                )
                running.restarts = False
                if self._steady:
                    settled.append(name)
            else:
                finished[name] = self._bags.run(job, order, slot)
                gained[name] = sum(finished[name])
        for name in settled:
            del self._varying[name]
        return events.SlotEnded(slot, gained, finished)

    def _begin(self, order: events.Start | events.Resize, *, restarts: bool) -> None:
        job = self._open[order.job]
        self._running[job.name] = running = _Running(job, order, restarts)
        if self._steady and job.bag is None:
            gain = self._execution.progress(job, order.placement, order.slot)
            self._gains[job.name] = gain
            if not restarts:
                self._varying.pop(job.name, None)
                return
        else:
            self._gains[job.name] = 0  # keeps its position; its progress is computed in every slot
        self._varying[job.name] = running

    def _record_decision(self, decision: events.Decision) -> None:
        kind = type(decision)
        if kind is events.Commit or kind is events.Place:
            self._admitted.add(decision.job)
        elif kind is events.Pause:
            self._admitted.discard(decision.job)
        elif kind is events.Reject or kind is events.Drop:
            self.withdraw(decision.job)
