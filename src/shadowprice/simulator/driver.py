"""The driver on simulated time: it sends events, models progress, and records what happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Protocol, cast

from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import (
    Command,
    Decision,
    DriverEvent,
    JobCancelled,
    JobsArrived,
    PolicyEvent,
    ServerBack,
    ServerLost,
    SlotBegan,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, Policy, QuotingPolicy, View
from shadowprice.core.quote import Quote
from shadowprice.engine import Engine
from shadowprice.engine.engine import PRIORITY
from shadowprice.kernels.stopwatch import working_time
from shadowprice.results.observer import Observer
from shadowprice.simulator.execution import ExactExecution, ExecutionModel
from shadowprice.simulator.machines import Machines

Incident = ServerLost | ServerBack | JobCancelled

_TOLD_EVERY: Final = 1024
"""Slots after which a run tells where it is, whether or not anything came."""


class RunProgress(Protocol):
    """Called now and then to tell how far a run is."""

    def __call__(self, arrived: int, jobs: int, slot: int | None = None, /) -> None:
        """Take note of jobs that arrived, of jobs in all, and of the slot."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A workload on a cluster under a policy.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    jobs : sequence of Job
        In file order; jobs of one arrival slot are considered in this order.
    policy : Policy
        Who decides.
    until : int or None
        End of the timespan T; None runs until the last job is done.
    execution : ExecutionModel
        How fast placed jobs run.
    incidents : sequence of ServerLost, ServerBack or JobCancelled
        What else happens, in any order.
    seed : int
        Seed of the durations of tasks.
    """

    cluster: Cluster
    jobs: Sequence[Job]
    policy: Policy
    until: int | None = None
    execution: ExecutionModel = field(default_factory=ExactExecution)
    incidents: Sequence[Incident] = ()
    seed: int = 0

    def run(
        self,
        observers: Sequence[Observer] = (),
        progress: RunProgress | None = None,
    ) -> Engine:
        """Run to the end.

        Parameters
        ----------
        observers : sequence of Observer
            Who looks on.
        progress : callable, optional
            Called with (jobs arrived, jobs in all, slot) now and then.

        Returns
        -------
        Engine
            The engine in its final state, without the jobs that an observer keeps.
        """
        policy = _Timed(self.policy, observers) if observers else self.policy
        tell = progress or _tell_nobody
        # An event that fails is the end of a simulation: nobody asks the policy again.
        engine = Engine(self.cluster, policy, until=self.until, keeps_memory=False)
        wakes, patience = self.policy.capabilities.wakes_every_slot, self._patience
        for observer in observers:
            observer.began(engine)
        collectors = [observer for observer in observers if observer.collects]
        awaited = self._awaited
        agenda = _agenda(self.jobs, self.incidents)
        machines = Machines(self.execution, self.seed, restart_first=self.cluster.restart_first)
        arrived = slot = still = simulated = 0
        upcoming = next(agenda, None)
        while upcoming is not None or not machines.idle or (wakes and machines.waiting):
            if machines.idle and upcoming is not None and not (wakes and machines.waiting):
                slot = max(slot, upcoming[0])
            if self.until is not None and slot >= self.until:
                break
            while upcoming is not None and upcoming[0] <= slot:
                still = 0
                for event in upcoming[1]:
                    if isinstance(event, JobsArrived):
                        arrived += len(event.jobs)
                        machines.submit(event)
                    machines.obey(_send(engine, event, observers))
                    if isinstance(event, JobCancelled):
                        machines.withdraw(event.job)
                upcoming = next(agenda, None)
                tell(arrived, len(self.jobs), slot)
            machines.obey(_send(engine, SlotBegan(slot), observers))
            for observer in observers:
                observer.slot_running(engine, slot)
            machines.obey(_send(engine, machines.run(slot), observers))
            _hand_over(engine, awaited, collectors)
            slot += 1
            simulated += 1
            if simulated % _TOLD_EVERY == 0:
                tell(arrived, len(self.jobs), slot)
            bounds.SIMULATED.check(simulated, "the run", "give --until, or make slots longer")
            # A policy may leave jobs queued for ever; a whole horizon of standstill, or as long as
            # the policy says, is the end, or skipped where something is left to come.
            still = still + 1 if machines.idle else 0
            if still > patience:
                if upcoming is None:
                    break
                slot, still = max(slot, upcoming[0]), 0
        for observer in observers:
            observer.finished(engine)
        return engine

    @property
    def _awaited(self) -> set[str]:
        """Jobs of which word may come when they are long over."""
        return {event.job for event in self.incidents if isinstance(event, JobCancelled)}

    @property
    def _patience(self) -> int:
        return self.policy.capabilities.patience or self.cluster.horizon


def _tell_nobody(arrived: int, jobs: int, slot: int | None = None, /) -> None:
    del arrived, jobs, slot


def _send(engine: Engine, event: DriverEvent, observers: Sequence[Observer]) -> list[Command]:
    for observer in observers:
        observer.coming(engine, event)
    commands = engine.handle(event)
    for observer in observers:
        observer.took(event, commands)
    return commands


def _hand_over(engine: Engine, awaited: set[str], collectors: Sequence[Observer]) -> None:
    """Let jobs that are over leave the engine."""
    gone = engine.collect(awaited) if collectors else ()
    for observer in collectors if gone else ():
        observer.left(gone)


def _agenda(
    jobs: Sequence[Job], incidents: Sequence[Incident]
) -> Iterator[tuple[int, list[DriverEvent]]]:
    """Yield, slot by slot, what comes from outside, in the engine's order."""
    events: list[DriverEvent] = list(incidents)
    by_arrival = sorted(jobs, key=lambda job: job.arrival)  # stable: file order within a slot
    for arrival, group in groupby(by_arrival, key=lambda job: job.arrival):
        events.append(JobsArrived(arrival, tuple(group)))
    events.sort(key=lambda event: (event.slot, PRIORITY[type(event)]))
    for slot, batch in groupby(events, key=lambda event: event.slot):
        yield slot, list(batch)


class _Timed:
    """A policy whose decisions are timed one by one."""

    def __init__(self, policy: Policy, observers: Sequence[Observer]) -> None:
        self._policy = policy
        self._observers = observers

    @property
    def wrapped_policy(self) -> Policy:
        return self._policy

    @property
    def capabilities(self) -> Capabilities:
        return self._policy.capabilities

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        decisions = iter(self._policy.decide(view, event))
        while True:
            began = working_time()
            decision = next(decisions, None)
            seconds = working_time() - began
            if decision is None:
                return
            for observer in self._observers:
                observer.decided(seconds)
            yield decision

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        return cast("QuotingPolicy", self._policy).quote(view, job, explained=explained)

    def parameters_in_force(self) -> Mapping[str, object]:
        return self._policy.parameters_in_force()
