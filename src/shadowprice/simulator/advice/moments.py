"""Asking again: at the moment of a job's arrival, or by running everything again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.events import (
    Command,
    Commit,
    Decided,
    Decision,
    DriverEvent,
    Drop,
    JobCancelled,
    JobsArrived,
    Place,
    PolicyEvent,
    Queue,
    Reject,
    SlotBegan,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, Policy, QuotingPolicy, View
from shadowprice.engine import Engine
from shadowprice.engine.validation import never_fits
from shadowprice.policies.pricing.measures import Measures, remembered
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Incident, Simulation
from shadowprice.simulator.scenario import Scenario, build_policy


@dataclass(frozen=True, slots=True)
class Admission:
    """What an admitted job would be promised.

    Parameters
    ----------
    completion : int or None
        Slot in which it would complete, where that is promised.
    utility, price : float or None
        What that is worth, and what is asked for it.
    """

    completion: int | None = None
    utility: float | None = None
    price: float | None = None


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
        self._policy = cast("QuotingPolicy", policy)

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


def visit_moments(
    scenario: Scenario, policy: Policy, position: int, slots: Sequence[int], visit: Visit
) -> None:
    """Run a scenario without one of its jobs, and visit the moments at which that job could come.

    Parameters
    ----------
    scenario : Scenario
        What was run. The job left out was refused, and so changed nothing.
    policy : Policy
        Freshly built, knowing all jobs.
    position : int
        Position of the job among the scenario's.
    slots : sequence of int
        Slots to visit, ascending.
    visit : callable
        Called in each of them, after the jobs of the slot that stand before it in the file, until
        it returns False.
    """
    job = scenario.jobs[position]
    visits = _Visits(policy, {other.name for other in scenario.jobs[:position]}, slots, visit)
    others = [other for at, other in enumerate(scenario.jobs) if at != position]
    incidents: list[Any] = [
        event
        for event in scenario.incidents
        if not (isinstance(event, JobCancelled) and event.job == job.name)
    ]
    # Nobody arrives with these: but the driver does not skip the slots.
    incidents += [JobsArrived(slot, ()) for slot in slots]
    simulation = replace(_simulation(scenario, visits, others), incidents=incidents)
    try:
        simulation.run([_Slots(visits)])
    except _Enough:
        return


class _Visits:
    """A policy that is interrupted where a job of the file would be considered.

    Parameters
    ----------
    policy : Policy
        Who decides.
    before : set of str
        Jobs that stand before it in the file.
    slots : sequence of int
        Slots in which it could come.
    visit : callable
        What to do there.
    """

    def __init__(
        self, policy: Policy, before: set[str], slots: Sequence[int], visit: Visit
    ) -> None:
        self.policy = policy
        self.before = before
        self.left = set(slots)
        self.visit = visit
        self.over = False

    @property
    def capabilities(self) -> Capabilities:
        return self.policy.capabilities

    def parameters_in_force(self) -> Mapping[str, object]:
        return self.policy.parameters_in_force()

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        if not isinstance(event, JobsArrived) or event.slot not in self.left:
            yield from self.policy.decide(view, event)
            return
        # One event as ever: what a policy does about all of its jobs at once, it does.
        earlier = {job.name for job in event.jobs} & self.before
        decisions = iter(self.policy.decide(view, event))
        while earlier:
            decision = next(decisions)  # every job of the event is decided
            yield decision
            earlier.discard(decision.job)
        self.reach(view)
        yield from decisions

    def reach(self, view: View) -> None:
        """Visit the moment, once a slot."""
        if self.over or view.slot not in self.left:
            return
        self.left.remove(view.slot)
        self.over = not self.visit(Moment(view, self.policy)) or not self.left


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
    name : str
        The policy.
    settings : mapping
        Its settings.
    position : int
        Position of the job among the scenario's.

    Attributes
    ----------
    arrivals : int
        Jobs that arrived in all runs so far: what they cost.
    """

    def __init__(
        self, scenario: Scenario, name: str, settings: Mapping[str, Any], position: int
    ) -> None:
        self._scenario = scenario
        self._name = name
        self._settings = settings
        self._position = position
        # The other jobs are the same each time: what constants take from them is worked out once.
        self._measures: Measures = {}
        self.arrivals = 0

    def policy(self, job: Job) -> Policy | None:
        """Return the policy that knows the changed job set, None if it would refuse to run it."""
        try:
            with remembered(self._measures):
                return build_policy(self._with(job), self._name, self._settings, explained=False)
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
        if policy is None:
            policy = self.policy(job)
        if policy is None:
            return None
        scenario = self._with(job)
        fate = _Fate(job.name, policy.capabilities)
        try:
            _simulation(scenario, policy, scenario.jobs).run([fate])
        except _Enough:
            pass
        except ShadowpriceError:  # such as a cancellation before the arrival
            return None
        self.arrivals += fate.arrivals
        return fate.admission

    def _with(self, job: Job) -> Scenario:
        jobs = list(self._scenario.jobs)
        jobs[self._position] = job
        return replace(self._scenario, jobs=jobs)


class _Fate(Observer):
    """Ends a run as soon as the last word on a job's admission is spoken."""

    def __init__(self, name: str, capabilities: Capabilities) -> None:
        self._name = name
        self._final = capabilities.answers_at_once
        self.admission: Admission | None = None
        self.arrivals = 0

    def took(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        if isinstance(event, JobsArrived):
            self.arrivals += len(event.jobs)
        for command in commands:
            if not isinstance(command, Decided) or command.decision.job != self._name:
                continue
            match command.decision:
                case Commit(_, schedule, _, utility, cost):
                    self.admission = Admission(schedule.completion, utility, cost)
                    raise _Enough
                case Place():
                    self.admission = Admission()
                    raise _Enough
                case Queue() if self._final:
                    self.admission = Admission()
                    raise _Enough
                case Reject() | Drop():
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
