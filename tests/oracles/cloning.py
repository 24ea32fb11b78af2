"""Slow, obvious twins of CSD's solvers."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
from scipy.integrate import IntegrationWarning, quad
from scipy.optimize import minimize

from shadowprice.cloning.api import CloningProblem, Distribution, Empirical, LogNormal


def cost_by_quadrature(distribution: Distribution, ratio: float) -> float:
    """Return g(r) = r * integral of S^r by adaptive quadrature."""
    if isinstance(distribution, Empirical):
        times, left = distribution.steps
        edges = np.concatenate([[0.0], times])
        heights = np.concatenate([[1.0], left[:-1]]) ** ratio
        total = float(np.diff(edges) @ heights) * distribution.factor
        if distribution.tail is not None and distribution.steps[1][-1] ** ratio > 1e-18:
            cut = distribution.factor * distribution.tail.threshold

            def beyond(u: float) -> float:
                return float(distribution.survival(cut * math.exp(u)) ** ratio) * cut * math.exp(u)

            far = 50.0 / (distribution.tail.order * ratio - 1.0)
            total += quad(beyond, 0.0, far, epsabs=0, epsrel=1e-11, limit=500)[0]
        return ratio * total
    start = distribution.shortest
    reach = max(distribution.mean - start, 1e-12)

    def inside(u: float) -> float:
        time = start + reach * math.exp(u)
        return float(distribution.survival(time) ** ratio) * reach * math.exp(u)

    far = 0.0
    while distribution.survival(start + reach * math.exp(far)) ** ratio * math.exp(far) > 1e-16:
        far += 1.0
    pieces = np.linspace(-45.0, far, 40)
    if isinstance(distribution, LogNormal):
        pieces = np.linspace(-45.0, far, 40 + int(20 / distribution.sigma))
    with warnings.catch_warnings():
        # Where the integrand is exactly 0, no relative accuracy can be reached.
        warnings.simplefilter("ignore", IntegrationWarning)
        total = sum(
            quad(inside, a, b, epsabs=0, epsrel=1e-11, limit=200)[0]
            for a, b in itertools.pairwise(pieces)
        )
    return ratio * (start + float(total))


def tasks(problem: CloningProblem) -> list[Distribution]:
    """Return the distribution of every task."""
    return [group.duration for group in problem.groups for _ in range(group.count)]


def miss_of(problem: CloningProblem, copies: tuple[int, ...] | np.ndarray) -> float:
    """Return 1 - product of (1 - S^r), (3)."""
    kept = 1.0
    for distribution, ratio in zip(tasks(problem), copies, strict=True):
        kept *= 1.0 - float(distribution.survival(problem.deadline)) ** ratio
    return 1.0 - kept


def brute_force(problem: CloningProblem, relaxed: bool, most: int) -> tuple[float, int]:
    """Return the minimum cost over all whole copies up to ``most``, and the number of feasible
    vectors.
    """
    distributions = tasks(problem)
    costs = [
        [cost_by_quadrature(distribution, r) for r in range(1, most + 1)]
        for distribution in distributions
    ]
    late = [float(distribution.survival(problem.deadline)) for distribution in distributions]
    best, holding = math.inf, 0
    for copies in itertools.product(range(1, most + 1), repeat=len(distributions)):
        if sum(copies) > problem.machines:
            continue
        if relaxed:
            holds = sum(q**r for q, r in zip(late, copies, strict=True)) <= problem.budget
        else:
            kept = math.prod(1 - q**r for q, r in zip(late, copies, strict=True))
            holds = kept >= 1 - problem.miss_probability
        if holds:
            holding += 1
            best = min(best, sum(costs[i][r - 1] for i, r in enumerate(copies)))
    return best, holding


def general_solver(
    problem: CloningProblem, relaxed: bool, cost: object, method: str = "SLSQP"
) -> tuple[np.ndarray, float]:
    """Solve the continuous problem by a general method of scipy.

    ``cost(copies)`` returns (5) for real copies.
    """
    distributions = tasks(problem)
    decay = np.array(
        [-float(distribution.log_survival(problem.deadline)) for distribution in distributions]
    )
    assert callable(cost)

    def slack(r: np.ndarray) -> float:
        h = np.exp(-decay * np.maximum(r, 1.0))
        used = h.sum() if relaxed else -np.log1p(-h).sum()
        return float(1.0 - used / problem.budget)

    room = {"type": "ineq", "fun": lambda r: 1.0 - r.sum() / problem.machines}
    start = np.full(len(distributions), max(problem.machines / len(distributions) * 0.98, 1.0))
    scale = float(cost(start))
    result = minimize(
        lambda r: float(cost(np.maximum(r, 1.0))) / scale,
        start,
        method=method,
        bounds=[(1.0, float(problem.max_copies_per_task))] * len(distributions),
        constraints=[{"type": "ineq", "fun": slack}, room],
        options={"maxiter": 2000, "ftol": 1e-14}
        if method == "SLSQP"
        else {"maxiter": 5000, "gtol": 1e-10, "xtol": 1e-12, "barrier_tol": 1e-10},
    )
    return result.x, float(result.fun) * scale
