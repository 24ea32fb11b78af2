"""The offline optimum as a policy: it solves once, then commits each job when it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
    ends_of,
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
OVER: Final = Refusal(Reason.TOO_LATE, "its plan fell short, and the timespan is over")
SHORT: Final = Refusal(
    Reason.NO_ROOM,
    "its plan fell short, and what remains of it is not worth the jobs that would have to give way",
)
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

    capabilities: Capabilities = Capabilities(plans_ahead=True, elastic=True, foresees=True)

    def __init__(self, context: PolicyContext, parameters: OptimumParameters) -> None:
        self._parameters = parameters
        # Problem (1) knows no copies; the engine refuses bags of tasks.
        self._jobs = {job.name: job for job in context.known_jobs or () if job.bag is None}
        self._until = context.until
        self._window = context.cluster.horizon
        self._plans: dict[str, Schedule | None] = {}
        self._answered: set[str] = set()
        self.solution: Solution | None = None
        if self._jobs:
            jobs = list(self._jobs.values())
            ends = ends_of(context.cluster, jobs, context.until)
            spans = [max(0, end - job.arrival) for job, end in zip(jobs, ends, strict=True)]
            self._check_size(sum(spans))
            self._window = max(self._window, *spans)
            problem = whole_problem(context.cluster, jobs, context.until)
            self.solution = self._solve(problem)
        # Among slots that are worth the same, a plan may take any.
        self.capabilities = replace(self.capabilities, window=self._window, patience=self._window)

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
                    yield self._answer(job, REFUSED)
            case JobsDisplaced(_, names, server):
                given_up = LOST if server is not None else SHORT
                yield from self._plan_again(
                    view, names, OVER if view.end <= view.slot else given_up
                )
            case ServerLost() | ServerBack() | JobCancelled() | CapacityChanged() | JobRevised():
                # Less room, or more, than was planned for: plan those who are to come anew.
                yield from self._plan_again(view, (), LOST)

    def _answer(self, job: Job, otherwise: Refusal) -> Decision:
        plan = self._plans.get(job.name)
        if plan is not None:
            worth = utility_value(job.utility, plan.completion - job.arrival)
            return Commit(job.name, plan, payoff=worth, utility=worth, cost=0.0)
        if otherwise is not REFUSED:
            return Drop(job.name, otherwise)
        late = self._until is not None and job.arrival + job.shortest_slots > self._until
        return Reject(job.name, LATE if late else REFUSED)

    def _plan_again(
        self, view: View, displaced: Iterable[str], given_up: Refusal
    ) -> Iterator[Decision]:
        """Plan displaced jobs and those to come, around the plans that stand."""
        names = list(displaced)
        start = view.slot
        coming = [
            job
            for job in self._jobs.values()
            if job.arrival >= start and job.name not in self._answered
        ]
        jobs = [self._jobs[name] for name in names] + coming
        self._plans.update(dict.fromkeys((job.name for job in jobs), None))
        ends = self._ends(view, jobs)
        slots = max(ends, default=start) - start
        if slots > 0:
            window = view.ledger.capacity - view.ledger.used
            free = np.broadcast_to(view.ledger.capacity, (slots, *window.shape[1:])).copy()
            known = min(slots, len(window))
            free[:known] = window[:known]
            requests = tuple(
                request_of(job, start, end, _left(view, job.name))
                for job, end in zip(jobs, ends, strict=True)
            )
            cluster = view.cluster
            self._solve(Problem(requests, free, start, cluster.hosts_workers, cluster.hosts_ps))
        for name in names:
            answer: Decision = self._answer(self._jobs[name], given_up)
            state = view.open_jobs[name]
            if isinstance(answer, Commit) and restarts(view, state):
                done = potential(state.job, answer.schedule, None, charged=True)
                fruitless = None if done else _fruitless(view, state)
                answer = answer if fruitless is None else Drop(name, fruitless)
            yield answer

    def _ends(self, view: View, jobs: Sequence[Job]) -> list[int]:
        """Return the first slot that each job has no use for, or may not use."""
        ledger = view.ledger
        cluster = replace(view.cluster, capacity=ledger.capacity)
        taken = np.flatnonzero(ledger.used.any(axis=(1, 2)))
        begin = view.slot + (int(taken[-1]) + 1 if len(taken) else 0)
        left = [_left(view, job.name) for job in jobs]
        ends = ends_of(cluster, jobs, self._until, begin=begin, left=left)
        return [
            min(end, max(view.slot, job.arrival) + self._window)
            for job, end in zip(jobs, ends, strict=True)
        ]

    def _solve(self, problem: Problem) -> Solution:
        solution = solve(problem, time_limit=self._parameters.time_limit, gap=self._parameters.gap)
        for request, schedule in zip(problem.requests, solution.schedules, strict=True):
            self._plans[request.job.name] = schedule
        return solution

    def _check_size(self, decisions: int) -> None:
        if decisions > self._parameters.most_decisions:
            raise InputError(
                Fault(
                    "policy optimum",
                    f"{decisions} pairs of a job and a slot are too many to solve exactly",
                    "give fewer jobs or an earlier --until, or raise --set most_decisions",
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
