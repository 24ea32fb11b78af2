"""Number of random cloning problems that are solved to proved optimality, and the maximum time.

Run as ``python -m benchmarks.cloning_proofs [PROBLEMS]``. Each problem is solved with both deadline
constraints.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from shadowprice.cloning.api import (
    CloningProblem,
    DeadlineConstraint,
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    TaskGroup,
    Weibull,
    solve,
)
from shadowprice.core.errors import InputError


def distribution(rng: np.random.Generator) -> Distribution:
    """Draw a distribution of durations."""
    mean = float(rng.uniform(1, 20))
    kind = rng.integers(4)
    if kind == 0:
        return Pareto.of_mean(float(rng.uniform(1.1, 4)), mean)
    if kind == 1:
        return Weibull(float(rng.uniform(0.4, 1)), mean, 0.1 * mean)
    if kind == 2:
        share = float(rng.uniform(0.05, 0.5))
        return HyperExponential((1 - share, share), (mean, 9 * mean))
    return LogNormal.of_mean(float(rng.uniform(0.6, 1.5)), mean)


def main() -> None:
    """Draw problems, solve them, and print how many were proved."""
    rng = np.random.default_rng(1)
    solved = unproved = refused = 0
    slowest = 0.0
    for _ in range(int(sys.argv[1]) if sys.argv[1:] else 1500):
        tasks = [
            TaskGroup(int(rng.integers(1, 7)), distribution(rng))
            for _ in range(int(rng.integers(1, 6)))
        ]
        machines = sum(group.count for group in tasks) + int(rng.choice([3, 20, 60, 200]))
        deadline = float(rng.uniform(5, 100))
        miss = float(np.exp(rng.uniform(np.log(0.003), np.log(0.4))))
        for constraint in DeadlineConstraint:
            began = time.perf_counter()
            try:
                solution = solve(
                    CloningProblem(tasks, machines, deadline, miss), constraint=constraint
                )
            except InputError:  # infeasible
                refused += 1
                continue
            slowest = max(slowest, time.perf_counter() - began)
            solved += 1
            unproved += not solution.proved
    print(
        f"{solved} solved, {unproved} of them unproved; {refused} refused; {slowest:.2f} s at most"
    )


if __name__ == "__main__":
    main()
