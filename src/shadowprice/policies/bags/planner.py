"""Best plan of a bag of tasks at current prices, and the reasons of refusals.

A plan starts all remaining tasks in one slot, each task in one or more copies. It promises that all
tasks finish by the end of a later slot, except with a small probability (the *miss probability*). A
*unit* is the capacity for one copy. Its cost depends on the slot and on the number of units there.
Design note 0009 has the model.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from shadowprice.cloning.problem import (
    CloningProblem,
    DeadlineConstraint,
    TaskGroup,
    add_copies_greedily,
    min_feasible_deadline,
)
from shadowprice.core.amounts import format_seconds
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.bag import Bag, TaskCopies
from shadowprice.core.job import Job
from shadowprice.core.policy import Status, View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import Schedule
from shadowprice.distributions.empirical import build_distribution
from shadowprice.kernels.cloning.bags import cheapest_copies, copy_costs, reserve
from shadowprice.kernels.cloning.continuous import min_copies
from shadowprice.kernels.slots.costs import expand_choices, slot_costs
from shadowprice.policies.placements import fit_counts
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.offers import BoardUse, PricedJob, PricedOffer, ResourceBottleneck


class ProportionalCosts:
    """Costs at one price per unit in all slots; ``fit_counts`` units fit in each slot."""

    def __init__(self, price: float, fit_counts: Integers) -> None:
        self._price = price
        self.limit = int(fit_counts.max(initial=0))  # maximum units in a slot
        # If the cost overflows, no unit fits.
        is_payable = math.isfinite(self.limit * price)
        self.fit_counts = fit_counts if is_payable else np.zeros_like(fit_counts)
        self.kind = self.fit_counts  # slots of equal kind have equal costs

    def cost(self, slots: Integers, units: Integers) -> Floats:
        """Return the cost of numbers of units in slots (broadcast); infinite if they don't fit."""
        return np.where(units <= self.fit_counts[slots], units * self._price, np.inf)


class TabulatedCosts:
    """Costs from a table by state and number of units; infinite if they don't fit.

    ``state`` is the row of each slot; by default, each slot has its own row.
    """

    def __init__(self, table: Floats, state: Integers | None = None) -> None:
        self._table = table
        self._state = np.arange(len(table)) if state is None else state
        self.limit = table.shape[1] - 1
        self.fit_counts = (np.isfinite(table).sum(axis=1) - 1)[self._state]
        kind_of_row: dict[bytes, int] = {}
        kinds = [kind_of_row.setdefault(row.tobytes(), len(kind_of_row)) for row in table]
        self.kind = np.array(kinds, np.int64)[self._state]

    def cost(self, slots: Integers, units: Integers) -> Floats:
        """Return the cost of numbers of units in slots (broadcast); infinite if they don't fit."""
        return np.asarray(self._table[self._state[slots], units])


RESERVE_SHARE = 0.1
"""Share of the miss probability for the case that later slots have too few reserved units."""

MAX_COPIES = 64  # maximum number of copies of a task, unless the deadline needs more
_MAX_PRICE_ROUNDS = 6  # times that copies are chosen again, at the average prices of the plan
MAX_LISTED = 4000  # maximum number of combinations of copies that are enumerated

_MAX_DECAY = 700.0  # e^-700 is about 0 in double precision
_SLACK = 1.0 + 1e-12  # tolerated rounding errors of a sum that must not exceed the budget


UnitCosts = ProportionalCosts | TabulatedCosts


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Copies of all remaining tasks, and the units reserved for them."""

    start: int  # from 0, the first usable slot
    promise: int  # likewise: slot by whose end all tasks finish, except with the miss probability
    copies: tuple[TaskCopies, ...]  # of every task
    places: Integers  # reserved units in each slot from ``start`` on, without zeros at the end
    cost: float  # infinite if the units don't fit
    short: int = 0  # units that don't fit, over all slots
    loss_at_most: float = 0.0
    """Upper bound of the best plan's payoff less this plan's; 0 if this plan is proved the best."""


class RequiredCopies(NamedTuple):
    """The minimum copies that keep a promise, from `min_copies`."""

    decay: Floats  # -ln of the probability that a copy runs longer than the promise, by group
    copies: Integers  # copies of every task, by group
    total: int  # all copies; 0 if no number of copies keeps the promise
    extra_group: int  # group in which some tasks have one more copy; -1 for none


@dataclass
class BagPlanner:
    """Finds the plan with the largest payoff. Slots count from 0, the first usable slot."""

    bag: Bag
    remaining: Sequence[int]  # remaining tasks by group
    elapsed: int  # slots from the arrival slot to the first usable slot
    costs: UnitCosts  # in each usable slot
    utility: Floats  # of completion in each usable slot
    miss_probability: float  # maximum probability that the promise is broken
    _bounds: dict[tuple[float, ...], tuple[float, tuple[TaskCopies, ...] | None]] = field(
        init=False, default_factory=dict
    )
    _plans: dict[tuple[float, ...], tuple[CopyPlan | None, bool]] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._groups = [g for g, count in enumerate(self.remaining) if count]
        self._count = np.array([self.remaining[g] for g in self._groups], dtype=np.int64)
        self._distributions = [
            build_distribution(self.bag.groups[g].distribution) for g in self._groups
        ]
        self._tasks = int(self._count.sum())
        slots = len(self.utility)
        times = np.arange(slots, dtype=np.float64) * self.bag.slot_seconds
        self._log_survival = np.stack(
            [distribution.log_survival(times) for distribution in self._distributions]
        )
        self._log_survival[:, 0] = 0.0  # all copies run at the start, whatever S(0) is
        self._fit_counts, self._kinds = self.costs.fit_counts, self.costs.kind.tolist()
        share = self.miss_probability * (1.0 - RESERVE_SHARE)
        self._budget = -math.log1p(-share)  # C of CSD's constraint (6)
        self._required: dict[float, RequiredCopies] = {}  # by the time from start to promise

    def best(self, factor: float = 1.0) -> CopyPlan | None:
        """Return the plan with the largest payoff, None if no plan meets the deadline.

        ``factor`` multiplies every utility.
        """
        best: CopyPlan | None = None
        best_payoff = -math.inf
        ceiling = -math.inf  # upper bound of the payoffs of plans that aren't proved the best
        # Best-first search by a quick bound, then by a close one. Bounds and promises are negated,
        # so that the heap pops large bounds first, then early starts, then late promises.
        queue = [
            (-bound, start, -promise, False) for bound, start, promise in self._promises(factor)
        ]
        heapq.heapify(queue)
        while queue:
            bound, start, negative_promise, is_close = heapq.heappop(queue)
            if best is not None and -bound <= best_payoff:
                break
            utility = factor * float(self.utility[-negative_promise])
            if not is_close:
                min_cost, _ = self._min_cost(start, -negative_promise)
                heapq.heappush(
                    queue, (max(bound, min_cost - utility), start, negative_promise, True)
                )
                continue
            plan, proved = self._plan(start, -negative_promise)
            if not proved:
                ceiling = max(ceiling, -bound)
            if plan is not None and (best is None or utility - plan.cost > best_payoff):
                best, best_payoff = plan, utility - plan.cost
        return None if best is None else replace(best, loss_at_most=max(0.0, ceiling - best_payoff))

    def min_units(self, promise: int) -> int | None:
        """Return the minimum units that keep a promise from slot 0 on, None if none do."""
        required = self._required_copies(0, promise)
        return None if required is None else required.total

    def room(self, start: int) -> int:
        """Return the number of units that fit in a slot."""
        return int(self._fit_counts[start])

    def _promises(self, factor: float) -> Iterator[tuple[float, int, int]]:
        """Yield (upper bound of the payoff, start, promise) for each pair that may be feasible."""
        pairs = []
        for promise in range(len(self.utility)):
            for start in range(promise, -1, -1):
                if not self._fit_counts[start]:
                    break  # copies run through all slots from the start on
                required = self._required_copies(start, promise)
                if required is not None and required.total <= self._fit_counts[start]:
                    pairs.append((start, promise, required.total))
        if pairs:
            starts, promises, units = np.array(pairs, np.int64).T
            bounds = factor * self.utility[promises] - self.costs.cost(starts, units)
            yield from zip(bounds.tolist(), starts.tolist(), promises.tolist(), strict=True)

    def _unit_prices(self, start: int, promise: int) -> Floats:
        """Return the cost of the first unit in each slot from a start to a promise."""
        slots = np.arange(start, promise + 1)
        return self.costs.cost(slots, np.ones_like(slots))

    def _required_copies(self, start: int, promise: int) -> RequiredCopies | None:
        """Return the minimum copies that keep a promise, None if no number of copies does."""
        time = min(promise + 1.0, self.bag.deadline - self.elapsed) - start
        required = self._required.get(time)
        if required is None:
            seconds = time * self.bag.slot_seconds
            decay = np.array(
                [-float(distribution.log_survival(seconds)) for distribution in self._distributions]
            )
            decay = np.minimum(decay, _MAX_DECAY)
            copies = np.ones(len(decay), dtype=np.int64)
            used, extra = 0, -1
            if decay.min() > 0.0:
                places = self.costs.limit
                budget = self._budget * _SLACK
                phi, used, extra = min_copies(self._count, decay, places, False, budget, copies)
                used = int(used) if phi <= budget and used <= places else 0
            required = self._required[time] = RequiredCopies(decay, copies, used, int(extra))
        return required if required.total else None

    # ---------------------------------------------------------------- one start and promise

    def _key(self, start: int, promise: int) -> tuple[float, ...]:
        """Return a cache key; pairs of equal keys have equal times and costs, so equal plans."""
        time = min(promise + 1.0, self.bag.deadline - self.elapsed) - start
        return (time, *self._kinds[start : promise + 1])

    def _min_cost(self, start: int, promise: int) -> tuple[float, tuple[TaskCopies, ...] | None]:
        """Return a lower bound on a plan's cost, and the copies with the least expected cost."""
        key = self._key(start, promise)
        if key not in self._bounds:
            price = self._unit_prices(start, promise)
            self._bounds[key] = self._cheapest(start, promise, price)
        return self._bounds[key]

    def _plan(self, start: int, promise: int) -> tuple[CopyPlan | None, bool]:
        """Return the cheapest plan found, and whether it is proved the cheapest."""
        key = self._key(start, promise)
        if key not in self._plans:
            best = self._search(start, promise)
            max_copies = self._max_copies(start)
            ways = (math.comb(count + max_copies - 1, count) for count in self._count.tolist())
            proved = math.prod(ways) <= MAX_LISTED
            if proved:
                best = self._enumerate(start, promise, best)
            self._plans[key] = best, proved
        plan, proved = self._plans[key]
        return None if plan is None else replace(plan, start=start, promise=promise), proved

    def _max_copies(self, start: int) -> int:
        """Return the maximum copies of one task if every other task has one copy."""
        return int(self._fit_counts[start]) - self._tasks + 1

    def _enumerate(self, start: int, promise: int, best: CopyPlan | None) -> CopyPlan | None:
        """Return the cheapest of all plans, by best-first enumeration; ``best`` is the best so far.

        The lower bound of a combination of copies is the cost of all copies in the first slot, plus
        the cost of the expected running copies, rounded down, in later slots. A reservation never
        has fewer units.
        """
        required = self._required_copies(start, promise)
        assert required is not None
        decay = required.decay
        window = slice(start, promise + 1)
        slots, survival = (
            np.arange(start, promise + 1),
            self._log_survival[:, : promise + 1 - start],
        )
        max_copies = self._max_copies(start)
        combinations: list[tuple[tuple[int, ...], ...]] = [()]
        totals, misses, alive = np.zeros(1), np.zeros(1), np.zeros((1, len(slots)))
        for index, count in enumerate(self._count.tolist()):
            choices = list(combinations_with_replacement(range(1, max_copies + 1), count))
            copies = np.array(choices, dtype=np.float64)
            with np.errstate(divide="ignore"):
                phi = -np.log1p(-np.exp(-decay[index] * copies)).sum(axis=1)
            running = (copies[:, :, None] * np.exp(copies[:, :, None] * survival[index])).sum(
                axis=1
            )
            combinations = [
                (*combination, choice) for combination in combinations for choice in choices
            ]
            totals = (totals[:, None] + copies.sum(axis=1)).ravel()
            misses = (misses[:, None] + phi).ravel()
            alive = (alive[:, None] + running).reshape(-1, len(slots))
        # Rounding errors must not raise the bound above the reservation.
        places = np.floor(alive * (1 - 1e-12)).astype(np.int64)
        places[:, 0] = totals
        fits = (misses <= self._budget * _SLACK) & (places <= self._fit_counts[window]).all(axis=1)
        rows = np.flatnonzero(fits)
        bounds = self.costs.cost(slots, places[rows]).sum(axis=1)
        for index in np.argsort(bounds, kind="stable").tolist():
            if best is not None and bounds[index] >= best.cost:
                break
            entries = tuple(
                TaskCopies(self._groups[group], tasks, copies)
                for group, choices in enumerate(combinations[rows[index]])
                for copies, tasks in sorted(Counter(choices).items())
            )
            plan = self._reserve_copies(start, promise, entries)
            if not plan.short and (best is None or plan.cost < best.cost):
                best = plan
        return best

    def _search(self, start: int, promise: int) -> CopyPlan | None:
        """Return the cheapest plan found by iterated prices, None if no tried plan fits."""
        _, copies = self._min_cost(start, promise)
        window = slice(start, promise + 1)
        slots, price = np.arange(start, promise + 1), self._unit_prices(start, promise)
        candidates = dict.fromkeys(
            [self._min_copies(start, promise)] + ([copies] if copies else [])
        )
        plans = {given: self._reserve_copies(start, promise, given) for given in candidates}
        best = min(plans.values(), key=lambda plan: (plan.cost, plan.short))
        for _ in range(_MAX_PRICE_ROUNDS):
            # Use the average price of the plan's units, because further units of a slot cost
            # more. A slot in which the units don't fit gets several times the price, even if it is
            # free.
            needed = np.maximum(_pad(best.places, len(price)), 1)
            available = self._fit_counts[window]
            fits = np.minimum(needed, available)
            average = self.costs.cost(slots, fits) / fits
            penalty = 4.0 * np.maximum(np.maximum(price, average), 1e-6 * max(price.max(), 1.0))
            target = np.where(needed > available, penalty, average)
            if np.allclose(target, price, rtol=1e-9, atol=0.0):
                break
            price = target
            _, copies = self._cheapest(start, promise, price)
            if copies is None or copies in plans:
                break
            plans[copies] = self._reserve_copies(start, promise, copies)
            best = min(plans.values(), key=lambda plan: (plan.cost, plan.short))
        return None if best.short else best

    def _cheapest(
        self, start: int, promise: int, price: Floats
    ) -> tuple[float, tuple[TaskCopies, ...] | None]:
        """Return a lower bound on a plan's cost at these prices, and the cheapest copies."""
        required = self._required_copies(start, promise)
        assert required is not None
        decay = required.decay
        places = int(self._fit_counts[start])
        max_price = float(price.max())
        # Free slots get a tiny weight, so that of equally cheap plans the fewest copies win.
        floor = 1e-9 * max_price
        weight = np.maximum(price, floor) / max_price if max_price > 0.0 else np.ones(len(price))
        max_copies = min(max(MAX_COPIES, 2 * int(required.copies.max())), places - self._tasks + 1)
        survival = np.ascontiguousarray(self._log_survival[:, : len(price)])
        table = copy_costs(survival, weight, max_copies)
        copies = np.empty(len(decay), dtype=np.int64)
        change = np.empty(4, dtype=np.int64)
        feasible, bound = cheapest_copies(
            self._count, table, decay, self._budget, places, copies, change
        )
        bound_cost = 0.0
        if max_price > 0.0 and (price >= floor).all():
            # A reservation has at least the expected copies, rounded down: less than 1 unit fewer
            # in each later slot.
            bound_cost = max(max_price * float(bound) - float(price[1:].sum()), 0.0) * (1 - 1e-9)
        return bound_cost, self._entries(copies, change) if feasible else None

    def _entries(self, copies: Integers, change: Integers) -> tuple[TaskCopies, ...]:
        """Return the copies of all tasks; see `cheapest_copies` for ``copies`` and ``change``."""
        group, number, high, last = change.tolist()
        entries = []
        for index, base in enumerate(copies.tolist()):
            parts = {base: int(self._count[index])}
            if index == group:
                parts[base] -= number + 1
                parts[high] = parts.get(high, 0) + number
                parts[last] = parts.get(last, 0) + 1
            entries += [
                TaskCopies(self._groups[index], tasks, copy_count)
                for copy_count, tasks in sorted(parts.items())
                if tasks
            ]
        return tuple(entries)

    def _min_copies(self, start: int, promise: int) -> tuple[TaskCopies, ...]:
        """Return the fewest copies that keep a promise."""
        required = self._required_copies(start, promise)
        assert required is not None
        _, copies, total, group = required
        extra = total - int(self._count @ copies)
        if group < 0 or not extra:
            return self._entries(copies, np.array([-1, 0, 0, 0]))
        more = int(copies[group]) + 1
        return self._entries(copies, np.array([group, extra - 1, more, more]))

    def _reserve_copies(self, start: int, promise: int, copies: tuple[TaskCopies, ...]) -> CopyPlan:
        slots = promise - start + 1
        rows = [self._groups.index(entry.group) for entry in copies]
        # Each slot after the first may have too few units with the same probability.
        level = self.miss_probability * RESERVE_SHARE / max(slots - 1, 1)
        places = reserve(
            np.array([entry.tasks for entry in copies], dtype=np.int64),
            np.array([entry.copies for entry in copies], dtype=np.int64),
            np.ascontiguousarray(self._log_survival[rows, :slots]),
            level,
        )
        places = places[places > 0]
        short = int(np.maximum(places - self._fit_counts[start : start + len(places)], 0).sum())
        if short:
            return CopyPlan(start, promise, copies, places, math.inf, short)
        paid = self.costs.cost(np.arange(start, start + len(places)), places)
        return CopyPlan(start, promise, copies, places, float(paid.sum()))


def _pad(places: Integers, slots: int) -> Integers:
    return np.concatenate([places, np.zeros(slots - len(places), dtype=np.int64)])


_MAX_TABLE_COPIES = 4096  # maximum copies in the table of costs, or 16 per task if that is more


class PricedBag(PricedJob):
    """Search for plans of a bag at the current prices of the pool that hosts workers.

    The bag is among the view's open jobs, or was never submitted.
    """

    def __init__(self, board: PriceBoard, view: View, job: Job, remaining: int) -> None:
        super().__init__(view, job, remaining)
        assert job.bag is not None
        self.board = board
        self._bag = job.bag
        state = view.open_jobs.get(job.name)  # None if the bag was never submitted
        # Unfinished tasks by group.
        self._remaining_tasks = (
            tuple(group.count for group in job.bag.groups) if state is None else state.tasks_left
        )
        self._was_admitted = state is not None and state.status is not Status.ARRIVED
        # Number of usable slots until the deadline or the end of the view's window.
        self._slots = min(job.arrival + job.bag.slots, view.end) - view.slot

    def best(self, factor: float = 1.0, *, more: int = 0) -> PricedOffer | None:
        """Return the offer with the largest payoff, None if no plan meets the deadline.

        An admitted bag that is replanned may have lost too much time for its miss probability. Then
        the probability is doubled until there is a plan.
        """
        del more  # bags have no restarts to plan for
        planner = self._planner
        plan = None if planner is None else planner.best(factor)
        loosened = self._bag.miss_probability
        while plan is None and planner is not None and self._was_admitted and 2.0 * loosened < 1.0:
            loosened *= 2.0
            plan = self._planner_for(loosened).best(factor)
        return None if plan is None else self._offer(plan, factor)

    def place(self, offer: PricedOffer) -> Schedule:
        """Return the schedule of an offer's copies."""
        pool = self.board.window(len(offer.choice))
        demand, share = self.job.worker, self.board.shares(self.job.worker)
        choices = np.arange(len(offer.choice))
        entries = expand_choices(
            pool, demand, share, self.board.servers, pool, demand, share, self.board.servers,
            offer.choice, np.zeros_like(offer.choice), np.where(offer.choice > 0, choices, -1),
        )  # fmt: skip
        return Schedule.from_arrays(entries[:, 0] + self.view.slot, *entries[:, 1:].T)

    def max_gain(self) -> int:
        """Return the maximum number of tasks that can finish in one slot: all of them."""
        return self._bag.tasks

    def find_bottleneck(self) -> ResourceBottleneck:
        """Return the resource that limits the bag most until the deadline."""
        column, room = self.board.scarcest(
            self.job, ps=False, ledger=self.view.ledger, slots=max(self._slots, 1)
        )
        resource = self.view.cluster.resources[column]
        return ResourceBottleneck(resource, "worker servers", "workers", room)

    def uses(self, schedule: Schedule) -> list[BoardUse]:
        """Return what a schedule takes from the board."""
        return [BoardUse(" of worker servers", self.board, schedule.workers, self.job.worker)]

    def explain_infeasible(self) -> Refusal:
        """Return why no plan meets the deadline."""
        view = self.view
        last = self.job.arrival + self._bag.slots - 1
        if view.slot > last:
            return refuse_past_deadline(self.job, self._remaining_tasks)
        limit = "timespan" if view.until == view.end else "planning horizon"
        cut = f", in the {limit} that ends at slot {view.end}" if view.end <= last else ""
        planner = self._planner
        min_units = None if planner is None else planner.min_units(self._slots - 1)
        if planner is None or min_units is None:
            places = self._costs.limit if self._slots > 0 else 0
            return refuse_infeasible_deadline(
                self.job, self._remaining_tasks, view.slot, self._slots, places, cut
            )
        # ``min_units`` is for the first start; later starts need more units.
        max_room = max(planner.room(start) for start in range(self._slots))
        bottleneck = self.find_bottleneck()
        return Refusal(
            RefusalReason.NO_ROOM,
            f"needs room for {min_units} copies in one slot, or more in later slots, plus room for "
            f"copies still running{cut}; no slot before its deadline has room for more than "
            f"{max_room}",
            bottleneck=f"{bottleneck.resource} of {bottleneck.where}",
            numbers={"places_needed": min_units, "max_room": max_room},
        )

    # ---------------------------------------------------------------- state

    @cached_property
    def _costs(self) -> TabulatedCosts:
        demand = self.job.worker
        capacity = self.view.ledger.capacity[self.board.servers]
        fits = int(fit_counts(capacity, demand).sum())
        limit = min(fits, max(_MAX_TABLE_COPIES, 16 * self._bag.tasks))
        counts = np.arange(limit + 1, dtype=np.int64)
        pool, share = self.board.window(self._slots), self.board.shares(demand)
        # One row for all slots with equal reservations, because most slots have none.
        states, state = np.unique(pool.row_of, return_inverse=True)
        pool, no_ps = pool._replace(row_of=states), np.zeros_like(counts)
        table = slot_costs(pool, demand, share, pool, demand, share, counts, no_ps)
        return TabulatedCosts(table, state)

    @cached_property
    def _planner(self) -> BagPlanner | None:
        return self._planner_for(self._bag.miss_probability) if self._slots > 0 else None

    def _planner_for(self, miss_probability: float) -> BagPlanner:
        elapsed = self.view.slot - self.job.arrival
        return BagPlanner(
            bag=self._bag,
            remaining=self._remaining_tasks,
            elapsed=elapsed,
            costs=self._costs,
            utility=self.job.utility.values(np.arange(elapsed, elapsed + self._slots)),
            miss_probability=miss_probability,
        )

    def _offer(self, plan: CopyPlan, factor: float) -> PricedOffer:
        end = plan.start + len(plan.places) - 1
        completion = self.view.slot + end
        duration = np.array([completion - self.job.arrival])
        utility = factor * float(self.job.utility.values(duration)[0])
        places = np.zeros(end + 1, dtype=np.int64)
        places[plan.start :] = plan.places
        return PricedOffer(
            completion=completion,
            utility=utility,
            cost=plan.cost,
            payoff=utility - plan.cost,
            choice=places,
            copies=plan.copies,
        )


def refuse_past_deadline(job: Job, remaining: Sequence[int]) -> Refusal:
    """Return the refusal of a bag whose deadline has passed; ``remaining`` is by group."""
    bag = job.bag
    assert bag is not None
    last = job.arrival + bag.slots - 1
    unfinished = sum(remaining)
    return Refusal(
        RefusalReason.DEADLINE,
        f"its deadline passed in slot {last} with {unfinished} of {bag.tasks} tasks unfinished",
        numbers={"tasks_unfinished": unfinished},
    )


def refuse_infeasible_deadline(
    job: Job, remaining: Sequence[int], slot: int, slot_count: int, units: int, limit_text: str = ""
) -> Refusal:
    """Return the refusal of a bag that would miss its deadline even with all capacity.

    ``units`` copies fit at once, in ``slot_count`` slots from ``slot`` on. ``remaining`` are the
    tasks by group. ``limit_text`` names another limit of the time, if there is one.
    """
    bag = job.bag
    assert bag is not None
    if slot_count <= 0:
        return Refusal(RefusalReason.TOO_LATE, f"no slot is left for it{limit_text}")
    elapsed = slot - job.arrival
    time = min(float(slot_count), bag.deadline - elapsed) * bag.slot_seconds
    groups = [
        TaskGroup(count, build_distribution(group.distribution))
        for count, group in zip(remaining, bag.groups, strict=True)
        if count
    ]
    tasks = sum(group.count for group in groups)
    # `CloningProblem` needs a machine for each task, so the bound is optimistic if fewer units fit.
    machines = max(units, tasks)
    share = 1.0 - RESERVE_SHARE  # of the miss probability, as in `BagPlanner`
    problem = CloningProblem(groups, machines, time, bag.miss_probability * share)
    decays = problem.decays(time)
    best = 1.0
    if decays.min() > 0.0:
        phi, _ = add_copies_greedily(problem, DeadlineConstraint.EXACT, machines, decays)
        best = -math.expm1(-phi) / share
    # A user counts deadlines from the submission, which may be before the arrival slot.
    slots_since_submission = elapsed + job.before_arrival
    soonest = min_feasible_deadline(problem) + slots_since_submission * bag.slot_seconds
    return Refusal(
        RefusalReason.TOO_LATE if limit_text else RefusalReason.DEADLINE,
        f"no number of copies on {machines} places ends {tasks} tasks within "
        f"{format_seconds(time)} with a miss probability of {bag.miss_probability:g}{limit_text}; "
        f"the best misses with {min(best, 1.0):.3g}",
        numbers={"best_miss_probability": min(best, 1.0), "smallest_deadline_s": soonest},
    )
