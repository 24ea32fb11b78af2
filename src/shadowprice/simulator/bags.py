"""How the copies of a bag's tasks run in the simulator: the first to finish wins."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.events import Run
from shadowprice.core.job import Job
from shadowprice.laws.named import law_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(eq=False)
class _Attempt:
    """The copies of one plan of a bag."""

    plan: int
    """Which of the bag's plans it is."""
    start: int
    """The slot in which all copies started."""
    left: int
    """Tasks that have not finished."""
    entry: Integers
    """Entry of the plan's copies that each task belongs to."""
    ends: Floats
    """Slots after the start at which each copy would end; inf beyond a task's copies."""
    alive: Integers
    """Copies that run, the first so many of the task's; 0 for a finished task."""


class BagExecution:
    """Draws how long copies last, and lets tasks finish.

    A copy that runs when a slot begins holds a worker for the slot. Where a slot has fewer workers
    than copies still run, copies of the tasks that have most are stopped first, so that no task
    loses its last copy before every task is down to one. A task that lost its last copy, and a task
    that has not ended when its plan does, begins anew if it is planned again.

    Parameters
    ----------
    seed : int
        Seed; what a bag draws depends on the seed, its name and the number of its plan, and on no
        other job.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._attempts: dict[str, _Attempt] = {}

    def copy(self) -> BagExecution:
        """Return the same copies of tasks at work, to run on their own from now on."""
        twin = BagExecution(self.seed)
        twin._attempts = {
            name: replace(attempt, alive=attempt.alive.copy())
            for name, attempt in self._attempts.items()
        }
        return twin

    def run(self, job: Job, order: Run, slot: int) -> tuple[int, ...]:
        """Run a bag through one slot.

        Parameters
        ----------
        job : Job
            The bag.
        order : Run
            What was ordered of it last: its workers, and the copies of the plan it follows.
        slot : int
            The slot.

        Returns
        -------
        tuple of int
            Tasks that finished in the slot and by the deadline, by entry of ``order.copies``.
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
        most = max(entry.copies for entry in copies)
        tasks = sum(entry.tasks for entry in copies)
        ends = np.full((tasks, most), np.inf)
        at = 0
        for entry in copies:
            law = law_of(bag.groups[entry.group].law)
            # In (0, 1]: a law's inverse survival is finite there.
            survival = 1.0 - rng.random((entry.tasks, entry.copies))
            seconds = law.inverse_survival(survival)
            ends[at : at + entry.tasks, : entry.copies] = seconds / bag.slot_seconds
            at += entry.tasks
        numbers = [entry.tasks for entry in copies]
        return _Attempt(
            plan=order.plan,
            start=slot,
            left=tasks,
            entry=np.repeat(np.arange(len(copies)), numbers),
            ends=ends,
            alive=np.repeat(np.array([entry.copies for entry in copies]), numbers),
        )


def _stop_redundant(alive: Integers, workers: int) -> None:
    """Stop copies until no more run than there are workers: those of tasks with most of them."""
    excess = int(alive.sum()) - workers
    while excess > 0:
        most = int(alive.max())
        widest = np.flatnonzero(alive == most)
        # From the last task on; a level at a time.
        stopped = widest[max(len(widest) - excess, 0) :]
        alive[stopped] -= 1
        excess -= len(stopped)
