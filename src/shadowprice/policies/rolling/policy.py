"""`rolling`: promises at submission, plans revised at learnt prices, nothing left idle."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Sequence
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.events import (
    Decision,
    Drop,
    JobsArrived,
    PolicyEvent,
    Promise,
    Queue,
    Reject,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, JobState, PolicyContext, Status, View
from shadowprice.core.quote import Quote
from shadowprice.core.refusal import Reason, Refusal
from shadowprice.kernels.revision.coming import (
    Terms,
    densities,
    due,
    dues,
    fill,
    plan_waiting,
)
from shadowprice.kernels.revision.timeline import Timeline
from shadowprice.policies.reactive.base import Reactive
from shadowprice.policies.rolling.bags import BagBook
from shadowprice.policies.rolling.book import Book
from shadowprice.policies.rolling.copies import Copies
from shadowprice.policies.rolling.demand import Demand
from shadowprice.policies.rolling.evidence import Evidence
from shadowprice.policies.rolling.parameters import RollingParameters
from shadowprice.policies.rolling.planner import Offer, Planner
from shadowprice.policies.rolling.prices import Pools
from shadowprice.policies.rolling.quotas import check_shares, quotas_of
from shadowprice.policies.rolling.reasons import (
    crowded,
    dear,
    past_end,
    too_late,
    unsettled,
    worthless,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_ENDLESS: Final = 3
"""A generation that has run this many times as long as its job states seems to never end."""

_FEW: Final = 16
"""Waiting jobs, at most, that are laid out together: more are a rush, for which promised jobs had
better keep their slack, and which costs most to lay out."""

_FELL_SHORT: Final = "less was done than was planned"

_REVISED: Final = "it was revised, and would be worth nothing by when it was promised"

_PAST_END: Final = "the timespan ends before the slot that it was promised for"

_ENDED: Final = "the timespan ended"

_NEARLY_ALL: Final = 0.999
"""Share of a slot that a start or a move costs at most: what begins now goes on in the next slot,
so it is worth more than a server that stands idle, though it comes to nothing in this one."""


class Rolling(Reactive[RollingParameters]):
    """Promises what it can keep, and revises how it keeps it; see ``docs/policies/rolling.md``.

    Jobs that arrive together are considered together, the one that earns most by its share first.
    Each is promised the completion of largest payoff at the learnt shadow prices if its utility is
    above what it costs and all promises can be kept together; otherwise it waits. When a slot
    begins, promised jobs are laid out with the fewest workers that keep their promises, waiting
    jobs in what that leaves, and what is left of the slot goes where it brings most.

    Parameters
    ----------
    context : PolicyContext
        The cluster; the job set is not looked at.
    parameters : RollingParameters
        What was set.
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
        """Keep the prices as learnt."""
        self._demand.recall(before._demand)

    def _take_up(self, view: View, state: JobState, before: Self) -> None:
        """Take in a job with its promise and where it stands."""
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
        """Forget a training job, if the policy knows it."""
        self._planner.stays.remove(self._book.table.rows.get(name, -1))
        self._book.remove(name)

    def _displace(self, view: View, names: Sequence[str]) -> None:
        del view
        for name in names:
            self._planner.stays.remove(self._book.table.rows.get(name, -1))
            self._book.clear(name)
            self._bags.lose_plan(name, "servers were lost")

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
        if not isinstance(event, JobsArrived):  # their plans are laid out already
            self._laid_out_for = None
        yield from ()

    def slot_prices(self, view: View) -> NDArray[np.float64]:
        """Return the price of all of each server's resources in the coming slot."""
        return self._pools.of_servers(self._demand.price(view.slot))

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return what would be decided about a job if it arrived now; leaves no trace."""
        del explained  # the reason comes with the decision
        shared = (self._cluster, *self._book.table.jobs, *self._bags.jobs.values())
        twin = copy.deepcopy(self, {id(part): part for part in shared})
        decision = next(
            decision for decision in twin._arrive(view, (job,)) if decision.job == job.name
        )
        return Quote.of(decision, view.slot)

    # ---------------------------------------------------------------- submission

    def _arrive(self, view: View, jobs: Sequence[Job]) -> Iterator[Decision]:
        """Answer jobs that arrive together, the one that earns most by its share first."""
        slot = view.slot
        # A live job may make less than it states: what it could do without is its margin there.
        yield from self._lay_out(view, slot, least=not self._parameters.steady)
        training = [job for job in jobs if job.bag is None]
        for job in training:
            self._book.add(job)
        self._planner.reserve()
        rows = {job.name: self._book.table.rows[job.name] for job in training}
        if len(jobs) > 1:
            rated = self._densities(slot, jobs, list(rows.values()))
            jobs = sorted(jobs, key=lambda job: -rated[job.name])
        for job in jobs:
            if job.bag is None:
                yield self._answer(slot, job, rows[job.name])
            else:
                yield self._copies.answer(slot, job, self._pools.capacity())
        for job in jobs:  # nobody bids against himself
            self._demand.learn(job, slot)

    def _densities(self, slot: int, jobs: Sequence[Job], rows: Sequence[int]) -> dict[str, float]:
        """Return what each of some jobs earns by its share; rows are those of training jobs."""
        weight = self._demand.weights(slot, self._book.jobs)
        found, _ = densities(self._book.jobs, np.array(rows, np.int64), slot, weight)
        rated = {self._book.name(row): value for row, value in zip(rows, found, strict=True)}
        for job in jobs:
            if job.bag is not None:
                rated[job.name] = self._copies.density(
                    slot, job, self._demand.copy_weight(slot, job)
                )
        return rated

    def _answer(self, slot: int, job: Job, row: int) -> Decision:
        """Return a promise if the job is worth its price; else whether it waits."""
        done = slot + job.fastest_slots - 1
        if self._book.jobs.last[row] < done:
            self._forget(job.name)
            ends = self._book.ends_first(job, done)
            return Reject(job.name, past_end(job, slot) if ends else worthless(job, slot))
        answer = self._promise_for(slot, row)
        if isinstance(answer, Promise):
            return answer
        # What even the whole cluster cannot do in time it will not do by waiting.
        hopeless = (
            answer.reason is Reason.TOO_LATE
            and self._pools.whole
            and not self._book.loss[row]
            and not self._quotas.given  # it may run on what others leave
        )
        if self._parameters.standby and not hopeless:
            return Queue(job.name, f"waits without a promise: {answer.message}")
        self._forget(job.name)
        return Reject(job.name, answer)

    def _promise_for(self, slot: int, row: int) -> Promise | Refusal:
        """Return a promise for a new job and keep its plan, or why there is none."""
        price = self._demand.costs(slot, self._book.jobs, np.array([row]))[0]
        found = self._planner.offer(row, price)
        lightly = False  # it is worth its price, but that says little
        if found is not None and found.utility > found.cost:
            lightly = not self._evidence.suffices_for(slot, row, found)
            if not lightly and self._planner.take(row, found):
                return self._promise(slot, row, found)
        best = self._planner.alone(slot, row, price)
        if best is None and self._book.loss[row] >= self._parameters.restart_limit:
            return unsettled(self._book.loss[row], self._parameters.restart_limit)
        if best is None:
            return too_late(
                self._book.name(row),
                slot,
                shares=self._quotas.given,
                ends=self._book.until is not None,
            )
        if best.utility <= best.cost:
            return dear(best)
        if not self._evidence.suffices_for(slot, row, best):
            return self._evidence.refusal(slot, row, best)
        obstacle: int | None = None
        if self._parameters.revision:
            obstacle = self._planner.admits(slot, row, self._promise_slot(slot, row, best))
            if obstacle is None:
                return self._promise(slot, row, best)
        if found is not None:
            return self._evidence.refusal(slot, row, found) if lightly else dear(found)
        holder = None if obstacle is None or obstacle == row else self._book.name(obstacle)
        return crowded(best, holder, self._planner.earliest(row))

    def _promise(self, slot: int, row: int, found: Offer) -> Promise:
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
        """Return the last slot that is worth as much as the one planned, within reason."""
        horizon, slack = self._cluster.horizon, self._parameters.slack
        return int(due(self._book.jobs, row, slot, found.done, horizon, slack))

    # ---------------------------------------------------------------- the coming slot

    def _begin(self, view: View) -> Iterator[Decision]:
        slot = view.slot
        book = self._book
        idle = not book.table.rows and not self._bags.jobs
        if idle:
            return
        if book.until is not None and slot >= book.until:
            yield from self._take_back_promises()
            return
        # Laid out while the slot before was under way: now it is known. Or for who might come: now
        # those who stay may as well stay as they are.
        if self._expected or self._leanly:
            self._laid_out_for = None
        yield from self._lay_out(view, slot)
        weight = self._demand.weights(slot, self._book.jobs)
        yield from self._give_up(view, slot)
        yield from self._revise_bags(view, slot)
        rows = book.table.in_order()
        waiting = rows[book.promise[rows] < 0]
        rated, _ = densities(book.jobs, waiting, slot, weight)
        waiting = waiting[np.argsort(-rated, kind="stable")]
        crowd = len(waiting) > self._parameters.waiting
        waiting = waiting[: self._parameters.waiting]
        result = yield from self._plan_waiting(slot, waiting)
        if (yield from self._plan_bags(slot, free=True)):
            # Everything was laid out around what starts: who waits is planned in what is left.
            waiting = waiting[book.promise[waiting] < 0]
            result = self._plan(slot, waiting, self._planner.layout.line)
        planned = result[:, 0] >= 0
        if not (crowd or self._quotas.given or self._parameters.steady):
            together = self._lay_out_together(slot, waiting, result)
            planned = planned if together is None else together
        layout = self._planner.layout
        line = layout.line
        if self._quotas.given:
            # Tenants come first in their shares; only then may others have what is left of them.
            self._fill(slot, rows, weight, line)
            line = line._replace(share=self._quotas.share[:0])
            self._plan(slot, waiting[~planned & (layout.log.level[waiting] < 0)], line)
        self._fill(slot, rows, weight, line)
        yield from self._copies.let_go(view)
        yield from self._stand(slot, rows, weight)
        yield from self._copies.start(slot)

    def _take_back_promises(self) -> Iterator[Decision]:
        """Take back every promise: the timespan is over, and nothing runs."""
        rows = self._book.table.in_order()
        for row in rows[self._book.promise[rows] >= 0].tolist():
            self._book.promise[row] = -1
            yield Promise(self._book.name(row), None, message=f"{_ENDED}: it waits")

    def _revise_bags(self, view: View, slot: int) -> Iterator[Decision]:
        """Give up, promise and move bags of tasks before waiting jobs are planned."""
        if self._bags.jobs:
            yield from self._copies.give_up(view)
            self._copies.advance(slot, self._pools.capacity())
            yield from self._plan_bags(slot, free=False)

    def _plan_bags(self, slot: int, *, free: bool) -> Generator[Decision, None, bool]:
        """Plan waiting bags; return whether any was promised. See `Copies.plan_waiting`."""
        promised = False
        for made in self._copies.plan_waiting(
            slot, self._pools.capacity(), lambda job: self._demand.copy_weight(slot, job), free=free
        ):
            promised = True
            yield made
        return promised

    def _fill(self, slot: int, rows: Integers, weight: Floats, line: Timeline) -> None:
        """Deal out what is left of the slot that begins."""
        if not self._parameters.spare:
            return
        book = self._book
        _, value = densities(book.jobs, rows, slot, weight)
        terms = self._terms(slot, weight)
        fill(line, book.jobs, rows, value, terms, self._planner.layout.log)

    def _terms(self, slot: int, weight: Floats) -> Terms:
        """Return by what it is weighed who gets what is left of the slot that begins."""
        book = self._book
        # What each row loses of the slot if its placement changes.
        loss = np.minimum(book.loss, _NEARLY_ALL) * book.started
        return Terms(weight, loss, book.standing, self._planner.barred(slot))

    def _use_up(self, slot: int, rows: Integers, weight: Floats, free: Integers) -> None:
        """Deal out what is left on servers: to whole jobs that stand there, then to who waits."""
        if not self._parameters.spare:
            return
        book, log = self._book, self._planner.layout.log
        for some, deal in (
            (rows[log.level[rows] >= book.jobs.spread[rows]], book.table.grow),
            (rows[log.level[rows] < 0], book.table.seat),
        ):
            if len(some):
                _, value = densities(book.jobs, some, slot, weight)
                deal(free, book.jobs, some, value, self._terms(slot, weight), log)

    def _give_up(self, view: View, slot: int) -> Iterator[Decision]:
        """Drop waiting jobs that can't complete any more while they are worth anything.

        A job that only the end of the timespan keeps from completing waits if the end can move.
        """
        book, jobs = self._book, self._book.jobs
        rows = book.table.in_order()
        rows = rows[book.promise[rows] < 0]
        fastest = np.maximum(book.most_gain(rows), book.fastest[rows])
        slots = -(-jobs.left[rows] // fastest)
        done = slot + slots - 1
        late = np.flatnonzero(jobs.last[rows] < done)
        for row, first in zip(rows[late].tolist(), done[late].tolist(), strict=True):
            name = book.name(row)
            state = view.open_jobs[name]
            if self._context.end_moves and book.ends_first(state.job, first):
                continue
            if view.pinned(name) and not _seems_endless(view, state, slot):
                continue
            refusal = worthless(state.job, slot)
            self._forget(name)
            yield (Drop if state.status is Status.ADMITTED else Reject)(name, refusal)

    def _plan(self, slot: int, rows: Integers, line: Timeline) -> Floats:
        """Plan waiting jobs in what is left of a timeline; see `plan_waiting`."""
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
        """Plan waiting jobs in what promises leave; promise what is worth its price.

        Returns
        -------
        ndarray of float64, shape (jobs, 5)
            What was planned; see `plan_waiting`.
        """
        layout = self._planner.layout
        result = self._plan(slot, rows, layout.line)
        promised = (result[:, 0] >= 0) & (result[:, 2] > result[:, 3]) & (result[:, 4] > 0.0)
        promised[promised] = self._evidence.suffices(slot, rows[promised], result[promised, 2])
        for at in np.flatnonzero(promised).tolist():
            end, done, value, cost = result[at, :4].tolist()
            yield self._promise(slot, int(rows[at]), Offer(int(end), 0, int(done), value, cost))
        layout.order = np.concatenate((layout.order, rows[promised]))
        return result

    def _lay_out_together(self, slot: int, waiting: Integers, result: Floats) -> Flags | None:
        """Lay all open jobs out by what they are due, where all have room and so earn more.

        One by one, the densest first, each takes the slots that suit it, and one that could have
        waited stands in the way of one that could not. Nobody is promised anything by this.

        Returns
        -------
        ndarray of bool, shape (waiting,), or None
            Who is laid out now, and nobody else who waits; None where plans stay as they are.
        """
        book = self._book
        # Where all had no room, they have none until somebody is gone.
        crowd = self._too_many
        if not self._parameters.together or (crowd is not None and crowd <= book.table.rows.keys()):
            return None
        self._too_many = None
        alone = np.zeros(len(waiting))
        by = np.zeros(len(waiting), np.int64)
        horizon, slack = self._cluster.horizon, self._parameters.slack
        dues(book.jobs, waiting, slot, horizon, slack, by, alone)
        left = (book.promise[waiting] < 0) & (alone > 0.0)
        planned = np.where(result[:, 0] >= 0, result[:, 2], 0.0)
        more = alone[left].sum() * (1.0 - slack) > planned[left].sum()
        if not more or left.sum() > _FEW:
            return None
        with book.hopeful(waiting[left]):
            if self._planner.fits(slot, waiting[left], by[left]):
                return left
        self._too_many = frozenset(book.table.rows)
        return None

    def _stand(self, slot: int, rows: Integers, weight: Floats) -> Iterator[Decision]:
        """Put what was packed on servers, moving as little as possible."""
        book, table, log = self._book, self._book.table, self._planner.layout.log
        stays = self._planner.stays
        fixed, least = stays.fixed()
        for stay in (True, False):
            free = self._pools.capacity()
            if self._bags.plans:
                free -= self._bags.held(slot)
            if table.put(free, book.jobs, log, fixed, least, stay=stay):
                break
        self._use_up(slot, rows, weight, free)
        staying = np.zeros(len(rows), np.bool_)
        if stays.plans:
            for row in rows[table.moves(rows)].tolist():
                if stays.cannot_move(slot, row, int(log.level[row])):
                    table.put_back(row, fixed)
                    log.level[row] = least[row]
            staying = np.isin(rows, list(stays.plans)) & ~table.moves(rows)
        book.stood(rows, log.level[rows], staying)
        yield from table.rearrange(rows)

    # ---------------------------------------------------------------- shared steps

    def _lay_out(self, view: View, slot: int, *, least: bool = False) -> Iterator[Decision]:
        """Lay promised jobs out from a slot on, once a slot; tell of promises that broke."""
        if self._laid_out_for == slot:
            return
        self._expected = self._book.refresh(view)
        self._bags.refresh(view, self._pools.capacity())
        parameters = self._parameters
        late = self._worthless()
        past_end = {row for row in late if self._book.promise[row] > self._book.final}
        for row in late:
            self._planner.stays.remove(row)
        self._book.promise[late] = -1
        broken = self._planner.renew(
            slot, revise=parameters.revision, steady=parameters.steady, least=least
        )
        self._laid_out_for = slot
        self._leanly = least and bool((self._book.loss[self._planner.owed()] > 0.0).any())
        self._book.promise[broken] = -1
        for row in late:
            yield self._mend(row, _PAST_END if row in past_end else _REVISED, slot)
        for row in broken:
            yield self._mend(row, _FELL_SHORT)
        if self._bags.broken:
            yield from self._copies.mend(slot, self._pools.capacity())

    def _worthless(self) -> list[int]:
        """Return the rows whose promise is past the end, or worth nothing since a revision."""
        book = self._book
        rows = np.flatnonzero(self._planner.owed() & (book.promise > book.jobs.last))
        found = []
        for row in rows.tolist():
            job = book.table.jobs[row]
            assert job is not None
            if book.promise[row] > book.final:
                found.append(row)
                continue
            ends = np.array([book.promise[row], book.jobs.last[row]]) - job.arrival
            promised, last = job.utility.values(np.maximum(ends, 0).astype(np.float64))
            if promised < 0.5 * last or not last:  # not only a little beyond what counts
                found.append(row)
        return found

    def _mend(self, row: int, why: str, slot: int | None = None) -> Promise:
        """Return a new promise for a job whose old one cannot be kept, or take it back.

        From a slot on it is the last that is worth as much as the one planned, else that one.
        """
        name = self._book.name(row)
        found = self._planner.offer(row, np.zeros(2))
        if found is None or not self._planner.take(row, found):
            return Promise(name, None, message=f"{why}: it waits")
        end = found.end if slot is None else self._promise_slot(slot, row, found)
        self._book.promise[row] = end
        return Promise(name, end, found.done, found.utility, found.utility, message=why)

    @property
    def _copies(self) -> Copies:
        """What decides about bags; it remembers nothing itself."""
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
        """What is known of others' demand; it remembers nothing itself."""
        return Evidence(
            self._book, self._pools, self._quotas, self._demand.learners, self._parameters
        )


def build(context: PolicyContext, parameters: RollingParameters) -> Rolling:
    """Build the policy, as the registry asks."""
    if parameters.quota:
        check_shares(context.cluster)
    return Rolling(context, parameters)


def _seems_endless(view: View, state: JobState, slot: int) -> bool:
    """Return whether a running job has overrun so far that it may never end by itself."""
    placement = view.running(state.job.name)
    if placement is None:
        return False
    gain = state.job.gain(placement.total_workers, colocated=placement.colocated)
    stated = -(-state.job.required // gain)
    return slot - state.generation_slot >= _ENDLESS * stated
