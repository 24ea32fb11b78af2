"""The best plan of a bag at current prices: start slot and number of copies.

A plan starts every remaining task at the beginning of one slot, in some number of copies. It
promises to end by the end of another one. Design note 0009 has the model.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

import numpy as np

from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.bag import Bag, TaskCopies
from shadowprice.distributions.empirical import build_distribution
from shadowprice.kernels.cloning.bags import cheapest_copies, copy_costs, reserve
from shadowprice.kernels.cloning.continuous import min_copies
from shadowprice.policies.bags.unit_costs import UnitCosts

RESERVE_SHARE = 0.1
"""Share of the miss probability that is kept for reserving fewer units than copies."""

MAX_COPIES = 64  # maximum number of copies of a task, unless the deadline needs more
_MAX_PRICE_ROUNDS = 6  # copies are chosen again at the plan's average prices
MAX_LISTED = 4000  # maximum number of combinations of copies that are enumerated

_MAX_DECAY = 700.0
_SLACK = 1.0 + 1e-12


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Copies of all remaining tasks, and the units reserved for them.

    A unit is the capacity of one copy.
    """

    start: int  # counts from the first usable slot
    promise: int  # slot by whose end all tasks are done, except with the miss probability
    copies: tuple[TaskCopies, ...]  # of every task
    places: Integers  # units reserved in each slot from the first on, while there are any
    cost: float  # infinite if they don't fit
    short: int = 0  # units that don't fit, over all slots
    loss_at_most: float = 0.0
    """Maximum payoff that the best plan may have beyond this one; 0 if this is proved the best."""


@dataclass
class BagPlanner:
    """Finds the plan with the largest payoff."""

    bag: Bag
    left: Sequence[int]  # remaining tasks by group
    passed: int  # slots from the arrival slot to the first usable one
    costs: UnitCosts  # in each usable slot
    utility: Floats  # of ending in each of these slots
    miss_probability: float  # probability with which the promise may be missed
    _bounds: dict[tuple[float, ...], tuple[float, tuple[TaskCopies, ...] | None]] = field(
        init=False, default_factory=dict
    )
    _plans: dict[tuple[float, ...], tuple[CopyPlan | None, bool]] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._groups = [g for g, count in enumerate(self.left) if count]
        self._count = np.array([self.left[g] for g in self._groups], dtype=np.int64)
        self._distributions = [
            build_distribution(self.bag.groups[g].distribution) for g in self._groups
        ]
        self._tasks = int(self._count.sum())
        slots = len(self.utility)
        times = np.arange(slots, dtype=np.float64) * self.bag.slot_seconds
        self._log_survival = np.stack(
            [distribution.log_survival(times) for distribution in self._distributions]
        )
        self._log_survival[:, 0] = 0.0
        self._open, self._kinds = self.costs.fit_counts, self.costs.kind.tolist()
        share = self.miss_probability * (1.0 - RESERVE_SHARE)
        self._budget = -math.log1p(-share)
        self._needs: dict[float, tuple[Floats, Integers, int, int]] = {}

    def best(self, factor: float = 1.0) -> CopyPlan | None:
        """Return the plan with the largest payoff, None if none meets the deadline.

        ``factor`` multiplies every utility.
        """
        best: CopyPlan | None = None
        best_payoff = ceiling = -math.inf
        # Best-first search by a quick bound, then by a close one. On ties, the earlier start and
        # then the later promise go first.
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
        """Return the minimum units that keep a promise if started at once, None if none do."""
        need = self._required_copies(0, promise)
        return None if need is None else need[2]

    def room(self, start: int) -> int:
        """Return the number of units that fit in a slot."""
        return int(self._open[start])

    def _promises(self, factor: float) -> Iterator[tuple[float, int, int]]:
        """Yield (bound on the payoff, start, promise) of each feasible pair."""
        pairs = []
        for promise in range(len(self.utility)):
            for start in range(promise, -1, -1):
                if not self._open[start]:
                    break
                need = self._required_copies(start, promise)
                if need is not None and need[2] <= self._open[start]:
                    pairs.append((start, promise, need[2]))
        if pairs:
            starts, promises, units = np.array(pairs, np.int64).T
            bounds = factor * self.utility[promises] - self.costs.cost(starts, units)
            yield from zip(bounds.tolist(), starts.tolist(), promises.tolist(), strict=True)

    def _first_units(self, start: int, promise: int) -> Floats:
        """Return the cost of one unit in each slot of a window."""
        slots = np.arange(start, promise + 1)
        return self.costs.cost(slots, np.ones_like(slots))

    def _required_copies(
        self, start: int, promise: int
    ) -> tuple[Floats, Integers, int, int] | None:
        """Return decays at the promise, and the minimum copies that keep it; None if none do.

        The last two values are the number of copies, and the group in which some tasks have one
        more, -1 for none; see `min_copies`.
        """
        time = min(promise + 1.0, self.bag.deadline - self.passed) - start
        cached = self._needs.get(time)
        if cached is None:
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
            cached = self._needs[time] = decay, copies, used, int(extra)
        return cached if cached[2] else None

    # ---------------------------------------------------------------- one start and promise

    def _key(self, start: int, promise: int) -> tuple[float, ...]:
        """Return a key that is equal for windows with equal plans: equal length and prices."""
        time = min(promise + 1.0, self.bag.deadline - self.passed) - start
        return (time, *self._kinds[start : promise + 1])

    def _min_cost(self, start: int, promise: int) -> tuple[float, tuple[TaskCopies, ...] | None]:
        """Return a lower bound on a plan's cost, and the copies with the least expected cost."""
        key = self._key(start, promise)
        if key not in self._bounds:
            price = self._first_units(start, promise)
            self._bounds[key] = self._cheapest(start, promise, price)
        return self._bounds[key]

    def _plan(self, start: int, promise: int) -> tuple[CopyPlan | None, bool]:
        """Return the cheapest plan found for a start and a promise, and whether that is proved.

        The plan is None if none was found that fits.
        """
        key = self._key(start, promise)
        if key not in self._plans:
            best = self._search(start, promise)
            proved = self._count_ways(start) <= MAX_LISTED
            if proved:
                best = self._enumerate(start, promise, best)
            self._plans[key] = best, proved
        plan, proved = self._plans[key]
        return None if plan is None else replace(plan, start=start, promise=promise), proved

    def _most_copies(self, start: int) -> int:
        """Return the maximum copies of one task beside one of every other task."""
        return int(self._open[start]) - self._tasks + 1

    def _count_ways(self, start: int) -> int:
        max_copies = self._most_copies(start)
        return math.prod(math.comb(count + max_copies - 1, count) for count in self._count.tolist())

    def _enumerate(self, start: int, promise: int, found: CopyPlan | None) -> CopyPlan | None:
        """Return the cheapest plan of all combinations of copies, by best-first enumeration.

        The bound of a combination is the cost of all copies in the first slot, and of the expected
        running copies, rounded down, in later ones. A reservation never has fewer units.
        """
        need = self._required_copies(start, promise)
        assert need is not None
        decay = need[0]
        window = slice(start, promise + 1)
        slots, survival = (
            np.arange(start, promise + 1),
            self._log_survival[:, : promise + 1 - start],
        )
        max_copies = self._most_copies(start)
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
        fits = (misses <= self._budget * _SLACK) & (places <= self._open[window]).all(axis=1)
        rows = np.flatnonzero(fits)
        bounds = self.costs.cost(slots, places[rows]).sum(axis=1)
        best = found
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
        _, copies = self._min_cost(start, promise)
        window = slice(start, promise + 1)
        slots, price = np.arange(start, promise + 1), self._first_units(start, promise)
        candidates = dict.fromkeys(
            [self._min_copies(start, promise)] + ([copies] if copies else [])
        )
        plans = {given: self._reserve_copies(start, promise, given) for given in candidates}
        best = min(plans.values(), key=lambda plan: (plan.cost, plan.short))
        for _ in range(_MAX_PRICE_ROUNDS):
            # Average price of a unit in the plan: further units of a slot cost more. A slot in
            # which units don't fit counts several times the price.
            needed = np.maximum(_pad(best.places, len(price)), 1)
            available = self._open[window]
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
        need = self._required_copies(start, promise)
        assert need is not None
        decay, fewest, _, _ = need
        places = int(self._open[start])
        top = float(price.max())
        # Free slots get a tiny weight, so that the fewest of equally cheap copies win.
        weight = np.maximum(price, 1e-9 * top) / top if top > 0.0 else np.ones(len(price))
        max_copies = min(max(MAX_COPIES, 2 * int(fewest.max())), places - self._tasks + 1)
        survival = np.ascontiguousarray(self._log_survival[:, : len(price)])
        table = copy_costs(survival, weight, max_copies)
        copies = np.empty(len(decay), dtype=np.int64)
        change = np.empty(4, dtype=np.int64)
        feasible, bound = cheapest_copies(
            self._count, table, decay, self._budget, places, copies, change
        )
        bound_cost = 0.0
        if top > 0.0 and (price >= 1e-9 * top).all():
            # The reservation is at least the expected number, less rounding down.
            bound_cost = max(top * float(bound) - float(price[1:].sum()), 0.0) * (1 - 1e-9)
        return bound_cost, self._entries(copies, change) if feasible else None

    def _entries(self, copies: Integers, change: Integers) -> tuple[TaskCopies, ...]:
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
        need = self._required_copies(start, promise)
        assert need is not None
        _, copies, used, group = need
        extra = used - int(self._count @ copies)
        if group < 0 or not extra:
            return self._entries(copies, np.array([-1, 0, 0, 0]))
        more = int(copies[group]) + 1
        return self._entries(copies, np.array([group, extra - 1, more, more]))

    def _reserve_copies(self, start: int, promise: int, copies: tuple[TaskCopies, ...]) -> CopyPlan:
        slots = promise - start + 1
        rows = [self._groups.index(entry.group) for entry in copies]
        level = self.miss_probability * RESERVE_SHARE / max(slots - 1, 1)
        places = reserve(
            np.array([entry.tasks for entry in copies], dtype=np.int64),
            np.array([entry.copies for entry in copies], dtype=np.int64),
            np.ascontiguousarray(self._log_survival[rows, :slots]),
            level,
        )
        places = places[places > 0]
        short = int(np.maximum(places - self._open[start : start + len(places)], 0).sum())
        if short:
            return CopyPlan(start, promise, copies, places, math.inf, short)
        paid = self.costs.cost(np.arange(start, start + len(places)), places)
        return CopyPlan(start, promise, copies, places, float(paid.sum()))


def _pad(places: Integers, slots: int) -> Integers:
    return np.concatenate([places, np.zeros(slots - len(places), dtype=np.int64)])
