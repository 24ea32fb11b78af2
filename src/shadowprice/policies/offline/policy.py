"""The offline optimum as a policy: it solves once, then commits each job when it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import (
    CapacityChanged,
    Commit,
    Decision,
    Drop,
    JobCancelled,
    JobRevised,
    JobsArrived,
    JobsDisplaced,
    PolicyEvent,
    Reject,
    ServerBack,
    ServerLost,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.potential import potential
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.core.schedule import Schedule
from shadowprice.core.utility import utility_value
from shadowprice.policies.offline.parameters import OptimumParameters
from shadowprice.policies.offline.problem import (
    Problem,
    Solution,
    end_of,
    request_of,
    whole_problem,
)
from shadowprice.policies.offline.solver import solve
from shadowprice.policies.pricing.restarts import restarts

REFUSED: Final = Refusal(
    Reason.NO_ROOM,
    "not in the set of jobs that together are worth most",
)
LATE: Final = Refusal(Reason.TOO_LATE, "cannot complete before the end, whatever the others do")
LOST: Final = Refusal(
    Reason.SERVER_LOST, "what remains of it is not worth the jobs that would have to give way"
)

_FRUITLESS: Final = 16
"""Slots that a job may be on its way for each that brings something, where no plan does."""


class Optimum:
    """Problem (1), solved over the whole job set.

    Parameters
    ----------
    context : PolicyContext
        The cluster, the job set, and T.
    parameters : OptimumParameters
        What was set.

    Raises
    ------
    InputError
        If the job set is too large, or holds a job that problem (1) cannot express.
    """

    capabilities: Final = Capabilities(plans_ahead=True, elastic=True, foresees=True)

    def __init__(self, context: PolicyContext, parameters: OptimumParameters) -> None:
        self._parameters = parameters
        # Problem (1) knows no copies; the engine refuses bags of tasks.
        self._jobs = {job.name: job for job in context.known_jobs or () if job.bag is None}
        self._until = context.until
        self._horizon = context.cluster.horizon
        self._plans: dict[str, Schedule | None] = {}
        self._answered: set[str] = set()
        self.solution: Solution | None = None
        if self._jobs:
            self._check_size()
            problem = whole_problem(context.cluster, list(self._jobs.values()), context.until)
            self.solution = self._solve(problem)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force, and what the solver proved."""
        values: dict[str, object] = self._parameters.model_dump()
        if self.solution is not None:
            values |= {
                "planned_utility": self.solution.utility,
                "bound": self.solution.bound,
                "proved_gap": self.solution.gap,
                "proved_optimal": self.solution.optimal,
            }
        return values

    def resume(self, view: View) -> None:
        """Take in other servers, and what was revised of the jobs that are open.

        What stands keeps standing; those who are to come are planned anew with the event that told
        of the change, before any of them arrives.
        """
        for name, state in view.open_jobs.items():
            if name in self._jobs:
                self._jobs[name] = state.job
        self._answered.update(view.open_jobs)

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        match event:
            case JobsArrived(_, jobs):
                for job in jobs:
                    self._answered.add(job.name)
                    yield self._answer(job, arrived=True)
            case JobsDisplaced(_, names):
                yield from self._plan_again(view, names)
            case ServerLost() | ServerBack() | JobCancelled() | CapacityChanged() | JobRevised():
                # Less room, or more, than was planned for: plan those who are to come anew.
                yield from self._plan_again(view, ())

    def _answer(self, job: Job, *, arrived: bool) -> Decision:
        plan = self._plans.get(job.name)
        if plan is not None:
            worth = utility_value(job.utility, plan.completion - job.arrival)
            return Commit(job.name, plan, payoff=worth, utility=worth, cost=0.0)
        if not arrived:
            return Drop(job.name, LOST)
        end = end_of(job, self._horizon, self._until)
        late = job.arrival + job.shortest_slots > end
        return Reject(job.name, LATE if late else REFUSED)

    def _plan_again(self, view: View, displaced: Iterable[str]) -> Iterator[Decision]:
        """Plan displaced jobs and those to come, around the plans that stand."""
        names = list(displaced)
        start = view.slot
        coming = [
            job
            for job in self._jobs.values()
            if job.arrival >= start and job.name not in self._answered
        ]
        jobs = [self._jobs[name] for name in names] + coming
        ends = {job.name: self._end(view, job) for job in jobs}
        slots = max(ends.values(), default=start) - start
        if slots > 0:
            window = view.ledger.capacity - view.ledger.used
            free = np.broadcast_to(view.ledger.capacity, (slots, *window.shape[1:])).copy()
            known = min(slots, len(window))
            free[:known] = window[:known]
            requests = tuple(
                request_of(job, start, ends[job.name], _left(view, job.name)) for job in jobs
            )
            cluster = view.cluster
            self._solve(Problem(requests, free, start, cluster.hosts_workers, cluster.hosts_ps))
        for name in names:
            answer: Decision = self._answer(self._jobs[name], arrived=False)
            state = view.open_jobs[name]
            if isinstance(answer, Commit) and restarts(view, state):
                done = potential(state.job, answer.schedule, None, charged=True)
                given_up = None if done else _fruitless(view, state)
                answer = answer if given_up is None else Drop(name, given_up)
            yield answer

    def _end(self, view: View, job: Job) -> int:
        if job.name in view.open_jobs:
            return view.end
        return end_of(job, self._horizon, self._until)

    def _solve(self, problem: Problem) -> Solution:
        solution = solve(problem, time_limit=self._parameters.time_limit, gap=self._parameters.gap)
        for request, schedule in zip(problem.requests, solution.schedules, strict=True):
            self._plans[request.job.name] = schedule
        return solution

    def _check_size(self) -> None:
        decisions = sum(
            max(0, end_of(job, self._horizon, self._until) - job.arrival)
            for job in self._jobs.values()
        )
        if decisions > self._parameters.most_decisions:
            raise InputError(
                Fault(
                    "policy optimum",
                    f"{decisions} pairs of a job and a slot are too many to solve exactly",
                    "give fewer jobs, an earlier --until or a shorter horizon, or raise "
                    "--set most_decisions",
                )
            )


def _left(view: View, name: str) -> int | None:
    """Return the work of an open job for which it is planned anew, a restart of it included."""
    state = view.open_jobs.get(name)
    if state is None:
        return None
    lost = state.job.gains - state.job.moved_gains
    return state.remaining + (int(lost.max()) if restarts(view, state) else 0)


def _fruitless(view: View, state: JobState) -> Refusal | None:
    """Return why a job is given up whose plan does nothing, None while it may go on."""
    since = 0 if state.started is None else view.slot - state.started
    if since <= _FRUITLESS * (1 + state.progress / int(state.job.gains.max())):
        return None
    message = f"{since} slots after its start, restarts take all that its plan would do"
    return Refusal(Reason.POLICY, message)


def build(context: PolicyContext, parameters: OptimumParameters) -> Optimum:
    """Build the policy, as the registry asks."""
    return Optimum(context, parameters)
