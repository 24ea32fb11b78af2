"""The simulated cluster: it runs what it is told to run, and knows nothing else of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shadowprice.core.events import (
    Command,
    Commit,
    Completed,
    Decided,
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
    """Whether it is not the job's first, and has not run through a slot yet."""


class Machines:
    """What runs, and what it yields, by orders alone.

    Parameters
    ----------
    execution : ExecutionModel
        How fast placed jobs run.
    seed : int
        Seed of the durations of tasks.
    """

    def __init__(self, execution: ExecutionModel, seed: int) -> None:
        self._execution = execution
        self._bags = BagExecution(seed)
        self._open: dict[str, Job] = {}
        self._promised: set[str] = set()
        self._running: dict[str, _Running] = {}

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
        for command in commands:
            match command:
                case Start(_, name):
                    again = command.generation > 1
                    self._running[name] = _Running(self._open[name], command, again)
                case Resize(_, name):
                    self._running[name] = _Running(self._open[name], command, restarts=True)
                case Stop(_, name):
                    del self._running[name]
                case Decided(_, decision):
                    match decision:
                        case Commit(name) | Place(name):
                            self._promised.add(name)
                        case Pause(name):
                            self._promised.discard(name)
                        case Reject(name) | Drop(name):
                            self.withdraw(name)
                        case _:
                            pass
                case Completed(_, name):
                    self.withdraw(name)
                case Displaced(_, name):
                    self._promised.discard(name)

    def run(self, slot: int) -> SlotEnded:
        """Run everything through a slot; return what it made."""
        gained: dict[str, int] = {}
        finished: dict[str, tuple[int, ...]] = {}
        for name, running in self._running.items():
            job, order = running.job, running.order
            if job.bag is None:
                gained[name] = self._execution.progress(
                    job, order.placement, slot, moved=running.restarts
                )
                running.restarts = False
            else:
                finished[name] = self._bags.run(job, order, slot)
                gained[name] = sum(finished[name])
        return SlotEnded(slot, gained, finished)
