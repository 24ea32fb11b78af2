"""`rolling`: completion promises, plans revised at learnt prices, work conservation."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Sequence
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.events import Decision, Drop, JobsArrived, PolicyEvent, Promise, Queue, Reject
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, Status, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.kernels.replanning.next_slot import (
    StepWeights,
    allocate_spare,
    latest_acceptable_slot,
    latest_acceptable_slots,
    plan_waiting,
    utility_densities,
)
from shadowprice.kernels.replanning.timeline import Timeline
from shadowprice.policies.reactive.base import Reactive
from shadowprice.policies.rolling.bag_scheduler import Copies
from shadowprice.policies.rolling.bags import BagBook
from shadowprice.policies.rolling.offers import (
    Offer,
    crowded,
    dear,
    past_end,
    too_late,
    unsettled,
    worthless,
)
from shadowprice.policies.rolling.open_jobs import Book
from shadowprice.policies.rolling.parameters import RollingParameters
from shadowprice.policies.rolling.planner import Planner
from shadowprice.policies.rolling.prices import Demand, Evidence, Pools
from shadowprice.policies.rolling.quotas import check_shares, quotas_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_ENDLESS: Final = 3
"""A generation that has run this many times its stated duration counts as endless."""

_FEW: Final = 16
"""Maximum number of waiting jobs that are planned jointly with promised ones.

More jobs are a rush, in which promised jobs should keep their slack. Such a plan is also slow.
"""

_FELL_SHORT: Final = "less was done than was planned"

_REVISED: Final = "it was revised, and would be worth nothing by when it was promised"

_PAST_END: Final = "the timespan ends before the slot that it was promised for"

_ENDED: Final = "the timespan ended"

_NEARLY_ALL: Final = 0.999
"""Maximum share of a slot that a start or a move costs when steps are ranked.

A job whose start takes the whole slot makes progress in the next one. That is better than an idle
server, so the step must keep a positive value.
"""


class Rolling(Reactive[RollingParameters]):
    """Promises completion slots and replans within them; see ``docs/policies/rolling.md``.

    Jobs that arrive together are considered in order of utility density. Each is offered the plan
    with the largest payoff at the learnt shadow prices. It is promised if its utility exceeds its
    cost and all promises can be kept together; otherwise it waits.

    When a slot begins, promised jobs are replanned with the fewest workers that keep their
    promises. Waiting jobs are planned in the remaining capacity. What is still free in the slot is
    allocated to the steps up of the highest value.

    The job set of the context is ignored: prices are learnt from jobs that have arrived.
    """

    capabilities: ClassVar = Capabilities(
        elastic=True,
        prices=True,
        wakes_every_slot=True,
        runs_bags=True,
        quotes=True,
        answers_at_once=False,
    )

    def __init__(self, context: PolicyContext, parameters: RollingParameters) -> None:
        super().__init__(context, parameters)
        cluster = context.cluster
        self._quotas = quotas_of(cluster, wanted=parameters.quota)
        limit = parameters.restart_limit
        self._book = Book(cluster, context.until, self._quotas, restart_limit=limit)
        self._bags = BagBook(cluster, self._quotas)
        self._planner = Planner(cluster, self._book, self._bags, self._quotas)
        self._pools = Pools(cluster)
        self._demand = Demand(cluster, self._pools, self._quotas, parameters)
        self._laid_out_for: int | None = None
        self._expected = self._leanly = False
        self._too_many: frozenset[str] | None = None

    def _recall(self, before: Self) -> None:
        """Keep the learnt prices."""
        self._demand.recall(before._demand)

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        """Add an open job with its promise, plan and placement."""
        if state.job.bag is not None:
            self._bags.resume(state, before._bags, view.slot)
        else:
            under_way = view.slot - 1 if view.runs(state.job.name) else None
            self._book.resume(state, before._book, under_way)

    def _leave(self, name: str) -> None:
        if name in self._bags.jobs:
            self._bags.remove(name)
        else:
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Remove a training job, if the policy knows it."""
        self._planner.stays.remove(self._book.table.rows.get(name, -1))
        self._book.remove(name)

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        for name in names:
            self._planner.stays.remove(self._book.table.rows.get(name, -1))
            self._book.clear(name)
            self._bags.plan_lost(name, "servers were lost")

    def _lose(self, server: int) -> None:
        self._bags.lose_server(server)
        self._book.table.lose(server)
        self._planner.lose(server)
        self._pools.lose(server)

    def _restore(self, server: int) -> None:
        self._book.table.restore(server)
        self._planner.restore(server)
        self._pools.restore(server)
        self._too_many = None

    def _settle(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        del view
        if not isinstance(event, JobsArrived):  # arrivals were planned when they were answered
            self._laid_out_for = None
        yield from ()

    def slot_prices(self, view: View) -> NDArray[np.float64]:
        """Return the price of all of each server's resources in the next slot."""
        return self._pools.of_servers(self._demand.posted(view.slot))

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return the decision on a job if it arrived now; changes no state."""
        del explained  # a refusal always carries its reason
        # Immutable objects needn't be copied.
        shared = (self._cluster, *self._book.table.jobs, *self._bags.jobs.values())
        clone = copy.deepcopy(self, {id(item): item for item in shared})
        decision = next(
            decision for decision in clone._arrive(view, (job,)) if decision.job == job.name
        )
        return Quote.of(decision, view.slot)

    # ---------------------------------------------------------------- submission

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        """Answer jobs that arrive together, in order of utility density."""
        slot = view.slot
        # Live jobs (`steady`) keep spare workers: they may be slower than stated.
        yield from self._lay_out(view, slot, least=not self._parameters.steady)
        training = [job for job in jobs if job.bag is None]
        for job in training:
            self._book.add(job)
        self._planner.reserve()
        rows = {job.name: self._book.table.rows[job.name] for job in training}
        if len(jobs) > 1:
            density = self._densities(slot, jobs, list(rows.values()))
            jobs = sorted(jobs, key=lambda job: -density[job.name])
        for job in jobs:
            if job.bag is None:
                yield self._answer(slot, job, rows[job.name])
            else:
                yield self._copies.answer(slot, job, self._pools.capacity())
        for job in jobs:  # learnt after the answers: a job doesn't bid against itself
            self._demand.learn(job, slot)

    def _densities(self, slot: int, jobs: Sequence[Job], rows: Sequence[int]) -> dict[str, float]:
        """Return the utility density of each job; ``rows`` are those of its training jobs."""
        weight = self._demand.weights(slot, self._book.jobs)
        values, _ = utility_densities(self._book.jobs, np.array(rows, np.int64), slot, weight)
        by_name = {self._book.name(row): density for row, density in zip(rows, values, strict=True)}
        for job in jobs:
            if job.bag is not None:
                by_name[job.name] = self._copies.density(
                    slot, job, self._demand.copy_weight(slot, job)
                )
        return by_name

    def _answer(self, slot: int, job: Job, row: int) -> Decision:
        """Return a promise if the job is worth its price; otherwise queue or refuse it."""
        done = slot + job.min_slots_colocated - 1
        if self._book.jobs.last_slot[row] < done:
            self._forget(job.name)
            ends_first = self._book.ends_first(job, done)
            return Reject(job.name, (past_end if ends_first else worthless)(job, done))
        answer = self._promise_for(slot, row)
        if isinstance(answer, Promise):
            return answer
        # A job that is too late even alone on all servers doesn't get faster by waiting. With a
        # restart loss it may, because its plan counts restarts that may not happen.
        infeasible = (
            answer.reason is Reason.TOO_LATE
            and self._pools.whole
            and not self._book.loss[row]
            and not self._quotas.given  # a waiting job may use shares of other tenants
        )
        if self._parameters.standby and not infeasible:
            return Queue(job.name, f"waits without a promise: {answer.message}")
        self._forget(job.name)
        return Reject(job.name, answer)

    def _promise_for(self, slot: int, row: int) -> Promise | Refusal:
        """Return a promise for a new job and record its plan, or return the refusal."""
        price = self._demand.costs(slot, self._book.jobs, np.array([row]))[0]
        offer = self._planner.offer(row, price)
        lacks_evidence = False  # worth its price, but too little demand is known
        if offer is not None and offer.utility > offer.cost:
            lacks_evidence = not self._evidence.suffices_for(slot, row, offer)
            if not lacks_evidence and self._planner.take(row, offer):
                return self._promise(slot, row, offer)
        alone = self._planner.alone(slot, row, price)
        if alone is None and self._book.loss[row] >= self._parameters.restart_limit:
            return unsettled(self._book.loss[row], self._parameters.restart_limit)
        if alone is None:
            return too_late(
                self._book.name(row),
                slot,
                shares=self._quotas.given,
                ends=self._book.until is not None,
            )
        if alone.utility <= alone.cost:
            return dear(alone)
        if not self._evidence.suffices_for(slot, row, alone):
            return self._evidence.refusal(slot, row, alone)
        obstacle: int | None = None
        if self._parameters.revision:
            obstacle = self._planner.admits(slot, row, self._promise_slot(slot, row, alone))
            if obstacle is None:
                return self._promise(slot, row, alone)
        if offer is not None:
            return self._evidence.refusal(slot, row, offer) if lacks_evidence else dear(offer)
        holder = None if obstacle is None or obstacle == row else self._book.name(obstacle)
        return crowded(alone, holder, self._planner.earliest(row))

    def _promise(self, slot: int, row: int, found: Offer) -> Promise:
        """Record and return the promise of a plan."""
        completion = self._promise_slot(slot, row, found)
        self._book.promise[row] = completion
        return Promise(
            self._book.name(row),
            completion,
            found.done,
            found.utility - found.cost,
            found.utility,
            found.cost,
        )

    def _promise_slot(self, slot: int, row: int, found: Offer) -> int:
        """Return the last slot whose utility is within ``slack`` of the plan's."""
        horizon, slack = self._cluster.horizon, self._parameters.slack
        return int(latest_acceptable_slot(self._book.jobs, row, slot, found.done, horizon, slack))

    # ---------------------------------------------------------------- the next slot

    def _begin(self, view: View) -> Iterator[Decision]:
        slot = view.slot
        book = self._book
        idle = not book.table.rows and not self._bags.jobs
        if idle:
            return
        if book.until is not None and slot >= book.until:
            yield from self._take_back_promises()
            return
        # Replan if the last plan estimated the progress of the slot before, which is known now, or
        # if pinned jobs gave workers up for arrivals, which have been answered.
        if self._expected or self._leanly:
            self._laid_out_for = None
        yield from self._lay_out(view, slot)
        weight = self._demand.weights(slot, self._book.jobs)
        yield from self._give_up(view, slot)
        yield from self._revise_bags(view, slot)
        rows = book.table.in_order()
        waiting = rows[book.promise[rows] < 0]
        density, _ = utility_densities(book.jobs, waiting, slot, weight)
        waiting = waiting[np.argsort(-density, kind="stable")]
        is_rush = len(waiting) > self._parameters.waiting
        waiting = waiting[: self._parameters.waiting]
        plans = yield from self._plan_waiting(slot, waiting)
        if (yield from self._plan_bags(slot, free=True)):
            # Promised jobs were replanned around the new bags, so plans of waiting jobs are gone.
            waiting = waiting[book.promise[waiting] < 0]
            plans = self._plan(slot, waiting, self._planner.layout.line)
        planned = plans[:, 0] >= 0
        if not (is_rush or self._quotas.given or self._parameters.steady):
            joint = self._lay_out_together(slot, waiting, plans)
            planned = planned if joint is None else joint
        layout = self._planner.layout
        line = layout.line
        if self._quotas.given:
            # Tenants come first in their own shares. Other tenants' jobs get what remains unused.
            self._fill(slot, rows, weight, line)
            line = line._replace(share=self._quotas.share[:0])
            self._plan(slot, waiting[~planned & (layout.log.level[waiting] < 0)], line)
        self._fill(slot, rows, weight, line)
        yield from self._copies.release_finished(view)
        yield from self._stand(slot, rows, weight)
        yield from self._copies.start(slot)

    def _take_back_promises(self) -> Iterator[Decision]:
        """Withdraw every promise: the timespan is over, and nothing runs."""
        rows = self._book.table.in_order()
        for row in rows[self._book.promise[rows] >= 0].tolist():
            self._book.promise[row] = -1
            yield Promise(self._book.name(row), None, message=f"{_ENDED}: it waits")

    def _revise_bags(self, view: View, slot: int) -> Iterator[Decision]:
        """Abandon, advance and promise bags of tasks, before waiting jobs are planned."""
        if self._bags.jobs:
            yield from self._copies.drop_infeasible(view)
            self._copies.advance(slot, self._pools.capacity())
            yield from self._plan_bags(slot, free=False)

    def _plan_bags(self, slot: int, *, free: bool) -> Generator[Decision, None, bool]:
        """Promise waiting bags; return whether any was promised. See `Copies.plan_waiting`."""
        promised = False
        for promise in self._copies.plan_waiting(
            slot, self._pools.capacity(), lambda job: self._demand.copy_weight(slot, job), free=free
        ):
            promised = True
            yield promise
        return promised

    def _fill(self, slot: int, rows: Integers, weight: Floats, line: Timeline) -> None:
        """Allocate the spare capacity of the next slot, if `spare` is set."""
        if not self._parameters.spare:
            return
        book = self._book
        _, value = utility_densities(book.jobs, rows, slot, weight)
        terms = self._terms(slot, weight)
        allocate_spare(line, book.jobs, rows, value, terms, self._planner.layout.log)

    def _terms(self, slot: int, weight: Floats) -> StepWeights:
        """Return the weights of steps up in the next slot."""
        book = self._book
        # Share of the slot that each row loses if its placement changes.
        loss = np.minimum(book.loss, _NEARLY_ALL) * book.started
        return StepWeights(weight, loss, book.standing, self._planner.barred(slot))

    def _use_up(self, slot: int, rows: Integers, weight: Floats, free: Integers) -> None:
        """Allocate what remains on servers: to co-located jobs there, then to paused jobs.

        ``free`` has the remaining capacity of each server, and is reduced.
        """
        if not self._parameters.spare:
            return
        book, log = self._book, self._planner.layout.log
        for chosen, allocate in (
            (rows[log.level[rows] >= book.jobs.spread_levels[rows]], book.table.grow),
            (rows[log.level[rows] < 0], book.table.seat),
        ):
            if len(chosen):
                _, value = utility_densities(book.jobs, chosen, slot, weight)
                allocate(free, book.jobs, chosen, value, self._terms(slot, weight), log)

    def _give_up(self, view: View, slot: int) -> Iterator[Decision]:
        """Abandon waiting jobs that can't complete any more while they have a utility.

        A job that is late only because the timespan ends waits if the end can move.
        """
        book, jobs = self._book, self._book.jobs
        rows = book.table.in_order()
        rows = rows[book.promise[rows] < 0]
        fastest = np.maximum(book.most_gain(rows), book.fastest[rows])
        slots = -(-jobs.remaining[rows] // fastest)
        done = slot + slots - 1
        late = np.flatnonzero(jobs.last_slot[rows] < done)
        for row, completion in zip(rows[late].tolist(), done[late].tolist(), strict=True):
            name = book.name(row)
            state = view.open_jobs[name]
            ends_first = book.ends_first(state.job, completion)
            if self._context.end_moves and ends_first:
                continue
            if view.pinned(name) and not _seems_endless(view, state, slot):
                continue
            refusal = (past_end if ends_first else worthless)(state.job, completion)
            self._forget(name)
            yield (Drop if state.status is Status.ADMITTED else Reject)(name, refusal)

    def _plan(self, slot: int, rows: Integers, line: Timeline) -> Floats:
        """Plan waiting jobs in the free capacity of a timeline.

        Returns
        -------
        ndarray of float64, shape (jobs, 5)
            As ``result`` of `plan_waiting`: completion slot that was tried (-1 without a plan),
            completion slot, utility, cost, and 1 if the plan is sure.
        """
        result = np.full((len(rows), 5), -1.0)
        if len(rows):
            book, layout = self._book, self._planner.layout
            price = self._demand.costs(slot, book.jobs)
            plan_waiting(
                line, book.jobs, rows, book.hoped(rows), book.loss[rows] > 0.0, price,
                self._planner.shared, self._planner.room, layout.steps, layout.log, result,
            )  # fmt: skip
        return result

    def _plan_waiting(self, slot: int, rows: Integers) -> Generator[Decision, None, Floats]:
        """Plan waiting jobs beside promised ones, and promise those that are worth their price.

        Returns
        -------
        ndarray of float64, shape (jobs, 5)
            As in `_plan`.
        """
        layout = self._planner.layout
        result = self._plan(slot, rows, layout.line)
        promised = (result[:, 0] >= 0) & (result[:, 2] > result[:, 3]) & (result[:, 4] > 0.0)
        promised[promised] = self._evidence.suffices(slot, rows[promised], result[promised, 2])
        for index in np.flatnonzero(promised).tolist():
            end, done, value, cost = result[index, :4].tolist()
            yield self._promise(slot, int(rows[index]), Offer(int(end), 0, int(done), value, cost))
        layout.order = np.concatenate((layout.order, rows[promised]))
        return result

    def _lay_out_together(self, slot: int, waiting: Integers, result: Floats) -> Flags | None:
        """Plan all open jobs jointly by due slots, if all of them fit and that earns more.

        Planned one by one, the densest first, a job takes the slots that suit it. So a job that
        could wait may block one that can't. A joint plan promises nothing.

        Returns
        -------
        ndarray of bool, shape (waiting,), or None
            Waiting jobs that are planned now, and no other ones; None if plans stay as they are.
        """
        book = self._book
        # Jobs that didn't fit together don't fit until one of them is gone.
        failed = self._too_many
        if not self._parameters.together or (
            failed is not None and failed <= book.table.rows.keys()
        ):
            return None
        self._too_many = None
        value_alone = np.zeros(len(waiting))
        due_slots = np.zeros(len(waiting), np.int64)
        horizon, slack = self._cluster.horizon, self._parameters.slack
        latest_acceptable_slots(book.jobs, waiting, slot, horizon, slack, due_slots, value_alone)
        unpromised = (book.promise[waiting] < 0) & (value_alone > 0.0)
        planned_value = np.where(result[:, 0] >= 0, result[:, 2], 0.0)
        earns_more = value_alone[unpromised].sum() * (1.0 - slack) > planned_value[unpromised].sum()
        if not earns_more or unpromised.sum() > _FEW:
            return None
        with book.hopeful(waiting[unpromised]):
            if self._planner.fits(slot, waiting[unpromised], due_slots[unpromised]):
                return unpromised
        self._too_many = frozenset(book.table.rows)
        return None

    def _stand(self, slot: int, rows: Integers, weight: Floats) -> Iterator[Decision]:
        """Place the packed levels on servers with few moves, and yield the changes."""
        book, table, log = self._book, self._book.table, self._planner.layout.log
        stays = self._planner.stays
        fixed, pinned_level = stays.fixed()
        for stay in (True, False):
            free = self._pools.capacity()
            if self._bags.plans:
                free -= self._bags.held(slot)
            if table.put(free, book.jobs, log, fixed, pinned_level, stay=stay):
                break
        self._use_up(slot, rows, weight, free)
        staying = np.zeros(len(rows), np.bool_)
        if stays.plans:
            for row in rows[table.moves(rows)].tolist():
                # A pinned job may only move for a slot if it still completes by its plan's end.
                if stays.cannot_move(slot, row, int(log.level[row])):
                    table.put_back(row, fixed)
                    log.level[row] = pinned_level[row]
            staying = np.isin(rows, list(stays.plans)) & ~table.moves(rows)
        book.stood(rows, log.level[rows], staying)
        yield from table.rearrange(rows)

    # ---------------------------------------------------------------- shared steps

    def _lay_out(self, view: View, slot: int, *, least: bool = False) -> Iterator[Decision]:
        """Replan promised jobs from a slot on, once a slot; yield promises that changed.

        With ``least``, pinned jobs give up the workers that they don't need, which frees capacity
        for arrivals.
        """
        if self._laid_out_for == slot:
            return
        self._expected = self._book.refresh(view)
        self._bags.refresh(view, self._pools.capacity())
        parameters = self._parameters
        invalid = self._worthless()
        past_end_rows = {row for row in invalid if self._book.promise[row] > self._book.final}
        for row in invalid:
            self._planner.stays.remove(row)
        self._book.promise[invalid] = -1
        broken = self._planner.renew(
            slot, revise=parameters.revision, steady=parameters.steady, least=least
        )
        self._laid_out_for = slot
        self._leanly = least and bool((self._book.loss[self._planner.owed()] > 0.0).any())
        self._book.promise[broken] = -1
        for row in invalid:
            yield self._mend(row, _PAST_END if row in past_end_rows else _REVISED, slot)
        for row in broken:
            yield self._mend(row, _FELL_SHORT)
        if self._bags.broken:
            yield from self._copies.mend(slot, self._pools.capacity())

    def _worthless(self) -> list[int]:
        """Return the rows whose promise is past the end, or worthless after a revision."""
        book = self._book
        rows = np.flatnonzero(self._planner.owed() & (book.promise > book.jobs.last_slot))
        result = []
        for row in rows.tolist():
            job = book.table.jobs[row]
            assert job is not None
            if book.promise[row] > book.final:
                result.append(row)
                continue
            ends = np.array([book.promise[row], book.jobs.last_slot[row]]) - job.arrival
            promised, last = job.utility.values(np.maximum(ends, 0).astype(np.float64))
            # A promise just beyond the last useful slot stays.
            if promised < 0.5 * last or not last:
                result.append(row)
        return result

    def _mend(self, row: int, why: str, slot: int | None = None) -> Promise:
        """Return a new promise for a job whose promise can't be kept, or withdraw it.

        With ``slot``, the promise gets the slack of a new job; otherwise it is the completion slot
        that was tried.
        """
        name = self._book.name(row)
        offer = self._planner.offer(row, np.zeros(2))
        if offer is None or not self._planner.take(row, offer):
            return Promise(name, None, message=f"{why}: it waits")
        end = offer.end if slot is None else self._promise_slot(slot, row, offer)
        self._book.promise[row] = end
        return Promise(name, end, offer.done, offer.utility, offer.utility, message=why)

    @property
    def _copies(self) -> Copies:
        """Decisions about bags; the object keeps no state."""
        return Copies(
            self._cluster,
            self._book.until,
            self._bags,
            self._planner,
            self._demand.copy_cost,
            revision=self._parameters.revision,
            standby=self._parameters.standby,
        )

    @property
    def _evidence(self) -> Evidence:
        """Check of a promise's size against known demand; the object keeps no state."""
        return Evidence(
            self._book, self._pools, self._quotas, self._demand.learners, self._parameters
        )


def build(context: PolicyContext, parameters: RollingParameters) -> Rolling:
    """Build the policy. Raises `InputError` if tenants' shares exceed the servers' capacity."""
    if parameters.quota:
        check_shares(context.cluster)
    return Rolling(context, parameters)


def _seems_endless(view: View, state: JobState, slot: int) -> bool:
    """Return whether a running job has overrun so far that it may never end."""
    placement = view.running(state.job.name)
    if placement is None:
        return False
    gain = state.job.gain(placement.total_workers, colocated=placement.colocated)
    stated = -(-state.job.required // gain)
    return slot - state.generation_slot >= _ENDLESS * stated
