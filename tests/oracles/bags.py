"""Plans of a bag by brute force: every start, promise and number of copies of every task."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.bag import Bag
from shadowprice.distributions.empirical import build_distribution

Floats = NDArray[np.float64]


def survival(bag: Bag, group: int, slots: float) -> float:
    """P(a task lasts longer than some slots), for the two distributions that tests draw."""
    numbers = bag.groups[group].distribution.parameters
    seconds = slots * bag.slot_seconds
    if bag.groups[group].distribution.name == "pareto":
        return float(min(1.0, (numbers["minimum"] / seconds) ** numbers["shape"]))  # type: ignore[operator]
    if bag.groups[group].distribution.name == "weibull" and numbers["shape"] == 1.0:
        beyond = max(0.0, seconds - numbers["minimum"])  # type: ignore[operator]
        return math.exp(-beyond / (numbers["expected"] - numbers["minimum"]))  # type: ignore[operator]
    return float(build_distribution(bag.groups[group].distribution).survival(seconds))


def still_running(chances: Sequence[float], copies: Sequence[int]) -> dict[int, float]:
    """Probability of each number of running copies, by listing which tasks still run."""
    found: dict[int, float] = {}
    for outcome in itertools.product((0, 1), repeat=len(copies)):
        weight = math.prod(c if on else 1 - c for c, on in zip(chances, outcome, strict=True))
        number = sum(r for r, on in zip(copies, outcome, strict=True) if on)
        found[number] = found.get(number, 0.0) + weight
    return found


def places(
    bag: Bag, tasks: Sequence[int], copies: Sequence[int], slots: int, share: float
) -> list[int]:
    """Units to reserve in each slot, from the definition."""
    level = bag.miss_probability * share / max(slots - 1, 1)
    need = [sum(copies)]
    for v in range(1, slots):
        chances = [survival(bag, g, v) ** r for g, r in zip(tasks, copies, strict=True)]
        distribution = still_running(chances, copies)
        expected = sum(number * weight for number, weight in distribution.items())
        quantile = min(
            number
            for number in (0, *distribution)
            if sum(weight for other, weight in distribution.items() if other > number) <= level
        )
        need.append(min(max(quantile, math.floor(expected + 1e-12)), need[-1]))
    while need and not need[-1]:
        need.pop()
    return need


def plans(
    bag: Bag, passed: int, cost: Floats, utility: Floats, share: float, most: int
) -> Iterator[tuple[float, int, int, tuple[int, ...]]]:
    """Yield (payoff, start, promise, copies of each task) of every valid plan."""
    groups = [g for g, group in enumerate(bag.groups) for _ in range(group.count)]
    options = [
        itertools.combinations_with_replacement(range(1, most + 1), group.count)
        for group in bag.groups
    ]
    choices = [tuple(itertools.chain(*parts)) for parts in itertools.product(*options)]
    for promise in range(len(utility)):
        for start in range(promise + 1):
            time = min(promise + 1.0, bag.deadline - passed) - start
            for copies in choices:
                misses = [survival(bag, g, time) ** r for g, r in zip(groups, copies, strict=True)]
                if 1 - math.prod(1 - h for h in misses) > bag.miss_probability * (1 - share):
                    continue
                need = places(bag, groups, copies, promise - start + 1, share)
                if need[0] >= cost.shape[1]:
                    continue
                paid = sum(cost[start + v, n] for v, n in enumerate(need))
                if math.isfinite(paid):
                    yield float(utility[promise]) - paid, start, promise, copies
