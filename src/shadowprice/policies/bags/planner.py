"""The best plan of a bag at the prices of the moment: when to start, how many copies.

A plan starts every remaining task at the beginning of one slot, in some number of copies, and
promises to end by the end of another one. The model is in design note 0009.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.bag import Bag, TaskCopies
from shadowprice.kernels.cloning.bags import cheapest_copies, copy_costs, reserve
from shadowprice.kernels.cloning.continuous import fewest_copies
from shadowprice.laws.named import law_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

RESERVE_SHARE = 0.1
"""Share of the miss probability that is kept for reserving fewer places than copies."""

MOST_COPIES = 64
"""Copies of a task that are weighed; more only where the deadline needs them."""

_ROUNDS = 6
"""Most times that copies are chosen anew at the average prices of the plan found."""

MOST_LISTED = 4000
"""Ways to give a bag's tasks copies up to which all of them are looked at."""

_LARGEST_DECAY = 700.0
_SLACK = 1.0 + 1e-12


@dataclass(frozen=True, slots=True)
class Plan:
    """Copies of all remaining tasks, and what is reserved for them.

    Attributes
    ----------
    start, promise : int
        First slot, and the slot by whose end all tasks are done but for the miss probability;
        counted from the first slot that can be used.
    copies : tuple of TaskCopies
        Copies of every task.
    places : ndarray of int64
        Places reserved from the first slot on, as long as any are.
    cost : float
        What they cost; inf where they do not fit.
    short : int
        Places that do not fit, over all slots.
    loss_at_most : float
        How much more the best plan there is may pay; 0 where this is proved to be it.
    """

    start: int
    promise: int
    copies: tuple[TaskCopies, ...]
    places: Integers
    cost: float
    short: int = 0
    loss_at_most: float = 0.0


@dataclass
class BagPlanner:
    """Finds the plan of largest payoff.

    Parameters
    ----------
    bag : Bag
        The tasks.
    left : sequence of int
        Tasks that remain, by group.
    passed : int
        Slots from the arrival slot to the first that can be used.
    cost : ndarray, shape (slots, places + 1)
        Least cost of each number of places in each usable slot; inf where they do not fit.
    utility : ndarray, shape (slots,)
        Worth of ending in each of these slots.
    miss_probability : float
        How often the promise may be missed.
    """

    bag: Bag
    left: Sequence[int]
    passed: int
    cost: Floats
    utility: Floats
    miss_probability: float
    _bounds: dict[tuple[float, ...], tuple[float, tuple[TaskCopies, ...] | None]] = field(
        init=False, default_factory=dict
    )
    _plans: dict[tuple[float, ...], tuple[Plan | None, bool]] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._groups = [g for g, count in enumerate(self.left) if count]
        self._count = np.array([self.left[g] for g in self._groups], dtype=np.int64)
        self._laws = [law_of(self.bag.groups[g].law) for g in self._groups]
        self._tasks = int(self._count.sum())
        slots = len(self.utility)
        times = np.arange(slots, dtype=np.float64) * self.bag.slot_seconds
        self._log_survival = np.stack([law.log_survival(times) for law in self._laws])
        self._log_survival[:, 0] = 0.0
        self._open = np.isfinite(self.cost).sum(axis=1) - 1
        seen: dict[bytes, int] = {}
        self._alike = [seen.setdefault(row.tobytes(), len(seen)) for row in self.cost]
        share = self.miss_probability * (1.0 - RESERVE_SHARE)
        self._budget = -math.log1p(-share)
        self._needs: dict[float, tuple[Floats, Integers, int, int]] = {}

    def best(self, factor: float = 1.0) -> Plan | None:
        """Return the plan of largest payoff, None where none keeps the deadline.

        Parameters
        ----------
        factor : float
            What every utility is multiplied by.
        """
        best: Plan | None = None
        most = ceiling = -math.inf
        # Best first, by a quick bound and then by a closer one: on ties the earlier start, then
        # the later promise.
        queue = [
            (-bound, start, -promise, False) for bound, start, promise in self._promises(factor)
        ]
        heapq.heapify(queue)
        while queue:
            bound, start, late, close = heapq.heappop(queue)
            if best is not None and -bound <= most:
                break
            worth = factor * float(self.utility[-late])
            if not close:
                least, _ = self._least(start, -late)
                heapq.heappush(queue, (max(bound, least - worth), start, late, True))
                continue
            plan, proved = self._plan(start, -late)
            if not proved:
                ceiling = max(ceiling, -bound)
            if plan is not None and (best is None or worth - plan.cost > most):
                best, most = plan, worth - plan.cost
        return None if best is None else replace(best, loss_at_most=max(0.0, ceiling - most))

    def least_places(self, promise: int) -> int | None:
        """Return the fewest places that keep a promise when started at once, None if none do."""
        need = self._need(0, promise)
        return None if need is None else need[2]

    def room(self, start: int) -> int:
        """Return how many places a slot has."""
        return int(self._open[start])

    def _promises(self, factor: float) -> Iterator[tuple[float, int, int]]:
        """Yield (bound on the payoff, start, promise) of what can be promised."""
        for promise in range(len(self.utility)):
            worth = factor * float(self.utility[promise])
            for start in range(promise, -1, -1):
                if not self._open[start]:
                    break
                need = self._need(start, promise)
                if need is not None and need[2] <= self._open[start]:
                    yield worth - float(self.cost[start, need[2]]), start, promise

    def _need(self, start: int, promise: int) -> tuple[Floats, Integers, int, int] | None:
        """Return decay at the promise, and the copies and number of places that least do."""
        time = min(promise + 1.0, self.bag.deadline - self.passed) - start
        known = self._needs.get(time)
        if known is None:
            seconds = time * self.bag.slot_seconds
            decay = np.array([-float(law.log_survival(seconds)) for law in self._laws])
            decay = np.minimum(decay, _LARGEST_DECAY)
            copies = np.ones(len(decay), dtype=np.int64)
            used, extra = 0, -1
            if decay.min() > 0.0:
                places = self.cost.shape[1] - 1
                budget = self._budget * _SLACK
                late, used, extra = fewest_copies(self._count, decay, places, False, budget, copies)
                used = int(used) if late <= budget and used <= places else 0
            known = self._needs[time] = decay, copies, used, int(extra)
        return known if known[2] else None

    # ---------------------------------------------------------------- one start and promise

    def _key(self, start: int, promise: int) -> tuple[float, ...]:
        """Return what windows of equal length at equal prices share: they have equal plans."""
        time = min(promise + 1.0, self.bag.deadline - self.passed) - start
        return (time, *self._alike[start : promise + 1])

    def _least(self, start: int, promise: int) -> tuple[float, tuple[TaskCopies, ...] | None]:
        """Return a bound on the cost of a plan, and the copies of least expected cost."""
        key = self._key(start, promise)
        if key not in self._bounds:
            price = self.cost[start : promise + 1, 1]
            self._bounds[key] = self._cheapest(start, promise, price)
        return self._bounds[key]

    def _plan(self, start: int, promise: int) -> tuple[Plan | None, bool]:
        """Return the cheapest plan found for a start and a promise, and whether none is cheaper.

        The plan is None where none was found that fits.
        """
        key = self._key(start, promise)
        if key not in self._plans:
            found = self._search(start, promise)
            proved = self._count_ways(start) <= MOST_LISTED
            if proved:
                found = self._list(start, promise, found)
            self._plans[key] = found, proved
        plan, proved = self._plans[key]
        return None if plan is None else replace(plan, start=start, promise=promise), proved

    def _most_copies(self, start: int) -> int:
        """Return the most copies that one task can have beside one of every other."""
        return int(self._open[start]) - self._tasks + 1

    def _count_ways(self, start: int) -> int:
        most = self._most_copies(start)
        return math.prod(math.comb(count + most - 1, count) for count in self._count.tolist())

    def _list(self, start: int, promise: int, found: Plan | None) -> Plan | None:
        """Return the cheapest plan of all ways to give the tasks copies, best bounds first.

        At least the cost of all copies in the first slot, and in later ones that of the copies
        expected to run, rounded down: no fewer places are ever reserved.
        """
        need = self._need(start, promise)
        assert need is not None
        decay = need[0]
        window = slice(start, promise + 1)
        cost, survival = self.cost[window], self._log_survival[:, : promise + 1 - start]
        most = self._most_copies(start)
        ways: list[tuple[tuple[int, ...], ...]] = [()]
        totals, misses, alive = np.zeros(1), np.zeros(1), np.zeros((1, len(cost)))
        for at, count in enumerate(self._count.tolist()):
            given = list(combinations_with_replacement(range(1, most + 1), count))
            copies = np.array(given, dtype=np.float64)
            with np.errstate(divide="ignore"):
                late = -np.log1p(-np.exp(-decay[at] * copies)).sum(axis=1)
            running = (copies[:, :, None] * np.exp(copies[:, :, None] * survival[at])).sum(axis=1)
            ways = [(*way, more) for way in ways for more in given]
            totals = (totals[:, None] + copies.sum(axis=1)).ravel()
            misses = (misses[:, None] + late).ravel()
            alive = (alive[:, None] + running).reshape(-1, len(cost))
        places = np.floor(alive * (1 - 1e-12)).astype(np.int64)
        places[:, 0] = totals
        fits = (misses <= self._budget * _SLACK) & (places <= self._open[window]).all(axis=1)
        rows = np.flatnonzero(fits)
        bounds = cost[np.arange(len(cost)), places[rows]].sum(axis=1)
        best = found
        for at in np.argsort(bounds, kind="stable").tolist():
            if best is not None and bounds[at] >= best.cost:
                break
            entries = tuple(
                TaskCopies(self._groups[group], tasks, copies)
                for group, given in enumerate(ways[rows[at]])
                for copies, tasks in sorted(Counter(given).items())
            )
            plan = self._reserved(start, promise, entries)
            if not plan.short and (best is None or plan.cost < best.cost):
                best = plan
        return best

    def _search(self, start: int, promise: int) -> Plan | None:
        _, copies = self._least(start, promise)
        window = slice(start, promise + 1)
        cost = self.cost[window]
        price = cost[:, 1]
        tried = dict.fromkeys([self._fewest(start, promise)] + ([copies] if copies else []))
        plans = {given: self._reserved(start, promise, given) for given in tried}
        better = min(plans.values(), key=lambda plan: (plan.cost, plan.short))
        for _ in range(_ROUNDS):
            # What a place costs on average in the plan found: later places of a slot are dearer,
            # and one that does not fit is worth avoiding at several times the price.
            needed = np.maximum(_padded(better.places, len(price)), 1)
            there = self._open[window]
            fits = np.minimum(needed, there)
            average = cost[np.arange(len(price)), fits] / fits
            dear = 4.0 * np.maximum(np.maximum(price, average), 1e-6 * max(price.max(), 1.0))
            wanted = np.where(needed > there, dear, average)
            if np.allclose(wanted, price, rtol=1e-9, atol=0.0):
                break
            price = wanted
            _, copies = self._cheapest(start, promise, price)
            if copies is None or copies in plans:
                break
            plans[copies] = self._reserved(start, promise, copies)
            better = min(plans.values(), key=lambda plan: (plan.cost, plan.short))
        return None if better.short else better

    def _cheapest(
        self, start: int, promise: int, price: Floats
    ) -> tuple[float, tuple[TaskCopies, ...] | None]:
        """Return a bound on the cost of a plan at these prices, and the cheapest copies."""
        need = self._need(start, promise)
        assert need is not None
        decay, fewest, _, _ = need
        places = int(self._open[start])
        top = float(price.max())
        # Free slots weigh next to nothing: of equally cheap copies, the fewest.
        weight = np.maximum(price, 1e-9 * top) / top if top > 0.0 else np.ones(len(price))
        most = min(max(MOST_COPIES, 2 * int(fewest.max())), places - self._tasks + 1)
        survival = np.ascontiguousarray(self._log_survival[:, : len(price)])
        table = copy_costs(survival, weight, most)
        copies = np.empty(len(decay), dtype=np.int64)
        change = np.empty(4, dtype=np.int64)
        found, bound = cheapest_copies(
            self._count, table, decay, self._budget, places, copies, change
        )
        least = 0.0
        if top > 0.0 and (price >= 1e-9 * top).all():
            # What is reserved is at least what is expected, but for rounding down.
            least = max(top * float(bound) - float(price[1:].sum()), 0.0) * (1 - 1e-9)
        return least, self._entries(copies, change) if found else None

    def _entries(self, copies: Integers, change: Integers) -> tuple[TaskCopies, ...]:
        group, number, high, last = change.tolist()
        entries = []
        for at, base in enumerate(copies.tolist()):
            parts = {base: int(self._count[at])}
            if at == group:
                parts[base] -= number + 1
                parts[high] = parts.get(high, 0) + number
                parts[last] = parts.get(last, 0) + 1
            entries += [
                TaskCopies(self._groups[at], tasks, given)
                for given, tasks in sorted(parts.items())
                if tasks
            ]
        return tuple(entries)

    def _fewest(self, start: int, promise: int) -> tuple[TaskCopies, ...]:
        need = self._need(start, promise)
        assert need is not None
        _, copies, used, group = need
        extra = used - int(self._count @ copies)
        if group < 0 or not extra:
            return self._entries(copies, np.array([-1, 0, 0, 0]))
        more = int(copies[group]) + 1
        return self._entries(copies, np.array([group, extra - 1, more, more]))

    def _reserved(self, start: int, promise: int, copies: tuple[TaskCopies, ...]) -> Plan:
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
            return Plan(start, promise, copies, places, math.inf, short)
        paid = self.cost[np.arange(start, start + len(places)), places]
        return Plan(start, promise, copies, places, float(paid.sum()))


def _padded(places: Integers, slots: int) -> Integers:
    return np.concatenate([places, np.zeros(slots - len(places), dtype=np.int64)])
