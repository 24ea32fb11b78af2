"""Plan one bag of tasks at the prices of a busy cluster, beside a search without bounds.

The twin evaluates every start and promise. Both see the same prices; their payoffs must be equal.

    python benchmarks/bench_bags.py
"""

from __future__ import annotations

import math
import statistics
import time

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.bag import Bag, BagTaskGroup, DurationDistribution
from shadowprice.policies.bags.planner import BagPlanner, TabulatedCosts

ROUNDS = 5
SLOT = 60.0
Floats = NDArray[np.float64]


def pareto(count: int, shape: float, minimum: float) -> BagTaskGroup:
    mean = minimum * shape / (shape - 1)
    distribution = DurationDistribution(
        "pareto", {"shape": shape, "minimum": minimum}, minimum, mean
    )
    return BagTaskGroup(count, distribution)


def market(tasks: int, slots: int, worth: str, busy: bool) -> tuple[Bag, Floats, Floats]:
    """Return a bag of two distributions, prices by slot, and the value of ending in each slot."""
    rng = np.random.default_rng(tasks + slots)
    bag = Bag((pareto(tasks // 2, 2.0, 60.0), pareto(tasks // 2, 1.6, 100.0)), slots, 0.05, SLOT)
    price = 10.0 ** rng.uniform(-1, 1, slots) if busy else np.ones(slots)
    cost = np.outer(price, np.arange(6 * tasks + 1.0))
    if busy:
        for slot in range(slots):
            cost[slot, int(rng.integers(tasks, 6 * tasks)) :] = np.inf
    after = np.arange(slots)
    fading = 1e6 / (1 + np.exp(0.2 * (after - slots / 2)))
    return bag, cost, fading if worth == "sigmoid" else np.full(slots, 1e6)


def planner(bag: Bag, cost: Floats, worth: Floats) -> BagPlanner:
    left = [group.count for group in bag.groups]
    return BagPlanner(bag, left, 0, TabulatedCosts(cost), worth, bag.miss_probability)


def exhaustive(bag: Bag, cost: Floats, worth: Floats) -> float:
    """Return the best payoff over all starts and promises."""
    best = -math.inf
    for _, start, promise in planner(bag, cost, worth)._promises(1.0):
        plan, _ = planner(bag, cost, worth)._plan(start, promise)
        if plan is not None:
            best = max(best, float(worth[promise]) - plan.cost)
    return best


def main() -> None:
    print(f"{'tasks':>6} {'slots':>6} {'utility':>9} {'cluster':>8} {'plan':>10} {'twin':>10}")
    for tasks, slots in ((20, 20), (100, 30), (1000, 30), (100, 100)):
        for worth in ("sigmoid", "constant"):
            for busy in (False, True):
                given = market(tasks, slots, worth, busy)
                times = []
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    plan = planner(*given).best()
                    times.append(time.perf_counter() - began)
                assert plan is not None
                twin = math.nan
                if slots <= 30:
                    began = time.perf_counter()
                    payoff = exhaustive(*given)
                    twin = time.perf_counter() - began
                    assert math.isclose(given[2][plan.promise] - plan.cost, payoff, rel_tol=1e-9)
                middle = statistics.median(times)
                where = "busy" if busy else "empty"
                print(
                    f"{tasks:>6} {slots:>6} {worth:>9} {where:>8} {middle * 1e3:>7.1f} ms "
                    f"{twin * 1e3:>7.0f} ms"
                )


if __name__ == "__main__":
    main()
