"""Simulated execution of the copies of a bag's tasks: the first copy to finish counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.events import Run
from shadowprice.core.job import Job
from shadowprice.distributions.empirical import build_distribution


@dataclass(eq=False)
class _Attempt:
    """Copies of one plan of a bag."""

    plan: int  # number of the plan among the bag's
    start: int  # slot in which all copies started
    left: int  # number of unfinished tasks
    entry: Integers  # entry of the plan's copies of each task
    ends: Floats
    """Slots after the start at which each copy would finish; inf beyond a task's copies."""
    alive: Integers
    """Number of running copies, which are the task's first ones; 0 for a finished task."""


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
        """Run a bag for one slot; ``order`` is its last command, with workers and copies.

        Returns the number of tasks that finished in the slot and by the deadline, by entry of
        ``order.copies``.
        """
        bag = job.bag
        assert bag is not None
        attempt = self._attempts.get(job.name)
        if attempt is None or attempt.plan != order.plan:
            attempt = self._attempts[job.name] = self._begin(job, order, slot)
        _stop_redundant(attempt.alive, order.placement.total_workers)
        passed = slot + 1 - attempt.start
        until = min(passed, job.arrival + bag.deadline - attempt.start)
        columns = np.arange(attempt.ends.shape[1])
        running = columns < attempt.alive[:, None]
        first = np.where(running, attempt.ends, np.inf).min(axis=1, initial=np.inf)
        done = first <= until
        attempt.alive[done] = 0
        finished = np.bincount(attempt.entry[done], minlength=len(order.copies))
        attempt.left -= int(done.sum())
        if not attempt.left:
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
            left=tasks,
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
