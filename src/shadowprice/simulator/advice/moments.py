"""Asking again: at the moment of a job's arrival, or by running everything again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.events import (
    Command,
    Commit,
    Completed,
    Decided,
    Decision,
    DriverEvent,
    Drop,
    JobCancelled,
    JobsArrived,
    Place,
    PolicyEvent,
    Promise,
    Queue,
    Reject,
    SlotBegan,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, Policy, View, quoting
from shadowprice.engine import Engine
from shadowprice.engine.validation import never_fits
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.pricing.admission import PricedAdmission
from shadowprice.policies.pricing.measures import Remembered, remembered
from shadowprice.results.observer import Observer
from shadowprice.simulator.advice.pauses import Pauses
from shadowprice.simulator.advice.retracing import Known, Retracing, can_retrace
from shadowprice.simulator.driver import Course, Incident, Simulation
from shadowprice.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Admission:
    """What an admitted job would be promised."""

    completion: int | None = None
    """Slot in which it would complete, where that is promised."""
    utility: float | None = None
    """What that is worth, and what is asked for it."""
    price: float | None = None
    """What that is worth, and what is asked for it."""


Ask = Callable[[Job], Admission | None]
"""What would become of a job: None where it would be refused."""


class _Enough(BaseException):
    """Ends a run that has told what it was to tell; no error, so nobody mends it."""


class Moment:
    """The moment at which a job would be considered in a slot: what comes before it has happened.

    Parameters
    ----------
    view : View
        The state.
    policy : Policy
        Who would decide.
    """

    def __init__(self, view: View, policy: Policy) -> None:
        self._view = view
        asked = quoting(policy)
        if asked is None:
            raise ValueError("a policy that answers no questions is asked")
        self._policy = asked

    @property
    def slot(self) -> int:
        """The slot."""
        return self._view.slot

    @property
    def end(self) -> int:
        """First slot that no plan may use."""
        return self._view.end

    def ask(self, job: Job) -> Admission | None:
        """Return what the job would be promised if it came next, None if it would be refused."""
        can = self._policy.capabilities
        if job.bag is not None and not can.runs_bags:
            return None
        if never_fits(job, self._view.cluster, local_free=can.local_traffic_is_free):
            return None
        quote = self._policy.quote(self._view, job)
        if not quote.admitted:
            return None
        return Admission(quote.completion, quote.utility, quote.price)


Visit = Callable[[Moment], bool]
"""Called at a moment; whether later ones are of interest, too."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who wants to ask about a job of the file at moments at which it could come."""

    position: int
    """Position of the job among the scenario's. It was refused."""
    slots: Sequence[int]
    """Slots to visit, ascending."""
    visit: Visit
    """Called in each of them, after the jobs of the slot that stand before it in the file, until it
    returns False."""


def visit_moments(
    scenario: Scenario, policy: Policy, visitors: Sequence[Visitor], known: Known | None = None
) -> None:
    """Run a scenario, and visit the moments at which refused jobs of it could come.

    Parameters
    ----------
    scenario : Scenario
        What was run.
    policy : Policy
        Freshly built, knowing all jobs.
    visitors : sequence of Visitor
        A single one meets a run without its job. Several meet the run with all of theirs, which is
        for a policy on which refused jobs leave no trace (`Capabilities.forgets_refused`).
    known : Known, optional
        What was decided in other runs of the scenario.
    """
    alone = visitors[0].position if len(visitors) == 1 else None
    incidents: list[Any] = list(scenario.incidents)
    if alone is not None:
        name = scenario.jobs[alone].name
        incidents = [e for e in incidents if not (isinstance(e, JobCancelled) and e.job == name)]
    visits = _Visits(policy, {job.name: at for at, job in enumerate(scenario.jobs)}, visitors)
    if not incidents and isinstance(policy, PricedAdmission) and can_retrace(scenario):
        course = Retracing(scenario, policy, known or Known(scenario), alone)
        for position, decision in course.run(
            slots={slot for one in visitors for slot in one.slots}
        ):
            if decision is None:
                visits.pass_by(course.view, position)
                if visits.over:
                    return
        return
    # Nobody arrives with these: but the driver does not skip the slots.
    incidents += [JobsArrived(slot, ()) for one in visitors for slot in one.slots]
    others = [other for at, other in enumerate(scenario.jobs) if at != alone]
    simulation = replace(_simulation(scenario, visits, others), incidents=incidents)
    try:
        simulation.run([_Slots(visits)])
    except _Enough:
        return


class _Visits:
    """A policy that is interrupted where jobs of the file would be considered.

    Parameters
    ----------
    policy : Policy
        Who decides.
    positions : mapping of str to int
        Where each job stands in the file.
    visitors : sequence of Visitor
        Who asks.
    """

    def __init__(
        self, policy: Policy, positions: Mapping[str, int], visitors: Sequence[Visitor]
    ) -> None:
        self.policy = policy
        self._positions = positions
        self._due: dict[int, list[Visitor]] = {}
        for one in sorted(visitors, key=lambda one: one.position):
            for slot in one.slots:
                self._due.setdefault(slot, []).append(one)
        self._left = {one.position: len(one.slots) for one in visitors}

    @property
    def capabilities(self) -> Capabilities:
        return self.policy.capabilities

    @property
    def over(self) -> bool:
        """Whether nobody wants to visit anything any more."""
        return not self._left

    def parameters_in_force(self) -> Mapping[str, object]:
        return self.policy.parameters_in_force()

    def resume(self, view: View) -> None:
        self.policy.resume(view)

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        due = self._due.get(event.slot, ())
        if not isinstance(event, JobsArrived) or not due:
            yield from self.policy.decide(view, event)
            return
        # One event as ever: what a policy does about all of its jobs at once, it does.
        undecided = {job.name: self._positions[job.name] for job in event.jobs}
        decisions = iter(self.policy.decide(view, event))
        for one in due:
            while any(position < one.position for position in undecided.values()):
                decision = next(decisions)  # every job of the event is decided
                yield decision
                undecided.pop(decision.job, None)
            self._call(one, view)
        del self._due[event.slot]
        yield from decisions

    def reach(self, view: View) -> None:
        """Visit the moments of a slot in which nobody arrived."""
        for one in self._due.pop(view.slot, ()):
            self._call(one, view)

    def pass_by(self, view: View, position: int) -> None:
        """Visit the moments of a slot before a job of the file is considered."""
        due = self._due.get(view.slot)
        while due and due[0].position <= position:
            self._call(due.pop(0), view)

    def _call(self, one: Visitor, view: View) -> None:
        if one.position not in self._left:
            return
        self._left[one.position] -= 1
        if not one.visit(Moment(view, self.policy)) or not self._left[one.position]:
            del self._left[one.position]


class _Slots(Observer):
    """Reaches the slots in which nobody arrives, and ends the run when it is over."""

    def __init__(self, visits: _Visits) -> None:
        self._visits = visits

    def coming(self, engine: Engine, event: DriverEvent) -> None:
        if isinstance(event, SlotBegan):
            self._visits.reach(engine.view)
        if self._visits.over:
            raise _Enough


class Rerun:
    """Runs a scenario again with a job changed, up to where its fate is known.

    Parameters
    ----------
    scenario : Scenario
        What was run.
    choice : PolicyChoice
        Who decided.
    position : int
        Position of the job among the scenario's.
    known : Known, optional
        What was decided in other runs of the scenario.

    Attributes
    ----------
    arrivals : int
        Jobs that arrived in all runs so far: what they cost.
    head : int
        Jobs that arrive in every run before the changed one does; 0 where they are gone through
        once only.
    short : (float, float) or None
        What the job was worth at best when it was last refused for its price, and what it was to
        pay; None where it was admitted, or refused for another reason.
    """

    def __init__(
        self,
        scenario: Scenario,
        choice: PolicyChoice,
        position: int,
        known: Known | None = None,
    ) -> None:
        self._scenario = scenario
        self._choice = choice
        self._position = position
        # The other jobs are the same each time: what constants take from them is worked out once.
        self._known = known or Known(scenario)
        self._others = Remembered(position, self._known.measures)
        self._others_only: Pauses | None = None
        job = scenario.jobs[position].name
        self._cancellations = [
            event
            for event in scenario.incidents
            if isinstance(event, JobCancelled) and event.job == job
        ]
        self.arrivals = 0
        self.head = position
        self.short: tuple[float, float] | None = None

    def policy(self, job: Job) -> Policy | None:
        """Return the policy that knows the changed job set, None if it would refuse to run it."""
        try:
            with remembered(self._others):
                return self._choice.build(self._with(job).context(explained=False))
        except InputError:
            return None

    def ask(self, job: Job, policy: Policy | None = None) -> Admission | None:
        """Return what the job is promised when all is run with it, None if it is refused.

        Parameters
        ----------
        job : Job
            The changed job.
        policy : Policy, optional
            What `policy` gave for it, where that has decided nothing yet.
        """
        self.short = None
        if policy is None:
            policy = self.policy(job)
        if policy is None or any(event.slot <= job.arrival for event in self._cancellations):
            return None  # a file in which a job is cancelled before it arrives is refused
        scenario = self._with(job)
        if not scenario.incidents and isinstance(policy, PricedAdmission) and can_retrace(scenario):
            return self._retraced(scenario, policy)
        fate = _Fate(job.name, policy.capabilities, faults=bool(scenario.incidents))
        simulation = _simulation(scenario, policy, scenario.jobs)
        try:
            if policy.capabilities.foresees:
                simulation.run([fate])
            else:
                self.head = 0
                self._before(job.arrival, policy).fork(simulation, [fate]).run()
        except _Enough:
            pass
        except ShadowpriceError:
            return None
        self.arrivals += fate.arrivals
        self.short = fate.short
        return fate.admission

    def _before(self, slot: int, policy: Policy) -> Course:
        """Return the run paused before a slot in which the job comes, of which it is no part yet.

        Parameters
        ----------
        slot : int
            The slot: that of its arrival, or a later one.
        policy : Policy
            A policy that has decided nothing yet.
        """
        scenario, known = self._scenario, self._known
        job = scenario.jobs[self._position]
        if known.pauses is None:
            as_it_was = _simulation(scenario, policy, scenario.jobs)
            known.pauses = Pauses(as_it_was)
        if slot == job.arrival:
            return known.pauses.before(slot)
        if self._others_only is None:
            # What is said of the job alone comes only with it.
            own = [
                e for e in scenario.incidents if isinstance(e, JobCancelled) and e.job == job.name
            ]
            others = _simulation(
                replace(scenario, incidents=[e for e in scenario.incidents if e not in own]),
                policy,
                [other for other in scenario.jobs if other is not job],
            )
            self._others_only = Pauses(others, known.pauses.before(job.arrival))
        return self._others_only.before(slot)

    def _retraced(self, scenario: Scenario, policy: PricedAdmission) -> Admission | None:
        """Return what the changed job is promised, going through the arrivals alone."""
        course = Retracing(scenario, policy, self._known, self._position)
        for position, decision in course.run(scenario.jobs[self._position]):
            if decision is None:
                continue
            self.arrivals += 1
            if position != self._position:
                continue
            if isinstance(decision, Commit):
                completion = decision.schedule.completion
                return Admission(completion, decision.utility, decision.cost)
            if isinstance(decision, Reject):
                refusal = decision.refusal
                if refusal.value is not None and refusal.cost is not None:
                    self.short = refusal.value, refusal.cost
            break
        return None

    def _with(self, job: Job) -> Scenario:
        jobs = list(self._scenario.jobs)
        jobs[self._position] = job
        return replace(self._scenario, jobs=jobs)


class _Fate(Observer):
    """Ends a run as soon as the last word on a job's admission is spoken.

    A policy whose first word need not be its last may let a job run in what is left over, promise
    nothing, and give it up later: a place alone is no admission there, a promise is, and so is to
    complete.
    """

    def __init__(self, name: str, capabilities: Capabilities, *, faults: bool) -> None:
        self._name = name
        self._final = capabilities.answers_at_once
        self._faults = faults
        self.admission: Admission | None = None
        self.short: tuple[float, float] | None = None
        self.arrivals = 0

    def took(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        if isinstance(event, JobsArrived):
            self.arrivals += len(event.jobs)
        for command in commands:
            if isinstance(command, Completed) and command.job == self._name:
                self.admission = self.admission or Admission()
                raise _Enough
            if isinstance(command, Decided) and command.decision.job == self._name:
                self._hear(command.decision)

    def _hear(self, decision: Decision) -> None:
        match decision:
            case Commit(_, schedule, _, utility, cost):
                self.admission = Admission(schedule.completion, utility, cost)
                raise _Enough
            case Promise(_, int() as completion):
                self.admission = Admission(completion, decision.utility, decision.cost)
                if not self._faults:  # nothing else takes a promise back
                    raise _Enough
            case Promise():
                self.admission = None
            case Place() | Queue() if self._final:
                self.admission = Admission()
                raise _Enough
            case Place() if self.admission is None:
                self.admission = Admission()  # unless it is given up
            case Reject(_, refusal) | Drop(_, refusal):
                self.admission = None
                if refusal.value is not None and refusal.cost is not None:
                    self.short = refusal.value, refusal.cost
                raise _Enough


def _simulation(scenario: Scenario, policy: Policy, jobs: Sequence[Job]) -> Simulation:
    incidents: Sequence[Incident] = scenario.incidents
    return Simulation(
        cluster=scenario.cluster,
        jobs=jobs,
        policy=policy,
        until=scenario.until,
        execution=scenario.execution,
        incidents=incidents,
        seed=scenario.seed,
    )
