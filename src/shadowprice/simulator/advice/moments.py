"""Queries whether a changed job is admitted: at decision points of a run, or by another run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shadowprice.advice.changes import AdmissionOutcome
from shadowprice.core import events
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, Policy, View, as_quoting_policy
from shadowprice.engine import Engine
from shadowprice.engine.validation import never_fits
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.pricing.admission import PricedAdmission
from shadowprice.policies.pricing.constants import ContributionCache, use_cache
from shadowprice.results.observer import Observer
from shadowprice.simulator.advice.retracing import ArrivalReplay, DecisionCache, can_replay_arrivals
from shadowprice.simulator.driver import (
    Simulation,
    SimulationCheckpoints,
    SimulationRun,
    WrappedPolicy,
)
from shadowprice.simulator.scenario import Scenario


class _ResultKnown(BaseException):
    """Ends a run as soon as its result is known; it isn't an error."""


class DecisionPoint:
    """Point of a run at which a policy would decide on a job, after all earlier events."""

    def __init__(self, view: View, policy: Policy) -> None:
        self._view = view
        quoter = as_quoting_policy(policy)
        if quoter is None:
            raise ValueError("the policy gives no quotes")
        self._policy = quoter

    @property
    def slot(self) -> int:
        """Slot of the decision point."""
        return self._view.slot

    @property
    def end(self) -> int:
        """First slot that no plan may use."""
        return self._view.end

    def quote(self, job: Job) -> AdmissionOutcome | None:
        """Return the admission that the job would get now; None if it would be refused."""
        capabilities = self._policy.capabilities
        if job.bag is not None and not capabilities.runs_bags:
            return None
        if never_fits(job, self._view.cluster, local_free=capabilities.local_traffic_is_free):
            return None
        quote = self._policy.quote(self._view, job)
        if not quote.admitted:
            return None
        return AdmissionOutcome(quote.completion, quote.utility, quote.price)


ProbeFn = Callable[[DecisionPoint], bool]
"""Function called at a decision point. It returns whether to visit later points too."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Visits to the decision points at which a refused job could arrive."""

    position: int  # index of the job in the scenario
    slots: Sequence[int]  # slots to visit, ascending
    visit: ProbeFn
    """Function called in each slot until it returns False. In a slot, it is called after the
    decisions on jobs that precede the probe's job in the file."""


def run_probes(
    scenario: Scenario,
    policy: Policy,
    probes: Sequence[Probe],
    cache: DecisionCache | None = None,
) -> None:
    """Run a scenario, and visit the decision points of probes.

    ``policy`` is freshly built and knows all jobs. With one probe, the run lacks the probe's job.
    With several probes it has all jobs, which requires `Capabilities.forgets_refused`.
    """
    excluded = probes[0].position if len(probes) == 1 else None
    incidents: list[Any] = list(scenario.incidents)
    if excluded is not None:
        name = scenario.jobs[excluded].name
        incidents = [
            event
            for event in incidents
            if not (isinstance(event, events.JobCancelled) and event.job == name)
        ]
    visits = _ProbingPolicy(
        policy, {job.name: index for index, job in enumerate(scenario.jobs)}, probes
    )
    if not incidents and isinstance(policy, PricedAdmission) and can_replay_arrivals(scenario):
        replay = ArrivalReplay(scenario, policy, cache or DecisionCache(scenario), excluded)
        for position, decision in replay.run(
            slots={slot for probe in probes for slot in probe.slots}
        ):
            if decision is None:
                visits.visit_before(replay.view, position)
                if visits.is_finished:
                    return
        return
    # Events without jobs, so that the driver doesn't skip these slots.
    incidents += [events.JobsArrived(slot, ()) for probe in probes for slot in probe.slots]
    other_jobs = [job for index, job in enumerate(scenario.jobs) if index != excluded]
    simulation = replace(_simulation(scenario, visits, other_jobs), incidents=incidents)
    try:
        simulation.run([_SlotVisitor(visits)])
    except _ResultKnown:
        return


class _ProbingPolicy(WrappedPolicy):
    """A policy that lets probes visit their decision points between its decisions."""

    def __init__(
        self, policy: Policy, positions: Mapping[str, int], probes: Sequence[Probe]
    ) -> None:
        super().__init__(policy)
        self._positions = positions
        self._due: dict[int, list[Probe]] = {}
        for probe in sorted(probes, key=lambda probe: probe.position):
            for slot in probe.slots:
                self._due.setdefault(slot, []).append(probe)
        # Number of remaining visits of each probe; a probe that needs none is removed.
        self._remaining = {probe.position: len(probe.slots) for probe in probes}

    @property
    def is_finished(self) -> bool:
        """Whether no probe needs further visits."""
        return not self._remaining

    def decide(self, view: View, event: events.PolicyEvent) -> Iterable[events.Decision]:
        due = self._due.get(event.slot, ())
        if not isinstance(event, events.JobsArrived) or not due:
            yield from super().decide(view, event)
            return
        # The jobs stay one event, because a policy may decide on all of them at once.
        undecided = {job.name: self._positions[job.name] for job in event.jobs}
        decisions = iter(super().decide(view, event))
        for probe in due:
            while any(position < probe.position for position in undecided.values()):
                decision = next(decisions)  # every job of the event is decided
                yield decision
                undecided.pop(decision.job, None)
            self._call(probe, view)
        del self._due[event.slot]
        yield from decisions

    def visit_slot(self, view: View) -> None:
        """Visit the decision points of a slot without arriving jobs."""
        for probe in self._due.pop(view.slot, ()):
            self._call(probe, view)

    def visit_before(self, view: View, position: int) -> None:
        """Visit the decision points of a slot that precede a job of the file."""
        due = self._due.get(view.slot)
        while due and due[0].position <= position:
            self._call(due.pop(0), view)

    def _call(self, probe: Probe, view: View) -> None:
        if probe.position not in self._remaining:
            return
        self._remaining[probe.position] -= 1
        if (
            not probe.visit(DecisionPoint(view, self.wrapped_policy))
            or not self._remaining[probe.position]
        ):
            del self._remaining[probe.position]


class _SlotVisitor(Observer):
    """Visits slots without arriving jobs, and ends the run when no probe remains."""

    def __init__(self, visits: _ProbingPolicy) -> None:
        self._visits = visits

    def before_event(self, engine: Engine, event: events.DriverEvent) -> None:
        if isinstance(event, events.SlotBegan):
            self._visits.visit_slot(engine.view)
        if self._visits.is_finished:
            raise _ResultKnown


class Rerun:
    """Repeated runs of a scenario with a changed job, up to its final decision.

    ``arrivals`` is the number of jobs that arrived in all runs so far, a measure of cost.
    ``repeated_arrivals`` is the number of jobs before the changed one, which arrive in every run; 0
    if they are simulated only once. ``price_refusal`` is the utility and the price of the job if it
    was last refused for its price, else None.
    """

    def __init__(
        self,
        scenario: Scenario,
        choice: PolicyChoice,
        position: int,
        cache: DecisionCache | None = None,
    ) -> None:
        self._scenario = scenario
        self._choice = choice
        self._position = position
        # Other jobs' contributions to the price constants don't change, and are computed once.
        self._cache = cache or DecisionCache(scenario)
        self._others = ContributionCache(position, self._cache.contributions)
        self._others_only: SimulationCheckpoints | None = None
        job = scenario.jobs[position].name
        self._cancellations = [
            event
            for event in scenario.incidents
            if isinstance(event, events.JobCancelled) and event.job == job
        ]
        self.arrivals = 0
        self.repeated_arrivals = position
        self.price_refusal: tuple[float, float] | None = None

    def policy(self, job: Job) -> Policy | None:
        """Return a policy that knows the changed job set; None if it can't be built from it."""
        try:
            with use_cache(self._others):
                return self._choice.build(self._with(job).context(explained=False))
        except InputError:
            return None

    def quote(self, job: Job, policy: Policy | None = None) -> AdmissionOutcome | None:
        """Return the admission of the changed job in another run; None if it is refused."""
        self.price_refusal = None
        if policy is None:
            policy = self.policy(job)
        if policy is None or any(event.slot <= job.arrival for event in self._cancellations):
            return None  # no valid file cancels a job before its arrival
        scenario = self._with(job)
        if (
            not scenario.incidents
            and isinstance(policy, PricedAdmission)
            and can_replay_arrivals(scenario)
        ):
            return self._replay_arrivals(scenario, policy)
        outcome = _DecisionObserver(
            job.name, policy.capabilities, has_incidents=bool(scenario.incidents)
        )
        simulation = _simulation(scenario, policy, scenario.jobs)
        try:
            if policy.capabilities.foresees:
                simulation.run([outcome])
            else:
                self.repeated_arrivals = 0
                self._before(job.arrival, policy).fork(simulation, [outcome]).run()
        except _ResultKnown:
            pass
        except ShadowpriceError:
            return None
        self.arrivals += outcome.arrivals
        self.price_refusal = outcome.price_refusal
        return outcome.admission

    def _before(self, slot: int, policy: Policy) -> SimulationRun:
        """Return the run up to a slot in which the changed job may arrive, so without the job."""
        scenario, cache = self._scenario, self._cache
        job = scenario.jobs[self._position]
        if cache.checkpoints is None:
            original = _simulation(scenario, policy, scenario.jobs)
            cache.checkpoints = SimulationCheckpoints(original)
        if slot == job.arrival:
            return cache.checkpoints.before(slot)
        if self._others_only is None:
            # A run without the job has no cancellations of it.
            incidents = [event for event in scenario.incidents if event not in self._cancellations]
            other_jobs = [other for other in scenario.jobs if other is not job]
            others = _simulation(replace(scenario, incidents=incidents), policy, other_jobs)
            self._others_only = SimulationCheckpoints(others, cache.checkpoints.before(job.arrival))
        return self._others_only.before(slot)

    def _replay_arrivals(
        self, scenario: Scenario, policy: PricedAdmission
    ) -> AdmissionOutcome | None:
        """Return the admission of the changed job in a replay of arrivals; None if refused."""
        replay = ArrivalReplay(scenario, policy, self._cache, self._position)
        for position, decision in replay.run(scenario.jobs[self._position]):
            if decision is None:
                continue
            self.arrivals += 1
            if position != self._position:
                continue
            if isinstance(decision, events.Commit):
                completion = decision.schedule.completion
                return AdmissionOutcome(completion, decision.utility, decision.cost)
            if isinstance(decision, events.Reject):
                refusal = decision.refusal
                if refusal.value is not None and refusal.cost is not None:
                    self.price_refusal = refusal.value, refusal.cost
            break
        return None

    def _with(self, job: Job) -> Scenario:
        jobs = list(self._scenario.jobs)
        jobs[self._position] = job
        return replace(self._scenario, jobs=jobs)


class _DecisionObserver(Observer):
    """Ends a run as soon as the decision on a job is final.

    A policy whose first decision isn't final may place a job on spare capacity, and abandon it
    later. Then only a promise or a completion is an admission, and a placement isn't.
    """

    def __init__(self, name: str, capabilities: Capabilities, *, has_incidents: bool) -> None:
        self._name = name
        self._final = capabilities.answers_at_once
        self._has_incidents = has_incidents
        self.admission: AdmissionOutcome | None = None
        self.price_refusal: tuple[float, float] | None = None
        self.arrivals = 0

    def on_event(self, event: events.DriverEvent, commands: Sequence[events.Command]) -> None:
        if isinstance(event, events.JobsArrived):
            self.arrivals += len(event.jobs)
        for command in commands:
            if isinstance(command, events.Completed) and command.job == self._name:
                self.admission = self.admission or AdmissionOutcome()
                raise _ResultKnown
            if isinstance(command, events.Decided) and command.decision.job == self._name:
                self._apply(command.decision)

    def _apply(self, decision: events.Decision) -> None:
        match decision:
            case events.Commit(_, schedule, _, utility, cost):
                self.admission = AdmissionOutcome(schedule.completion, utility, cost)
                raise _ResultKnown
            case events.Promise(_, int() as completion):
                self.admission = AdmissionOutcome(completion, decision.utility, decision.cost)
                if not self._has_incidents:  # nothing else withdraws a promise
                    raise _ResultKnown
            case events.Promise():
                self.admission = None
            case events.Place() | events.Queue() if self._final:
                self.admission = AdmissionOutcome()
                raise _ResultKnown
            case events.Place() if self.admission is None:
                self.admission = AdmissionOutcome()  # unless it is abandoned
            case events.Reject(_, refusal) | events.Drop(_, refusal):
                self.admission = None
                if refusal.value is not None and refusal.cost is not None:
                    self.price_refusal = refusal.value, refusal.cost
                raise _ResultKnown


def _simulation(scenario: Scenario, policy: Policy, jobs: Sequence[Job]) -> Simulation:
    return replace(scenario.simulation(policy), jobs=jobs, relative_values=False)
