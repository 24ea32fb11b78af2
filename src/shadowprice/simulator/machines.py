"""The simulated cluster: it runs what it is told to run, and knows nothing else of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

from shadowprice.core.events import (
    Command,
    Commit,
    Completed,
    Decided,
    Decision,
    Displaced,
    Drop,
    JobsArrived,
    Pause,
    Place,
    Reject,
    Resize,
    SlotEnded,
    Start,
    Stop,
)
from shadowprice.core.job import Job
from shadowprice.simulator.bags import BagExecution
from shadowprice.simulator.execution import ExecutionModel


@dataclass(slots=True)
class _Running:
    """A generation of a job at work."""

    job: Job
    order: Start | Resize
    restarts: bool
    """Whether its start loses time, and it has not run through a slot yet."""


class Machines:
    """What runs, and what it yields, by orders alone.

    Parameters
    ----------
    execution : ExecutionModel
        How fast placed jobs run.
    seed : int
        Seed of the durations of tasks.
    restart_first : bool
        Whether a job's first start loses its restart as well.
    """

    def __init__(
        self, execution: ExecutionModel, seed: int, *, restart_first: bool = False
    ) -> None:
        self._restart_first = restart_first
        self._execution = execution
        self._steady = getattr(execution, "steady", False)
        self._bags = BagExecution(seed)
        self._open: dict[str, Job] = {}
        self._promised: set[str] = set()
        self._running: dict[str, _Running] = {}
        # What a slot yields, in the order of what runs, and those whose next slot is another.
        self._gains: dict[str, int] = {}
        self._varying: dict[str, _Running] = {}

    def copy(self) -> Machines:
        """Return machines in the same state, to run on their own from now on."""
        twin = copy(self)
        twin._bags = self._bags.copy()
        twin._open, twin._promised = self._open.copy(), self._promised.copy()
        twin._running = {name: copy(running) for name, running in self._running.items()}
        twin._gains = self._gains.copy()
        # Who varies runs as well: the same one.
        twin._varying = {name: twin._running[name] for name in self._varying}
        return twin

    @property
    def idle(self) -> bool:
        """Whether nothing runs or has been promised to."""
        return not self._running and not self._promised

    @property
    def waiting(self) -> bool:
        """Whether any job is open."""
        return bool(self._open)

    def submit(self, event: JobsArrived) -> None:
        """Take note of jobs that were submitted."""
        self._open.update((job.name, job) for job in event.jobs)

    def withdraw(self, name: str) -> None:
        """Take note that a job was cancelled."""
        self._open.pop(name, None)
        self._promised.discard(name)

    def obey(self, commands: Iterable[Command]) -> None:
        """Do what the engine says."""
        command: Any
        for command in commands:
            # By type, the most frequent first: a simulation of many jobs is mostly this.
            kind = type(command)
            if kind is Decided:
                self._heed(command.decision)
            elif kind is Start:
                self._begin(command, restarts=self._restart_first or command.generation > 1)
            elif kind is Stop:
                name = command.job
                del self._running[name], self._gains[name]
                self._varying.pop(name, None)
            elif kind is Completed:
                self.withdraw(command.job)
            elif kind is Resize:
                self._begin(command, restarts=True)
            elif kind is Displaced:
                self._promised.discard(command.job)

    def run(self, slot: int) -> SlotEnded:
        """Run everything through a slot; return what it made."""
        gained = self._gains.copy()
        finished: dict[str, tuple[int, ...]] = {}
        over = []
        for name, running in self._varying.items():
            job, order = running.job, running.order
            if job.bag is None:
                gained[name] = self._execution.progress(
                    job, order.placement, slot, moved=running.restarts
                )
                running.restarts = False
                if self._steady:
                    over.append(name)
            else:
                finished[name] = self._bags.run(job, order, slot)
                gained[name] = sum(finished[name])
        for name in over:
            del self._varying[name]
        return SlotEnded(slot, gained, finished)

    def _begin(self, order: Start | Resize, *, restarts: bool) -> None:
        job = self._open[order.job]
        self._running[job.name] = running = _Running(job, order, restarts)
        if self._steady and job.bag is None:
            gain = self._execution.progress(job, order.placement, order.slot)
            self._gains[job.name] = gain
            if not restarts:
                self._varying.pop(job.name, None)
                return
        else:
            self._gains[job.name] = 0  # its place in the order; every slot tells anew
        self._varying[job.name] = running

    def _heed(self, decision: Decision) -> None:
        kind = type(decision)
        if kind is Commit or kind is Place:
            self._promised.add(decision.job)
        elif kind is Pause:
            self._promised.discard(decision.job)
        elif kind is Reject or kind is Drop:
            self.withdraw(decision.job)
