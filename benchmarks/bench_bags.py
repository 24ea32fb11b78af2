"""Time to plan one bag of tasks at given prices, compared with an exhaustive search.

The exhaustive search evaluates every start and promised slot, without pruning by bounds. It gets
the same prices, and has to find the same payoff.

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


def draw_inputs(tasks: int, slots: int, utility: str, busy: bool) -> tuple[Bag, Floats, Floats]:
    """Return a bag of two distributions, costs, and the utility of ending in each slot.

    Costs have the shape (slots, copies): the cost of a number of copies in a slot, infinite if they
    don't fit.
    """
    rng = np.random.default_rng(tasks + slots)
    bag = Bag((pareto(tasks // 2, 2.0, 60.0), pareto(tasks // 2, 1.6, 100.0)), slots, 0.05, SLOT)
    price = 10.0 ** rng.uniform(-1, 1, slots) if busy else np.ones(slots)
    cost = np.outer(price, np.arange(6 * tasks + 1.0))
    if busy:
        for slot in range(slots):
            cost[slot, int(rng.integers(tasks, 6 * tasks)) :] = np.inf
    delays = np.arange(slots)
    sigmoid = 1e6 / (1 + np.exp(0.2 * (delays - slots / 2)))
    return bag, cost, sigmoid if utility == "sigmoid" else np.full(slots, 1e6)


def make_planner(bag: Bag, cost: Floats, utilities: Floats) -> BagPlanner:
    remaining = [group.count for group in bag.groups]
    return BagPlanner(bag, remaining, 0, TabulatedCosts(cost), utilities, bag.miss_probability)


def exhaustive(bag: Bag, cost: Floats, utilities: Floats) -> float:
    """Return the best payoff over all starts and promises."""
    best = -math.inf
    for _, start, promise in make_planner(bag, cost, utilities)._promises(1.0):
        plan, _ = make_planner(bag, cost, utilities)._plan(start, promise)
        if plan is not None:
            best = max(best, float(utilities[promise]) - plan.cost)
    return best


def main() -> None:
    heads = f"{'tasks':>6} {'slots':>6} {'utility':>9} {'cluster':>8} {'plan':>10}"
    print(f"{heads} {'exhaustive':>10}")
    for tasks, slots in ((20, 20), (100, 30), (1000, 30), (100, 100)):
        for utility in ("sigmoid", "constant"):
            for busy in (False, True):
                inputs = draw_inputs(tasks, slots, utility, busy)
                times = []
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    plan = make_planner(*inputs).best()
                    times.append(time.perf_counter() - began)
                assert plan is not None
                exhaustive_seconds = math.nan
                if slots <= 30:  # more take too long
                    began = time.perf_counter()
                    payoff = exhaustive(*inputs)
                    exhaustive_seconds = time.perf_counter() - began
                    assert math.isclose(inputs[2][plan.promise] - plan.cost, payoff, rel_tol=1e-9)
                median = statistics.median(times)
                cluster = "busy" if busy else "empty"
                print(
                    f"{tasks:>6} {slots:>6} {utility:>9} {cluster:>8} {median * 1e3:>7.1f} ms "
                    f"{exhaustive_seconds * 1e3:>7.0f} ms"
                )


if __name__ == "__main__":
    main()
