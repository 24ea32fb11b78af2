"""The offline optimum as a policy: solve once, then commit each job when it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from shadowprice.core import events
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import Commit, Decision, Drop, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.potential import planned_progress
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Schedule
from shadowprice.core.time_limit import Clock
from shadowprice.core.utility import utility_value
from shadowprice.policies.offline import OptimumParameters
from shadowprice.policies.offline.problem import (
    OfflineSolution,
    Problem,
    build_request,
    full_problem,
    utility_end_slots,
)
from shadowprice.policies.offline.solver import solve
from shadowprice.policies.placements import restarts

NOT_IN_OPTIMUM: Final = Refusal(
    RefusalReason.NO_ROOM, "not in the set of jobs with the largest total utility"
)
CANNOT_COMPLETE: Final = Refusal(
    RefusalReason.TOO_LATE, "cannot complete before the end, even on an empty cluster"
)
TIMESPAN_OVER: Final = Refusal(
    RefusalReason.TOO_LATE, "its plan fell short, and the timespan is over"
)
REMAINDER_NOT_WORTH_IT: Final = Refusal(
    RefusalReason.NO_ROOM,
    "its plan fell short, and completing it would displace jobs with more utility",
)
LOST_AND_NOT_WORTH_IT: Final = Refusal(
    RefusalReason.SERVER_LOST,
    "completing it would displace jobs with more utility",
)

_MAX_FRUITLESS_SLOTS: Final = 16
"""Slots for which a started job is kept although restarts take all progress of its plans.

It is kept that long once, and again for every slot of progress at full speed that it has made.
"""


class Optimum:
    """Problem (1), solved over all jobs in advance.

    Raises `InputError` if the job set is too large, or contains a job that problem (1) can't
    express.
    """

    capabilities: Capabilities = Capabilities(plans_ahead=True, elastic=True, foresees=True)

    def __init__(self, context: PolicyContext, parameters: OptimumParameters) -> None:
        self._parameters = parameters
        # The engine refuses bags, because problem (1) can't express copies of tasks.
        self._jobs = {job.name: job for job in context.known_jobs or () if job.bag is None}
        self._until = context.until
        self._window = context.cluster.horizon
        self._plans: dict[str, Schedule | None] = {}
        self._answered: set[str] = set()  # jobs that have arrived
        self.solution: OfflineSolution | None = None
        if self._jobs:
            jobs = list(self._jobs.values())
            ends = utility_end_slots(context.cluster, jobs, context.until)
            spans = [max(0, end - job.arrival) for job, end in zip(jobs, ends, strict=True)]
            if sum(spans) > parameters.max_decisions:
                message = f"{sum(spans)} pairs of a job and a slot are too many to solve exactly"
                hint = "give fewer jobs or an earlier --until, or raise --set max_decisions"
                raise InputError(Fault("policy optimum", message, hint))
            self._window = max(self._window, *spans)
            problem = full_problem(context.cluster, jobs, context.until)
            self.solution = self._solve(problem)
        # A plan may start late without a loss, if later slots have the same utility.
        self.capabilities = replace(self.capabilities, window=self._window, patience=self._window)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return all parameters with their values, and what the solver proved."""
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
        """Take over revisions of open jobs.

        Plans don't change here. The event of the change follows, and replans future jobs.
        """
        for name, state in view.open_jobs.items():
            if name in self._jobs:
                self._jobs[name] = state.job
        self._answered.update(view.open_jobs)

    def decide(self, view: View, event: events.PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event."""
        match event:
            case events.JobsArrived(_, jobs):
                for job in jobs:
                    self._answered.add(job.name)
                    yield self._answer(job, NOT_IN_OPTIMUM)
            case events.JobsDisplaced(_, names, server):
                given_up = LOST_AND_NOT_WORTH_IT if server is not None else REMAINDER_NOT_WORTH_IT
                yield from self._replan(
                    view, names, TIMESPAN_OVER if view.end <= view.slot else given_up
                )
            case (
                events.ServerLost()
                | events.ServerBack()
                | events.JobCancelled()
                | events.CapacityChanged()
                | events.JobRevised()
            ):
                # Future jobs were planned on other free capacity.
                yield from self._replan(view, (), LOST_AND_NOT_WORTH_IT)

    def _answer(self, job: Job, otherwise: Refusal) -> Decision:
        plan = self._plans.get(job.name)
        if plan is not None:
            utility = utility_value(job.utility, plan.completion - job.arrival)
            return Commit(job.name, plan, payoff=utility, utility=utility, cost=0.0)
        if otherwise is not NOT_IN_OPTIMUM:
            return Drop(job.name, otherwise)
        late = self._until is not None and job.arrival + job.shortest_slots > self._until
        return Reject(job.name, CANNOT_COMPLETE if late else NOT_IN_OPTIMUM)

    def _replan(
        self, view: View, displaced: Iterable[str], given_up: Refusal
    ) -> Iterator[Decision]:
        """Replan displaced and future jobs around the existing plans."""
        names = list(displaced)
        start = view.slot
        future = [
            job
            for job in self._jobs.values()
            if job.arrival >= start and job.name not in self._answered
        ]
        jobs = [self._jobs[name] for name in names] + future
        self._plans.update(dict.fromkeys((job.name for job in jobs), None))
        ends = self._ends(view, jobs)
        slots = max(ends, default=start) - start
        if slots > 0:
            window = np.maximum(view.ledger.capacity - view.ledger.used, 0)
            free = np.broadcast_to(view.ledger.capacity, (slots, *window.shape[1:])).copy()
            length = min(slots, len(window))
            free[:length] = window[:length]
            requests = tuple(
                build_request(job, start, end, _remaining_work(view, job.name))
                for job, end in zip(jobs, ends, strict=True)
            )
            cluster = view.cluster
            self._solve(Problem(requests, free, start, cluster.hosts_workers, cluster.hosts_ps))
        for name in names:
            decision: Decision = self._answer(self._jobs[name], given_up)
            state = view.open_jobs[name]
            if isinstance(decision, Commit) and restarts(view, state):
                progresses = planned_progress(state.job, decision.schedule, None, charged=True)
                fruitless = None if progresses else _refuse_fruitless(view, state)
                decision = decision if fruitless is None else Drop(name, fruitless)
            yield decision

    def _ends(self, view: View, jobs: Sequence[Job]) -> list[int]:
        """Return the slot from which each job can't use slots, or has no use for them."""
        ledger = view.ledger
        cluster = replace(view.cluster, capacity=ledger.capacity)
        reserved = np.flatnonzero(ledger.used.any(axis=(1, 2)))
        begin = view.slot + (int(reserved[-1]) + 1 if len(reserved) else 0)
        remaining = [_remaining_work(view, job.name) for job in jobs]
        ends = utility_end_slots(cluster, jobs, self._until, begin=begin, remaining=remaining)
        return [
            min(end, max(view.slot, job.arrival) + self._window)
            for job, end in zip(jobs, ends, strict=True)
        ]

    def _solve(self, problem: Problem) -> OfflineSolution:
        limits = self._parameters
        solution = solve(
            problem, time_limit=limits.time_limit, clock=Clock(limits.clock), gap=limits.gap
        )
        for request, schedule in zip(problem.requests, solution.schedules, strict=True):
            self._plans[request.job.name] = schedule
        return solution


def _remaining_work(view: View, name: str) -> int | None:
    """Return an open job's remaining work plus that of a restart, None for a future job."""
    state = view.open_jobs.get(name)
    if state is None:
        return None
    lost = state.job.gains - state.job.moved_gains
    return state.remaining + (int(lost.max()) if restarts(view, state) else 0)


def _refuse_fruitless(view: View, state: JobState) -> Refusal | None:
    """Return why a job whose plan makes no progress is dropped, None if it may continue."""
    elapsed = 0 if state.started is None else view.slot - state.started
    if elapsed <= _MAX_FRUITLESS_SLOTS * (1 + state.progress / int(state.job.gains.max())):
        return None
    message = f"{elapsed} slots after its start, restarts take all that its plan would do"
    return Refusal(RefusalReason.POLICY, message)
