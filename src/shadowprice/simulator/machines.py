"""The simulated cluster, which executes commands and knows nothing else of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from shadowprice.core import events
from shadowprice.core.job import Job
from shadowprice.simulator.bags import BagExecution
from shadowprice.simulator.execution import ExecutionModel


@dataclass(slots=True)
class _Running:
    """A running generation of a job."""

    job: Job
    order: events.Start | events.Resize
    restarts: bool  # whether its start loses time and it hasn't run for a slot yet


class SimulatedCluster:
    """Running generations and their progress, driven by commands alone.

    ``restart_first`` is as in `Cluster`, and the seed that of task durations.
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
        # Progress of a slot in order of the running jobs, and the jobs whose next slot differs.
        self._gains: dict[str, int] = {}
        self._varying: dict[str, _Running] = {}

    def copy(self) -> SimulatedCluster:
        """Return an independent copy in the same state."""
        twin = copy(self)
        twin._bags = self._bags.copy()
        twin._open, twin._promised = self._open.copy(), self._promised.copy()
        twin._running = {name: copy(running) for name, running in self._running.items()}
        twin._gains = self._gains.copy()
        # A job whose progress varies runs too: it is the same one.
        twin._varying = {name: twin._running[name] for name in self._varying}
        return twin

    @property
    def idle(self) -> bool:
        """Whether nothing runs or is about to start."""
        return not self._running and not self._promised

    @property
    def waiting(self) -> bool:
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
        self._promised.discard(name)

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
                self._promised.discard(command.job)

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
            self._promised.add(decision.job)
        elif kind is events.Pause:
            self._promised.discard(decision.job)
        elif kind is events.Reject or kind is events.Drop:
            self.withdraw(decision.job)
