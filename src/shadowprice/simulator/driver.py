"""The driver in simulated time: it sends events, models progress, and calls observers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Protocol

from shadowprice.core import bounds, events
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, Policy, View
from shadowprice.core.relative_values import OpenValues, RelativeValues
from shadowprice.engine import Engine
from shadowprice.engine.engine import PRIORITY
from shadowprice.engine.snapshot import clone
from shadowprice.kernels.stopwatch import working_time
from shadowprice.results.observer import Observer
from shadowprice.simulator.execution import ExactExecution, ExecutionModel
from shadowprice.simulator.lengths import HiddenLengths
from shadowprice.simulator.machines import SimulatedCluster

Incident = events.ServerLost | events.ServerBack | events.JobCancelled

_SLOTS_PER_REPORT: Final = 1024
"""Slots between two progress reports without events."""

_MAX_CHECKPOINTS: Final = 64  # number of checkpoints of one run that are kept

_FEWER_SLOTS_HINT: Final = "end the run earlier with `until`, or make slots longer"


class ProgressCallback(Protocol):
    """Callback that is called at intervals with the progress of a run."""

    def __call__(self, arrived: int, jobs: int, slot: int | None = None, /) -> None:
        """Receive the number of jobs that arrived, the number of all jobs, and the slot."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A workload on a cluster under a policy."""

    cluster: Cluster
    """The servers."""
    jobs: Sequence[Job]
    """Jobs in file order. Jobs of one arrival slot are considered in this order."""
    policy: Policy
    """The policy."""
    until: int | None = None
    """End of the timespan T; None runs until the last job is done."""
    execution: ExecutionModel = field(default_factory=ExactExecution)
    """Speed of placed jobs."""
    incidents: Sequence[Incident] = ()
    """Lost and returned servers, and cancelled jobs, in any order."""
    seed: int = 0
    """Seed of the durations of tasks."""
    at_once: bool = False
    """Whether each job is decided alone when it is submitted, as by a service. This is during the
    slot before its arrival slot, so the progress of that slot isn't known yet. Otherwise the jobs
    of an arrival slot are decided together at its start."""
    hidden_lengths: HiddenLengths | None = None
    """Lengths that the policy sees, in their initial state; None if it knows the true lengths."""
    relative_values: bool = False
    """Whether a job's value is relative to the values of its tenant's other jobs, as in a service
    with ``--values relative``. Policies then know no job in advance."""

    def run(
        self,
        observers: Sequence[Observer] = (),
        progress: ProgressCallback | None = None,
    ) -> Engine:
        """Run to the end; return the engine, without closed jobs if an observer collects these.

        ``progress`` is called with (jobs arrived, jobs in total, slot) at intervals.
        """
        run = SimulationRun(self, observers, progress)
        run.run()
        return run.engine


class SimulationRun:
    """A simulation in progress: it can stop before a slot, and be forked there.

    ``slot`` is the next slot.
    """

    def __init__(
        self,
        simulation: Simulation,
        observers: Sequence[Observer] = (),
        progress: ProgressCallback | None = None,
    ) -> None:
        cluster, policy = simulation.cluster, simulation.policy
        timed = _Timed(policy, observers) if observers else policy
        # A failed event ends a simulation, so the policy's state need not be restored.
        self.engine = Engine(cluster, timed, until=simulation.until, saves_policy_state=False)
        self.slot = 0
        self._until = simulation.until
        self._wakes = policy.capabilities.wakes_every_slot
        self._can_hold = policy.capabilities.holds or not self._wakes
        self._patience = policy.capabilities.patience or cluster.horizon
        self._machines = SimulatedCluster(
            simulation.execution, simulation.seed, restart_first=cluster.restart_first
        )
        hidden = simulation.hidden_lengths
        self._hidden_lengths = None if hidden is None else hidden.copy()
        self._values: RelativeValues | None = None
        if simulation.relative_values:
            self._set_relative_values(RelativeValues())
        self._arrived = self._idle_slots = self._simulated = 0
        self._resting = False  # whether to skip to the next event, although jobs are queued
        self._expect(simulation, observers, progress)
        for observer in observers:
            observer.on_start(self.engine)

    def _expect(
        self,
        simulation: Simulation,
        observers: Sequence[Observer],
        progress: ProgressCallback | None,
    ) -> None:
        """Set the events from the next slot on, and the observers."""
        slot = self.slot
        self._at_once = simulation.at_once
        jobs, incidents = simulation.jobs, simulation.incidents
        if slot:
            # With ``at_once``, jobs of the next slot may already have arrived.
            state = self.engine.state
            arrived = {*state.jobs, *state.departed} if self._at_once else set()
            jobs = [
                job
                for job in jobs
                if job.arrival > slot or (job.arrival == slot and job.name not in arrived)
            ]
            incidents = [event for event in incidents if event.slot >= slot]
        self._agenda = _agenda(jobs, incidents, at_once=self._at_once)
        self._upcoming = next(self._agenda, None)
        # Jobs that must stay in the engine when they are closed, because an incident names them.
        self._awaited = {event.job for event in incidents if isinstance(event, events.JobCancelled)}
        self._jobs = len(simulation.jobs)
        self._observers = observers
        # No slot may be passed if a policy decides, or hidden lengths may change, in every slot.
        self._passes_quiet_slots = (
            self._can_hold
            and self._hidden_lengths is None
            and all(observer.takes_quiet_slots for observer in observers)
        )
        self._report_progress = progress or _report_nothing

    def fork(self, simulation: Simulation, observers: Sequence[Observer] = ()) -> SimulationRun:
        """Return an independent run that continues from here; this one stays unchanged.

        ``simulation`` gives the jobs and incidents from the next slot on. The new observers receive
        no timings of decisions.
        """
        twin = copy(self)
        twin.engine = clone(self.engine)
        twin._machines = self._machines.copy()
        if self._hidden_lengths is not None:
            twin._hidden_lengths = self._hidden_lengths.copy()
        if self._values is not None:
            twin._set_relative_values(RelativeValues(self._values.finished))
        twin._expect(simulation, observers, None)
        return twin

    def _set_relative_values(self, values: RelativeValues) -> None:
        """Make the values of jobs that arrive from now on relative."""
        state = self.engine.state
        self._values = values
        self._open_values = OpenValues(state.open_jobs, state.watch_jobs())

    def run(self, to: int | None = None) -> None:
        """Continue to the end, or up to a slot in which a fork will have events."""
        engine, machines, observers = self.engine, self._machines, self._observers
        collectors = [observer for observer in observers if observer.collects]
        while self._skip_idle_slots(to):
            if self._passes_quiet_slots and self._pass_quiet_slots(to):
                continue
            slot, upcoming = self.slot, self._upcoming
            while upcoming is not None and upcoming[0] <= slot:
                self._idle_slots = 0
                for event in upcoming[1]:
                    self._handle(event)
                upcoming = self._upcoming = next(self._agenda, None)
                self._report_progress(self._arrived, self._jobs, slot)
            machines.execute(_send(engine, events.SlotBegan(slot), observers))
            for observer in observers:
                observer.on_slot(engine, slot)
            idle = machines.idle
            if self._at_once:
                self._answer_at_once(slot)
            ended = machines.run(slot)
            if self._hidden_lengths is not None:
                ended = self._hidden_lengths.revise(ended)
            commands = _send(engine, ended, observers)
            machines.execute(commands)
            if self._values is not None:
                _record_finished(self._values, commands, engine)
            _collect_closed_jobs(engine, self._awaited, collectors)
            self._count_slots(1)
            bounds.SIMULATED.check(self._simulated, "the run", _FEWER_SLOTS_HINT)
            # A policy may leave jobs queued forever. So after a number of idle slots, the run ends
            # or skips to the next event. A slot in which all running jobs finished isn't idle.
            self._idle_slots = self._idle_slots + 1 if idle and machines.idle else 0
            if self._idle_slots > self._patience:
                self._resting, self._idle_slots = True, 0
        if to is None:
            for observer in observers:
                observer.on_finish(engine)

    def _pass_quiet_slots(self, to: int | None) -> bool:
        """Pass slots in which jobs only make progress; return whether there were any."""
        progress = self._machines.steady_progress
        if progress is None:
            return False
        slot = self.slot
        limits = [
            bounds.SIMULATED.maximum - self._simulated,
            _SLOTS_PER_REPORT - self._simulated % _SLOTS_PER_REPORT,
        ]
        if self._upcoming is not None:
            # With ``at_once``, jobs arrive during the slot before their arrival slot.
            limits.append(self._upcoming[0] - self._at_once - slot)
        if to is not None:
            limits.append(to - slot)
        count = self.engine.pass_quiet_slots(progress, int(min(limits)))
        if not count:
            return False
        self._idle_slots = 0
        for observer in self._observers:
            observer.on_quiet_slots(self.engine, range(slot, slot + count))
        self._count_slots(count)
        return True

    def _count_slots(self, count: int) -> None:
        self.slot += count
        self._simulated += count
        if self._simulated % _SLOTS_PER_REPORT == 0:
            self._report_progress(self._arrived, self._jobs, self.slot)

    def _handle(self, event: events.DriverEvent) -> None:
        if isinstance(event, events.JobsArrived):
            self._arrived += len(event.jobs)
            self._machines.submit(event)
            if self._hidden_lengths is not None:
                event = self._hidden_lengths.describe(event)
            if self._values is not None:
                cluster = self.engine.cluster
                jobs = self._values.weigh(event.jobs, self._open_values, cluster, event.slot)
                event = events.JobsArrived(event.slot, jobs)
        self._machines.execute(_send(self.engine, event, self._observers))
        if isinstance(event, events.JobCancelled):
            self._machines.withdraw(event.job)
            if self._hidden_lengths is not None:
                self._hidden_lengths.remove(event.job)

    def _answer_at_once(self, slot: int) -> None:
        """Handle the jobs of the next slot that are submitted while this slot runs."""
        if self._upcoming is None or self._upcoming[0] != slot + 1:
            return
        later: list[events.DriverEvent] = []
        for event in self._upcoming[1]:
            if isinstance(event, events.JobsArrived) and event.jobs[0].before_arrival:
                self._handle(event)
            else:
                later.append(event)
        self._upcoming = slot + 1, later

    def _skip_idle_slots(self, to: int | None) -> bool:
        """Skip slots without events; return whether another slot must run."""
        machines, upcoming = self._machines, self._upcoming
        event_slot = (
            to if upcoming is None or (to is not None and to < upcoming[0]) else upcoming[0]
        )
        may_start_jobs = self._wakes and machines.has_open_jobs
        if self._resting or (machines.idle and not may_start_jobs):
            if event_slot is None:
                return False
            self.slot = max(self.slot, event_slot)
        if self._until is not None and self.slot >= self._until:
            return False
        if to is not None and self.slot >= to:
            return False
        self._resting = False
        return True


class SimulationCheckpoints:
    """A run with checkpoints, from which forks with a changed job continue.

    A policy that foresees nothing knows a job only from its arrival on. So all runs that differ in
    one job are equal until this job arrives. The equal part is simulated once, and each run
    continues from the checkpoint before the job's arrival slot.

    ``origin`` is a run that has reached no requested slot yet; None to begin at the start.
    """

    def __init__(self, simulation: Simulation, origin: SimulationRun | None = None) -> None:
        self._simulation = simulation
        self._slots: list[int] = []
        self._checkpoints: list[SimulationRun] = []
        self._origin = SimulationRun(simulation) if origin is None else origin

    def before(self, slot: int) -> SimulationRun:
        """Return the run in its state before a slot; only fork it, don't continue it."""
        index = bisect_right(self._slots, slot)
        if index and self._slots[index - 1] == slot:
            return self._checkpoints[index - 1]
        checkpoint = (self._checkpoints[index - 1] if index else self._origin).fork(
            self._simulation
        )
        checkpoint.run(slot)
        self._slots.insert(index, slot)
        self._checkpoints.insert(index, checkpoint)
        if len(self._slots) > _MAX_CHECKPOINTS:
            # Keep every other checkpoint; the slots in between are simulated again if needed.
            del self._slots[1::2], self._checkpoints[1::2]
        return checkpoint


def _report_nothing(arrived: int, jobs: int, slot: int | None = None, /) -> None:
    del arrived, jobs, slot


def _send(
    engine: Engine, event: events.DriverEvent, observers: Sequence[Observer]
) -> list[events.Command]:
    for observer in observers:
        observer.before_event(engine, event)
    commands = engine.handle(event)
    for observer in observers:
        observer.on_event(event, commands)
    return commands


def _record_finished(
    values: RelativeValues, commands: Sequence[events.Command], engine: Engine
) -> None:
    for command in commands:
        if isinstance(command, events.Completed):
            job = engine.jobs[command.job].job
            values.finished[job.tenant or ""] = values.sum_with(job, engine.cluster, command.slot)


def _collect_closed_jobs(engine: Engine, awaited: set[str], collectors: Sequence[Observer]) -> None:
    """Move closed jobs from the engine to the observers that collect them, if there are any."""
    closed = engine.state.collect(awaited) if collectors else ()
    for observer in collectors if closed else ():
        observer.on_jobs_closed(closed)


def _agenda(
    jobs: Sequence[Job], incidents: Sequence[Incident], *, at_once: bool = False
) -> Iterator[tuple[int, list[events.DriverEvent]]]:
    """Yield each slot with its external events, in the order in which the engine expects them."""
    agenda: list[events.DriverEvent] = list(incidents)
    by_arrival = sorted(jobs, key=lambda job: job.arrival)  # stable: file order within a slot
    groups: Iterable[tuple[Job, ...]] = ((job,) for job in by_arrival)
    if not at_once:
        groups = (tuple(group) for _, group in groupby(by_arrival, key=lambda job: job.arrival))
    agenda += [events.JobsArrived(group[0].arrival, group) for group in groups]
    agenda.sort(key=lambda event: (event.slot, PRIORITY[type(event)]))
    for slot, batch in groupby(agenda, key=lambda event: event.slot):
        yield slot, list(batch)


class WrappedPolicy:
    """A policy that delegates to another policy."""

    def __init__(self, policy: Policy) -> None:
        self.wrapped_policy = policy

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the wrapped policy."""
        return self.wrapped_policy.capabilities

    def decide(self, view: View, event: events.PolicyEvent) -> Iterable[events.Decision]:
        """Return the decisions of the wrapped policy."""
        return self.wrapped_policy.decide(view, event)

    def resume(self, view: View) -> None:
        """Resume the wrapped policy."""
        self.wrapped_policy.resume(view)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters of the wrapped policy."""
        return self.wrapped_policy.parameters_in_force()


class _Timed(WrappedPolicy):
    def __init__(self, policy: Policy, observers: Sequence[Observer]) -> None:
        super().__init__(policy)
        self._observers = observers

    def decide(self, view: View, event: events.PolicyEvent) -> Iterable[events.Decision]:
        decisions = iter(super().decide(view, event))
        while True:  # a policy decides while it is iterated, and the engine works in between
            start = working_time()
            decision = next(decisions, None)
            seconds = working_time() - start
            if decision is None:
                return
            for observer in self._observers:
                observer.on_decision(seconds)
            yield decision
