"""`rolling`: completion promises, plans revised at learnt prices, work conservation."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, Self

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.events import Decision, JobsArrived, PolicyEvent, Promise, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Refusal, RefusalReason, RevisionRefusedError
from shadowprice.core.utility import utility_value
from shadowprice.kernels.replanning import next_slot, placement
from shadowprice.kernels.replanning.next_slot import StepWeights
from shadowprice.kernels.replanning.placement import Placements
from shadowprice.kernels.replanning.timeline import Timeline, server_roles
from shadowprice.policies.reactive.base import ReactivePolicy
from shadowprice.policies.rolling import pinned_plans
from shadowprice.policies.rolling.bag_scheduler import BagScheduler
from shadowprice.policies.rolling.offers import (
    NO_CEILING,
    Offer,
    end_waiting,
    refuse_late,
    refuse_too_late,
)
from shadowprice.policies.rolling.open_jobs import OpenJobs
from shadowprice.policies.rolling.parameters import RollingParameters
from shadowprice.policies.rolling.planner import Planner, WaitingPlans
from shadowprice.policies.rolling.prices import DemandPrices, ServerPools
from shadowprice.policies.rolling.quotas import (
    HORIZONS_OWED,
    build_quotas,
    check_shares,
    tenant_rows,
)
from shadowprice.policies.rolling.state import MAX_RUNS, BagTable, PinnedPlan, State

# Without events, replan after at most 1/20 of the shortest time that a waiting job needs: a waiting
# job that runs comes closer to a promise in each slot. With 1/50, `rolling` earns as much, and
# plans twice as many slots.
_HOLD_DIVISOR: Final = 20
# Maximum number of waiting jobs with plans, the densest first; others only get spare capacity.
_MAX_PLANNED_AHEAD: Final = 256
# Share of a utility that is negligible. A promise may lose it by being later, and a joint plan must
# earn at least that much more.
_UTILITY_TOLERANCE: Final = 0.001
# Maximum number of waiting jobs that are planned jointly with promised ones. More are a rush, in
# which promised jobs should keep their slack. Such a plan is also slow.
_MAX_TOGETHER: Final = 16
# Maximum number of pinned plans that are tried for a job, besides that of the fewest workers. Each
# try replans all promised jobs.
_MAX_PINNED_OFFERS: Final = 2

_FELL_SHORT: Final = "the job made less progress than planned"
_NO_PLAN: Final = "no plan keeps the promise any more"
_REVISED: Final = "the revised job has no utility at its promised slot"
_REPLANNING: Final = (
    "promises of other jobs can't be kept at present, so the free capacity is unknown; revise the "
    "job again in the next slot"
)
_PAST_END: Final = "the timespan ends before the promised slot"

# Maximum share of a slot that a start or a move costs when steps up are ranked. A job whose start
# takes a whole slot makes progress in the next slot, which is better than an idle server.
_MAX_MOVE_LOSS: Final = 0.999


class RollingPolicy(ReactivePolicy[RollingParameters]):
    """Promises completion slots and replans within them; see ``docs/policies/rolling.md``.

    The job set of the context is ignored: prices are learnt from jobs that have arrived.

    All that changes is in one `State`. The planner makes joint plans from a state without changing
    it; only `Planner.put_in_force` replaces the plan in force. `_arrive` answers submissions, and
    `_begin` is the cycle of a slot.
    """

    capabilities: ClassVar = Capabilities(
        elastic=True,
        prices=True,
        wakes_every_slot=True,
        holds=True,
        runs_bags=True,
        quotes=True,
        answers_at_once=False,
    )

    def __init__(self, context: PolicyContext, parameters: RollingParameters) -> None:
        super().__init__(context, parameters)
        cluster, until = context.cluster, context.until
        self._quotas = quotas = build_quotas(cluster, enabled=parameters.quota)
        self._planner = Planner(cluster, quotas, parameters)
        self._bag_scheduler = BagScheduler(cluster, until, self._planner)
        servers = ServerPools(cluster)
        self._state = State(
            servers=servers,
            jobs=OpenJobs(cluster, until, quotas),
            bags=BagTable(cluster, quotas),
            demand=DemandPrices(cluster, servers, quotas, parameters),
            plan=self._planner.new_plan(),
            owed=np.zeros(len(quotas.share)),
        )

    def slot_prices(self, view: View) -> Floats:
        """Return the price of all of each server's resources in the next slot."""
        posted = self._state.demand.posted_in(range(view.slot, view.slot + 1))
        return self._state.servers.server_prices(posted[0])

    def hold(self, view: View, progress: Mapping[str, int], slots: int) -> int:
        """Return for how many of ``slots`` all jobs stay where they run, and record these slots."""
        state = self._state
        slots = min(slots, state.held_until - view.slot)
        if slots <= 0:
            return 0
        if state.held_jobs is None:
            state.held_jobs = state.jobs.running_jobs(state.plan.pinned)
        return state.jobs.record_held_slots(view, state.held_jobs, progress, slots)

    def held_prices(self, slots: range) -> Floats:
        """Return the prices of slots that were just held."""
        return self._state.servers.server_prices(self._state.demand.posted_in(slots))

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return the decision on a job if it arrived now; changes no state."""
        del explained  # a refusal always carries its reason
        trial = copy.copy(self)
        trial._state = self._state.copy()
        # The generator is not resumed after the answer, so nothing is learnt from the job.
        decision = next(each for each in trial._arrive(view, (job,)) if each.job == job.name)
        return Quote.of(decision, view.slot)

    # ---------------------------------------------------------------- other events

    def _keep_learnt_state(self, before: Self) -> None:
        self._state.demand.restore_learnt(before._state.demand)
        if self._quotas.has_shares and before._quotas.has_shares:
            owed = dict(zip(tenant_rows(before._cluster), before._state.owed, strict=True))
            rows = tenant_rows(self._cluster)
            self._state.owed = np.array([owed.get(name, 0.0) for name in rows])
            self._state.owed_slot = before._state.owed_slot

    def _restore_job(self, view: View, state: JobState, before: Self) -> None:
        if state.job.bag is not None:
            self._state.bags.restore_job(state, before._state.bags, view.slot)
        else:
            running_slot = view.slot - 1 if view.runs(state.job.name) else None
            self._state.jobs.restore_job(state, before._state.jobs, view.slot, running_slot)

    def _remove_job(self, name: str) -> None:
        state = self._state
        if name in state.bags.jobs:
            state.bags.remove(name)
        elif name in state.jobs.rows:
            state.unpin(state.jobs.remove(name))

    def _finish(self, view: View, name: str) -> None:
        del view
        row = self._state.jobs.rows.get(name)
        if row is not None:
            self._state.demand.limit_use(name, int(self._state.jobs.slots_run[row]))
        self._remove_job(name)

    def _cancel(self, name: str) -> None:
        self._state.demand.take_back(name)
        self._remove_job(name)

    def _revise_lengths(self, view: View, names: Sequence[str]) -> None:
        for name in names:
            self._state.jobs.revise_length(view.open_jobs[name].job)
        self._state.planned_slot = None
        self._state.held_until = -1

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        state = self._state
        for name in names:
            if name in state.jobs.rows:
                state.unpin(state.jobs.rows[name])
                state.jobs.clear(state.jobs.rows[name])
            state.bags.lose_plan(name, "servers were lost")

    def _lose_server(self, server: int) -> None:
        self._state.lose_server(server)

    def _restore_server(self, server: int) -> None:
        self._state.restore_server(server)

    def _settle(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        del view
        self._state.held_until = -1
        if not isinstance(event, JobsArrived):  # arrivals were planned when they were answered
            self._state.planned_slot = None
        yield from ()

    # ---------------------------------------------------------------- submission

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        """Answer jobs that arrive together, the highest utility density (`_densities`) first."""
        state, slot = self._state, view.slot
        # A slot without jobs resets what tenants are owed (`_begin`), but it may have been skipped.
        if not state.jobs.rows and not state.bags.jobs and slot > state.owed_slot + 1:
            state.owed = np.zeros_like(state.owed)
        # Pinned jobs give up the workers that they don't need. In a service (`steady`) they keep
        # these as a margin, because live jobs may be slower than stated.
        yield from self._replan(view, slot, lean=not self._parameters.steady)
        for job in jobs:
            if job.bag is None:
                state.jobs.add(job)
        state.jobs.refresh_unstoppable(view)
        self._planner.reserve(state)
        if len(jobs) > 1:
            density = self._densities(slot, jobs)
            jobs = sorted(jobs, key=lambda job: -density[job.name])
        demand = []
        for job in jobs:
            decision, is_demand = self._answer(slot, job)
            if is_demand:
                demand.append(job)
            yield decision
        for job in demand:  # learnt after the answers: a job doesn't bid against itself
            state.demand.add_arrival(job, slot)

    def _densities(self, slot: int, jobs: Sequence[Job]) -> dict[str, float]:
        state, arrays = self._state, self._state.jobs.arrays
        rows = np.array([state.jobs.rows[job.name] for job in jobs if job.bag is None], np.int64)
        weight = state.demand.weights(slot, arrays)
        training = iter(next_slot.utility_densities(arrays, rows, slot, weight)[0].tolist())
        return {
            job.name: next(training)
            if job.bag is None
            else self._bag_scheduler.density(state, slot, job)
            for job in jobs
        }

    def _answer(self, slot: int, job: Job) -> tuple[Decision, bool]:
        """Return the decision on a new job, and whether prices are learnt from it."""
        state, jobs = self._state, self._state.jobs
        answer: Promise | Refusal
        if job.bag is not None:
            state.bags.add(job)
            answer = self._bag_scheduler.answer(state, slot, job)
            is_late = False
        else:
            row = jobs.rows[job.name]
            # A predicted length may be too long, so the job could complete in any slot.
            earliest = slot if job.predicted else slot + job.min_slots_colocated - 1
            is_late = bool(jobs.arrays.last_slot[row] < earliest)
            if is_late:
                answer = refuse_late(job, earliest, ends_first=jobs.only_after_end(job, earliest))
            else:
                answer = self._promise_for(slot, row)
        if isinstance(answer, Promise):
            return answer, True
        if self._parameters.standby and not is_late and self._may_wait(slot, job, answer):
            # A refusal has a cost if the job would have a plan without other jobs. Other jobs never
            # pay, so no price is learnt from them.
            message = f"waits without a promise: {answer.message}"
            return Queue(job.name, message), answer.cost is not None
        self._remove_job(job.name)
        return Reject(job.name, answer), False

    def _may_wait(self, slot: int, job: Job, refusal: Refusal) -> bool:
        """Return whether a refused job may find a plan later."""
        if job.bag is not None:
            return self._bag_scheduler.may_wait(self._state, slot, job)
        # A job that is too late even alone on all servers doesn't get faster by waiting. With a
        # restart loss it may, because its plan counts restarts that may not happen.
        return (
            refusal.reason is not RefusalReason.TOO_LATE
            or not self._state.servers.all_up
            or job.predicted
            or job.restart > 0
            or self._quotas.has_shares  # a waiting job may use shares of other tenants
        )

    def _promise_for(self, slot: int, row: int) -> Promise | Refusal:
        """Return a promise for a new job and record its plan, or return the refusal.

        1. Try the plan with the largest payoff beside promised jobs, pinned plans and bags.
        2. If no plan with a restart in every slot is in time even alone, try one that never moves.
        3. Refuse the job if its plan alone is refused (`DemandPrices.refusal`, as in 1 and 2).
        4. Replan the other jobs, so that the job completes about as early as without them.
        5. Refuse the job.
        """
        state, jobs, planner = self._state, self._state.jobs, self._planner
        price = state.demand.costs(slot, jobs.arrays, np.array([row]))[0]
        offer = planner.offer(state, row, price)
        refusal = None if offer is None else state.demand.refusal(slot, jobs, row, offer)
        if offer is not None and refusal is None and planner.add_last_offer(state, row, offer):
            return self._promise(slot, row, offer)
        alone = planner.offer_alone(state, slot, row, price)  # the plan if no other job existed
        # A plan of levels counts a restart in every slot; a pinned plan counts at most one. So only
        # a pinned plan may be in time, even without other jobs.
        has_only_pinned_plans = alone is None and jobs.restart_loss[row] > 0.0
        if has_only_pinned_plans and self._parameters.revision:
            pinned = self._promise_pinned(slot, row, price)
            if pinned is not None:
                return pinned
            alone = planner.pinning.offer_alone(state, slot, row, price)
        if alone is None:
            job = jobs.job(row)
            share = self._quotas.scarcest(self._cluster, job)
            down = np.flatnonzero(~state.servers.up).tolist()
            unavailable = [self._cluster.names[server] for server in down]
            return refuse_too_late(
                job.name, slot, share=share, ends=jobs.until is not None, unavailable=unavailable
            )
        if refusal_alone := state.demand.refusal(slot, jobs, row, alone):
            return refusal_alone
        blocking_row: int | None = None
        can_replan = row not in state.unstoppable_plans and not has_only_pinned_plans
        if self._parameters.revision and can_replan:
            promise = self._promise_slot(slot, row, alone)
            plan = planner.plan_with(state, slot, row, promise)
            if not plan.unplanned:
                # Beside the other jobs, the plan may complete later or take other worker counts.
                planned = planner.planned_offer(state, plan, row, price)
                if planned.utility <= planned.cost:
                    return planned.refuse_below_price()
                planner.put_in_force(state, plan)
                return self._promise(slot, row, planned, promise)
            blocking_row = plan.unplanned[0]
        if offer is not None:  # if not refused: too many runs, or (rarely) full arrays
            return refusal or offer.refuse_many_changes(MAX_RUNS)
        blocking_job = None
        if blocking_row is not None and blocking_row != row:
            blocking_job = jobs.name(blocking_row)
        earliest = None if has_only_pinned_plans else planner.earliest_completion(state, row)
        return alone.refuse_no_capacity(blocking_job, earliest)

    def _promise_pinned(self, slot: int, row: int, price: Floats) -> Promise | None:
        """Return the promise of a plan that starts in the next slot and never moves.

        Such plans leave less choice to other jobs, so they are for jobs that no other plan
        completes in time. Returns None if no plan is worth its price, or if moves cost no progress.
        """
        state, jobs, planner = self._state, self._state.jobs, self._planner
        if not jobs.restart_loss[row] or row in state.plan.pinned or not self._parameters.revision:
            return None
        offers = [
            each
            for each in planner.pinning.offers(state, slot, row, price)
            if state.demand.refusal(slot, jobs, row, each[0]) is None
        ]
        tried, rest = offers[:_MAX_PINNED_OFFERS], offers[_MAX_PINNED_OFFERS:]
        if rest:  # the plan with the fewest workers fits beside other jobs most often
            tried.append(min(rest, key=lambda each: int(each[1].workers.sum())))
        offer = self._put_first_in_force(slot, row, tried)
        return None if offer is None else self._promise(slot, row, offer)

    def _pin_again(self, slot: int, row: int, promise: int) -> bool:
        """Keep a promise by a plan on other servers that never moves; return whether that works.

        A pinned plan is lost with its servers, and other plans may be too late.
        """
        state, jobs = self._state, self._state.jobs
        if not jobs.restart_loss[row] or not self._parameters.revision:
            return False
        offers = self._planner.pinning.offers(state, slot, row, np.zeros(2))
        in_time = [each for each in offers if each[0].completion <= promise]
        if self._put_first_in_force(slot, row, in_time) is None:
            return False
        jobs.promise[row] = promise
        return True

    def _put_first_in_force(
        self, slot: int, row: int, offers: list[tuple[Offer, PinnedPlan]]
    ) -> Offer | None:
        """Put the first plan in force that breaks no promise; return its offer, None if all do."""
        for offer, pinned in offers:
            plan = self._planner.plan_pinned(self._state, slot, row, pinned)
            if not plan.unplanned:
                self._planner.put_in_force(self._state, plan)
                return offer
        return None

    def _promise(self, slot: int, row: int, offer: Offer, completion: int | None = None) -> Promise:
        """Record and return the promise of a plan, by default for the slot of `_promise_slot`."""
        jobs = self._state.jobs
        if completion is None:
            completion = self._promise_slot(slot, row, offer)
        jobs.promise[row] = completion
        return offer.promise(jobs.name(row), completion)

    def _promise_slot(self, slot: int, row: int, offer: Offer) -> int:
        """Return the last slot whose utility is within `_UTILITY_TOLERANCE` of the plan's."""
        arrays = self._state.jobs.arrays
        horizon = self._cluster.horizon
        return int(
            next_slot.latest_acceptable_slot(
                arrays, row, slot, offer.completion, horizon, _UTILITY_TOLERANCE
            )
        )

    # ---------------------------------------------------------------- revisions

    def _readmit(self, view: View, job: Job) -> Iterator[Decision]:
        """Decide about the remaining work of a promised job that needs more than before.

        The job keeps its promise if all promises can still be kept. Otherwise it needs a new one,
        like a job that arrives.
        """
        state, jobs, slot = self._state, self._state.jobs, view.slot
        row = jobs.rows.get(job.name)
        if row is None or jobs.promise[row] < 0:
            return  # a waiting job pays the price at its promise
        self._refresh(view)
        self._planner.reserve(state)
        state.demand.take_back(job.name)  # a job doesn't bid against itself
        promise = int(jobs.promise[row])
        if self._replan_if_promises_hold(slot):
            offer = self._price_promise(slot, job, row, promise)
            if refusal := state.demand.refusal(slot, jobs, row, offer):
                raise RevisionRefusedError(refusal)
            planned = offer
            if state.promised()[row]:  # otherwise the current slot is expected to complete the job
                price = state.demand.costs(slot, jobs.arrays, np.array([row]))[0]
                planned = self._planner.planned_offer(state, state.plan, row, price)
            answer = replace(planned, cost=offer.cost).promise(job.name, promise)
        else:
            state.withdraw_promise(row)
            if not self._replan_if_promises_hold(slot):
                raise RevisionRefusedError(Refusal(RefusalReason.NO_ROOM, _REPLANNING))
            result = self._promise_for(slot, row)
            if isinstance(result, Refusal):
                raise RevisionRefusedError(result)
            answer = result
        yield replace(answer, message="it was revised")
        state.demand.add_arrival(job, slot)

    def _replan_if_promises_hold(self, slot: int) -> bool:
        """Put a new joint plan in force if it keeps all promises; return whether it does."""
        state = self._state
        if self._invalid_promises() or state.late_unstoppable_jobs():
            return False
        plan = self._planner.replan(state, slot)
        if plan.unplanned:
            return False
        self._planner.put_in_force(state, plan)
        return True

    def _price_promise(self, slot: int, job: Job, row: int, promise: int) -> Offer:
        """Return the offer of a job's promise, at the lowest cost of the work at current prices."""
        jobs = self._state.jobs
        prices = self._state.demand.costs(slot, jobs.arrays, np.array([row]))[0]
        levels = int(jobs.arrays.levels[row])
        processes = np.column_stack(
            (jobs.arrays.worker_counts[row, :levels], jobs.arrays.ps_counts[row, :levels])
        )
        gains = np.maximum(jobs.arrays.gains[row, :levels], 1)
        slots = -(-jobs.arrays.remaining[row] // gains)
        cost = float((slots * (processes @ prices)).min())
        done = max(promise - job.arrival, 0)
        return Offer(promise, NO_CEILING, promise, utility_value(job.utility, done), cost)

    # ---------------------------------------------------------------- the cycle of a slot

    def _begin(self, view: View) -> Iterator[Decision]:
        """Plan the slot that begins, and place its jobs."""
        state, jobs, slot = self._state, self._state.jobs, view.slot
        if not jobs.rows and not state.bags.jobs:
            state.owed = np.zeros_like(state.owed)
            return
        if jobs.until is not None and slot >= jobs.until:
            yield from self._withdraw_promises()
            return
        if self.hold(view, {}, 1):  # records that all placements stay for this slot
            return
        state.held_jobs = None

        # 1. Replan promised jobs, each with the fewest workers that keep its promise. A plan that
        #    was made for arrivals is replaced in two cases:
        #    - It estimated the progress of the previous slot, which is known now.
        #    - It is lean: pinned jobs gave up workers for arrivals, which are answered now.
        if state.is_estimate or state.is_lean:
            state.planned_slot = None
        #    Otherwise it is kept for this slot only, because its new promises have the plans of
        #    their offers, which may use more workers than promises need.
        was_planned_for_arrivals = state.planned_slot == slot
        yield from self._replan(view, slot)
        promised = state.promised()

        # 2. Abandon waiting jobs that can't complete any more while they have a utility.
        yield from self._drop_late_jobs(view)

        # 3. Abandon, start and promise bags of tasks at the learnt price.
        if state.bags.jobs:
            yield from self._bag_scheduler.drop_infeasible(state, view)
            self._bag_scheduler.start_early(state, slot)
            yield from self._bag_scheduler.promise_waiting(state, slot, at_no_cost=False)

        # 4. Plan waiting jobs in the remaining capacity, the densest first, and promise those that
        #    are worth their price.
        rows = jobs.in_order()
        density, weights = self._rank(slot, rows)
        yield from self._promise_unstoppable(slot)
        waiting = rows[jobs.promise[rows] < 0]
        if state.unstoppable_plans:
            waiting = waiting[~np.isin(waiting, list(state.unstoppable_plans))]
        waiting = waiting[np.argsort(-density[waiting], kind="stable")]
        waiting = yield from self._promise_waiting_pinned(slot, waiting)
        is_rush = len(waiting) > _MAX_PLANNED_AHEAD
        waiting = waiting[:_MAX_PLANNED_AHEAD]
        plans = yield from self._promise_waiting(slot, waiting)

        # 5. Promise bags that can start at once in capacity that no job plans to use.
        bags = list(self._bag_scheduler.promise_waiting(state, slot, at_no_cost=True))
        yield from bags
        if bags:
            # Promised jobs were replanned around the new bags, so plans of waiting jobs are gone.
            waiting = waiting[jobs.promise[waiting] < 0]
            plans = self._plan_waiting(slot, waiting, state.plan.line)

        # 6. Plan all jobs jointly instead, if all of them fit and that earns more.
        if not (is_rush or self._quotas.has_shares or self._parameters.steady):
            self._plan_together(slot, waiting, plans)

        # 7. Allocate spare capacity to the steps up of the highest value. What promises leave of
        #    shares is lent to the densest jobs of all tenants.
        line = state.plan.line
        if self._quotas.has_shares:
            line = self._plan_beyond_shares(slot, rows, waiting, weights)
        self._allocate_spare(slot, rows, weights, line)

        # 8. Place the levels of the slot on servers, with few moves. Bags release capacity first.
        yield from self._bag_scheduler.release_finished(state, view)
        yield from self._place(slot, rows, weights)
        yield from self._bag_scheduler.start(state, slot)
        if self._quotas.has_shares:
            self._record_owed(slot, rows)
        has_new_promises = not np.array_equal(promised, state.promised())
        has_plans_of_offers = was_planned_for_arrivals or has_new_promises
        state.held_until = slot + 1 if has_plans_of_offers else self._next_planned_slot(slot)

    def _rank(self, slot: int, rows: Integers) -> tuple[Floats, StepWeights]:
        """Return the utility density by row, 0 except for ``rows``, and the weights of steps up."""
        jobs, arrays = self._state.jobs, self._state.jobs.arrays
        process = self._state.demand.weights(slot, arrays)
        density, utility = np.zeros((2, len(process)))
        density[rows], utility[rows] = next_slot.utility_densities(arrays, rows, slot, process)
        # Share of the slot that each row loses if its placement changes.
        loss = np.minimum(jobs.restart_loss, _MAX_MOVE_LOSS) * jobs.start_costs
        return density, StepWeights(utility, process, loss, jobs.level, np.zeros((0, 0), np.bool_))

    def _next_planned_slot(self, slot: int) -> int:
        """Return the next slot to plan if no event comes before.

        Until then, no plan changes its level, and each waiting job can still be in time.
        """
        state, jobs, arrays = self._state, self._state.jobs, self._state.jobs.arrays
        if self._quotas.has_shares or state.bags.jobs:
            return slot + 1
        ends = [slot + self._cluster.horizon]
        ends += [pinned.end + 1 for pinned in state.plan.pinned.values()]
        if len(state.plan.order):  # the end of each plan's first run of equal slots
            ends.append(int(state.plan.steps.until[state.plan.order, 0].min()))
        rows = jobs.in_order()
        waiting = rows[jobs.promise[rows] < 0]
        if len(waiting):
            needed = jobs.min_slots(waiting)
            ends.append(slot + max(1, int(needed.min()) // _HOLD_DIVISOR))
            ends.append(int((arrays.last_slot[waiting] - needed).min()) + 1)
        return min(ends)

    def _replan(self, view: View, slot: int, *, lean: bool = False) -> Iterator[Decision]:
        """Replan promised jobs from a slot on, at most once a slot; yield changed promises.

        With ``lean``, pinned jobs give up the workers that they don't need, which frees capacity
        for arrivals.
        """
        state, jobs = self._state, self._state.jobs
        if state.planned_slot == slot:
            self._planner.reserve(state)  # a restored policy state has no scratch arrays
            return
        self._refresh(view)
        invalid = self._invalid_promises()
        past_end = {row for row in invalid if jobs.promise[row] > jobs.final_slot}
        for row in invalid:
            state.withdraw_promise(row)
        late = state.late_unstoppable_jobs()
        plan = self._planner.replan(state, slot, lean=lean)
        self._planner.put_in_force(state, plan)
        state.planned_slot = slot
        state.is_lean = lean and bool((jobs.restart_loss[state.promised()] > 0.0).any())
        unplanned = [(row, int(jobs.promise[row])) for row in plan.unplanned]
        jobs.promise[plan.unplanned] = -1
        for row in invalid:
            reason = _PAST_END if row in past_end else _REVISED
            yield self._change_promise(slot, row, reason, like_new=True)
        for row in late:
            yield self._change_promise(slot, row, _FELL_SHORT, like_new=False)
        for row, promise in unplanned:
            if not self._pin_again(slot, row, promise):
                fell_short = _FELL_SHORT if jobs.slots_run[row] else _NO_PLAN
                reason = fell_short if state.servers.all_up else "servers were lost"
                yield self._change_promise(slot, row, reason, like_new=False)
        if state.bags.broken:
            yield from self._bag_scheduler.replan_broken(state, slot)

    def _refresh(self, view: View) -> None:
        """Update jobs and bags from the view, and the plans of jobs that can't be stopped."""
        state = self._state
        state.is_estimate = state.jobs.refresh(view)
        state.bags.refresh(view, state.servers.capacity())
        state.jobs.refresh_unstoppable(view)
        state.set_unstoppable_plans(pinned_plans.find_unstoppable_plans(view, state))

    def _invalid_promises(self) -> list[int]:
        """Return the rows whose promise is past the timespan, or worthless after a revision."""
        jobs, last_slot = self._state.jobs, self._state.jobs.arrays.last_slot
        invalid = []
        for row in np.flatnonzero(self._state.promised() & (jobs.promise > last_slot)).tolist():
            job = jobs.job(row)
            if jobs.promise[row] > jobs.final_slot:
                invalid.append(row)
                continue
            ends = np.array([jobs.promise[row], last_slot[row]]) - job.arrival
            promised, last = job.utility.values(np.maximum(ends, 0).astype(np.float64))
            # A promise just beyond the last useful slot, with half of its utility, is kept.
            if promised < 0.5 * last or not last:
                invalid.append(row)
        return invalid

    def _change_promise(self, slot: int, row: int, reason: str, *, like_new: bool) -> Promise:
        """Return a new promise for a job whose promise can't be kept, or withdraw it.

        After a revision of the job or the timespan, it is ``like_new``: as late as for a new job
        (`_promise_slot`). Otherwise it is the offer's target.
        """
        state, name = self._state, self._state.jobs.name(row)
        offer = self._planner.offer(state, row, np.zeros(2))
        if offer is None or not self._planner.add_last_offer(state, row, offer):
            state.jobs.promise[row] = -1
            return Promise(name, None, message=f"{reason}; the job waits")
        end = self._promise_slot(slot, row, offer) if like_new else offer.target
        state.jobs.promise[row] = end
        return offer.promise(name, end, reason)

    def _withdraw_promises(self) -> Iterator[Decision]:
        """Withdraw every promise, because the timespan has ended and nothing runs."""
        jobs = self._state.jobs
        rows = jobs.in_order()
        for row in rows[jobs.promise[rows] >= 0].tolist():
            jobs.promise[row] = -1
            yield Promise(jobs.name(row), None, message="the timespan ended; the job waits")

    def _drop_late_jobs(self, view: View) -> Iterator[Decision]:
        slot, jobs, arrays = view.slot, self._state.jobs, self._state.jobs.arrays
        rows = jobs.in_order()
        rows = rows[jobs.promise[rows] < 0]
        done = slot + jobs.min_slots(rows) - 1
        late = np.flatnonzero(arrays.last_slot[rows] < done)
        for row, completion in zip(rows[late].tolist(), done[late].tolist(), strict=True):
            name = jobs.name(row)
            state = view.open_jobs[name]
            ends_first = jobs.only_after_end(state.job, completion)
            # Wait if the end may move; the engine abandons unstoppable jobs that seem endless.
            if (self._context.end_moves and ends_first) or view.is_unstoppable(name):
                continue
            self._remove_job(name)
            yield end_waiting(state, refuse_late(state.job, completion, ends_first=ends_first))

    # ---------------------------------------------------------------- waiting jobs

    def _plan_waiting(self, slot: int, rows: Integers, line: Timeline) -> WaitingPlans:
        price = self._state.demand.costs(slot, self._state.jobs.arrays)
        return self._planner.plan_waiting(self._state, rows, price, line)

    def _promise_waiting(
        self, slot: int, rows: Integers
    ) -> Generator[Decision, None, WaitingPlans]:
        """Plan waiting jobs and promise those worth their price; return the plans of all."""
        state = self._state
        plans = self._plan_waiting(slot, rows, state.plan.line)
        promised = plans.exists & (plans.utility > plans.cost) & plans.is_certain
        if not promised.any():
            return plans
        if broken := self._planner.broken_runs(state, state.plan, rows):
            promised &= ~np.isin(rows, broken)
        utility = plans.utility[promised]
        promised[promised] = state.demand.justifies(slot, state.jobs, rows[promised], utility)
        for index in np.flatnonzero(promised).tolist():
            yield self._promise(slot, int(rows[index]), plans.offer(index))
        state.plan.order = np.concatenate((state.plan.order, rows[promised]))
        return plans

    def _promise_waiting_pinned(
        self, slot: int, rows: Integers
    ) -> Generator[Decision, None, Integers]:
        """Promise pinned plans to waiting jobs that restarts would make late even alone.

        ``rows`` are in order of density. Returns the rows without a promise.
        """
        state, jobs, planner = self._state, self._state.jobs, self._planner
        losing = rows[:_MAX_PLANNED_AHEAD]
        losing = losing[jobs.restart_loss[losing] > 0.0]
        if not len(losing):
            return rows
        prices = state.demand.costs(slot, jobs.arrays, losing)
        for row, price in zip(losing.tolist(), prices, strict=True):
            if planner.offer_alone(state, slot, row, price) is None:
                promise = self._promise_pinned(slot, row, price)
                if promise is not None:
                    yield promise
        return rows[jobs.promise[rows] < 0]

    def _promise_unstoppable(self, slot: int) -> Iterator[Decision]:
        """Promise running jobs that can't be stopped and are worth their price."""
        state, jobs = self._state, self._state.jobs
        unpromised = [row for row in state.unstoppable_plans if jobs.promise[row] < 0]
        if not unpromised:
            return
        rows = np.array(unpromised, np.int64)
        prices = state.demand.costs(slot, jobs.arrays, rows)
        for row, price in zip(rows.tolist(), prices, strict=True):
            offer = self._planner.offer(state, row, price)
            if offer is not None and state.demand.refusal(slot, jobs, row, offer) is None:
                yield self._promise(slot, row, offer)

    def _plan_together(self, slot: int, waiting: Integers, plans: WaitingPlans) -> None:
        """Plan all open jobs jointly by due slots, if all of them fit and that earns more.

        ``plans`` are the plans of the waiting jobs one by one, the densest first. In these a job
        takes the slots that suit it, so a job that could wait may block one that can't. A joint
        plan promises nothing.
        """
        state, jobs = self._state, self._state.jobs
        # Jobs that didn't fit together don't fit until one of them is gone.
        misfits = state.misfits
        if misfits is not None and misfits.issubset(jobs.rows):
            return
        state.misfits = None
        due, utility_alone = next_slot.latest_acceptable_slots(
            jobs.arrays, waiting, slot, self._cluster.horizon, _UTILITY_TOLERANCE
        )
        chosen = (jobs.promise[waiting] < 0) & (utility_alone > 0.0)
        planned = np.where(plans.exists, plans.utility, 0.0)
        earns_more = (
            utility_alone[chosen].sum() * (1.0 - _UTILITY_TOLERANCE) > planned[chosen].sum()
        )
        if not earns_more or chosen.sum() > _MAX_TOGETHER:
            return
        plan = self._planner.plan_together(state, slot, waiting[chosen], due[chosen])
        if plan is None:
            state.misfits = frozenset(jobs.rows)
            return
        self._planner.put_in_force(state, plan)

    # ---------------------------------------------------------------- tenants' shares

    def _plan_beyond_shares(
        self, slot: int, rows: Integers, waiting: Integers, weights: StepWeights
    ) -> Timeline:
        """Plan waiting jobs again, in all capacity that no promise uses, the densest first.

        Jobs of tenants that are owed more than `HORIZONS_OWED` come first, each in its tenant's
        share; then all others, in any capacity. Returns the free capacity that remains, not
        confined to shares.
        """
        state, jobs = self._state, self._state.jobs
        unconfined = state.plan.line.limits[-1:]
        limit = HORIZONS_OWED * self._cluster.horizon
        is_owed = (state.owed > limit)[jobs.arrays.tenant]
        plan = self._planner.carry_over(state, slot, state.plan.pinned)
        if plan is None:  # without the waiting jobs, promised ones are packed on other servers
            self._allocate_spare(slot, rows[is_owed[rows]], weights, state.plan.line)
            return state.plan.line._replace(limits=unconfined)
        self._planner.put_in_force(state, plan)
        waiting = waiting[jobs.promise[waiting] < 0]
        first = waiting[is_owed[waiting]]
        planned = self._plan_waiting(slot, first, plan.line).exists
        self._allocate_spare(slot, rows[is_owed[rows]], weights, plan.line)
        started = np.concatenate((first[planned], waiting[plan.log.level[waiting] >= 0]))
        line = plan.line._replace(limits=unconfined)
        self._plan_waiting(slot, waiting[~np.isin(waiting, started)], line)
        return line

    def _record_owed(self, slot: int, rows: Integers) -> None:
        """Record what tenants are owed after the slot that begins.

        The demand of a bag is its usage, because it never runs in lent capacity.
        """
        state, jobs, arrays = self._state, self._state.jobs, self._state.jobs.arrays
        usage = state.bags.tenant_usage(slot)
        demand, is_open = usage.copy(), np.zeros(len(usage), np.bool_)
        running = rows[jobs.level[rows] >= 0]
        total = jobs.amounts(running, jobs.level[running])
        np.add.at(usage, arrays.tenant[running], total)
        np.add.at(demand, arrays.tenant[rows], jobs.useful_amounts(rows))
        is_open[arrays.tenant[rows]] = True
        for bag in state.bags.jobs.values():
            is_open[self._quotas.row_of(self._cluster, bag)] = True
        state.owed = self._quotas.owed_after(state.owed, usage, demand, is_open)
        state.owed_slot = slot

    # ---------------------------------------------------------------- spare capacity, placement

    def _allocate_spare(
        self, slot: int, rows: Integers, weights: StepWeights, line: Timeline
    ) -> None:
        """Allocate the spare capacity of the next slot, if `spare` is set."""
        if self._parameters.spare:
            arrays, log = self._state.jobs.arrays, self._state.plan.log
            next_slot.allocate_spare(line, arrays, rows, self._confine(slot, weights), log)

    def _confine(self, slot: int, weights: StepWeights) -> StepWeights:
        return weights._replace(forbidden=pinned_plans.forbidden_levels(self._state, slot))

    def _place(self, slot: int, rows: Integers, weights: StepWeights) -> Iterator[Decision]:
        """Place the packed levels on servers with few moves, and yield the changes."""
        state, jobs, arrays = self._state, self._state.jobs, self._state.jobs.arrays
        log = state.plan.log
        roles = server_roles(jobs.hosts_workers, jobs.hosts_ps)
        pinned, pinned_level = pinned_plans.pinned_placements(state.plan.pinned, jobs.row_count)
        # First try to keep jobs on their servers. If not all fit, pack them as they were planned.
        # If the timeline ran out of groups, some levels don't fit then either, and are left out.
        for keep_servers in (True, False):
            free = state.servers.capacity()
            if state.bags.plans:
                free -= state.bags.usage(slot)
            if not state.servers.all_up:
                free += self._planner.cordoned_usage(state, slot)
            complete, following = placement.place_packed_jobs(
                free, roles, arrays, log, jobs.placements, pinned, pinned_level, keep_servers
            )
            if complete:
                break
        held_back = self._hold_back_starts(slot, rows, free, following)
        # The remaining capacity goes to co-located jobs on their servers, then to paused jobs.
        if self._parameters.spare:
            colocated = rows[log.level[rows] >= arrays.spread_levels[rows]]
            if len(colocated):
                allowed = self._confine(slot, weights)
                placement.scale_up_colocated(free, arrays, colocated, allowed, following, log)
            paused = rows[log.level[rows] < 0]
            if held_back:
                paused = paused[~np.isin(paused, held_back)]
            if len(paused):
                allowed = self._confine(slot, weights)
                following = placement.place_paused_jobs(
                    free, roles, arrays, paused, allowed, following, log
                )
                # No job is placed after these, so the rows that it returns don't matter.
                self._hold_back_starts(slot, paused, free, following)
        unmoved = np.zeros(len(rows), np.bool_)
        if state.plan.pinned:
            for row in rows[jobs.moves(rows, following)].tolist():
                # A pinned job may only move for a slot if it still completes by its plan's end.
                if pinned_plans.cannot_move(state, slot, row, int(log.level[row])):
                    following = following.replaced(row, *pinned.of_row(row))
                    log.level[row] = pinned_level[row]
            unmoved = np.isin(rows, list(state.plan.pinned)) & ~jobs.moves(rows, following)
        jobs.record_levels(rows, log.level[rows], unmoved)
        yield from jobs.move(rows, following)

    def _hold_back_starts(
        self, slot: int, rows: Integers, free: Integers, following: Placements
    ) -> list[int]:
        """Undo starts of jobs that can't be stopped if a plan needs their servers later.

        ``following`` and ``free`` are updated. Returns the rows that don't start. A job that its
        plan starts in this slot starts anyway if waiting a slot would break a promise.
        """
        state, jobs = self._state, self._state.jobs
        log, steps = state.plan.log, state.plan.steps
        if not jobs.unstoppable.any():
            return []
        starts = jobs.unstoppable[rows] & (jobs.level[rows] < 0) & (log.level[rows] >= 0)
        if not starts.any():
            return []
        # All plans in force are made around pinned ones, which start where they are planned.
        starts &= ~np.isin(rows, list(state.plan.pinned))
        held_back, pinned = [], state.plan.pinned
        for row in rows[starts].tolist():
            plan = pinned_plans.plan_until_end(jobs, slot, row, int(log.level[row]), following)
            together = {**pinned, row: plan}
            is_planned = jobs.promise[row] >= 0 and steps.runs[row] > 0 and steps.level[row, 0] >= 0
            if self._planner.can_start(state, slot, row, together) or (
                is_planned and not self._planner.can_wait(state, slot, pinned)
            ):
                pinned = together
                continue
            held_back.append(row)
            log.level[row], following.size[row] = -1, 0
            free[plan.servers] += plan.amounts
        return held_back


def build(context: PolicyContext, parameters: RollingParameters) -> RollingPolicy:
    """Build the policy. Raises `InputError` if tenants' shares exceed the servers' capacity."""
    if parameters.quota:
        check_shares(context.cluster)
    return RollingPolicy(context, parameters)
