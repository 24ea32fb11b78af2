"""Checks that the solver's stationary point is optimal, although g need not be convex."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from shadowprice.cloning.feasible import miss_terms
from shadowprice.cloning.integer import IntegerCopies
from shadowprice.cloning.problem import CloningProblem
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.kernels.cloning.curves import curves
from shadowprice.kernels.cloning.kinds import KNOT_STEP


class ConvexityCondition(Enum):
    """Condition under which the problem is convex."""

    LEMMA_1 = "lemma-1"
    """g'' >= 0: by the form of the distribution, or at every number of copies in the range."""
    WIDER = "wider"  # g'' >= min(0, -a g'), with a = -ln S(T_d): convex in S(T_d)^r instead of in r
    CERTIFIED = "certified"
    """Neither holds everywhere, but no number of copies beyond the convex range is better."""


@dataclass(frozen=True)
class Convexity:
    """Result of the check."""

    condition: ConvexityCondition
    max_copies: Integers
    """Largest number of copies of a task of each merged group for which the condition holds."""
    convex: Flags  # merged groups whose g is convex in r (Lemma 1's conclusion)
    doubtful: Integers  # merged groups for which the condition fails beyond ``max_copies``

    def certify(
        self,
        problem: CloningProblem,
        relaxed: bool,
        prices: tuple[float, float],
        ratios: Floats,
        violation: float,
    ) -> None:
        """Prove that doubtful groups gain nothing beyond the convex range, or refuse.

        By weak duality, the KKT point is optimal if it minimises each task's Lagrangian over all
        numbers of copies, not only over the range in which convexity implies that.
        """
        if not len(self.doubtful):
            return
        if violation > 1e-6:
            self._refuse(problem, int(self.doubtful[0]))
        insides = _lagrangian(problem, relaxed, prices, self.doubtful, ratios[self.doubtful])
        for group, inside in zip(self.doubtful.tolist(), insides.tolist(), strict=True):
            beyond = self._nonconvex_minimum(problem, relaxed, prices, group)
            if np.any(beyond < inside - 1e-9 * abs(inside)):
                self._refuse(problem, group)

    def certify_integer(
        self,
        problem: CloningProblem,
        relaxed: bool,
        prices: tuple[float, float],
        ratios: Floats,
        whole: IntegerCopies,
    ) -> IntegerCopies:
        """Prove that integer copies beyond the convex range cost more.

        If that can't be proved, the result isn't marked as optimal, and its bound is that of weak
        duality.
        """
        if not len(self.doubtful):
            return whole
        arrays = problem.arrays
        every = np.arange(len(arrays.tasks), dtype=np.int64)
        inside = _lagrangian(problem, relaxed, prices, every, ratios)
        k, l = prices  # noqa: E741
        bound = float(arrays.tasks @ inside) - k * problem.budget - l * problem.machines
        out = np.empty((len(whole.groups), 3))
        curves(arrays, whole.groups, whole.copies.astype(np.float64), out)
        excess = float(whole.tasks @ out[:, 0]) - bound
        for group in self.doubtful.tolist():
            beyond = self._nonconvex_minimum(problem, relaxed, prices, group)
            if np.any(beyond - inside[group] < excess):
                return replace(whole, bound=min(bound, whole.bound), proved=False)
        return whole

    def _nonconvex_minimum(
        self, problem: CloningProblem, relaxed: bool, prices: tuple[float, float], group: int
    ) -> Floats:
        """Return the Lagrangian of a doubtful group at copies beyond its convex range."""
        max_copies, last = float(self.max_copies[group]), float(problem.max_copies_per_task)
        near = np.arange(max_copies, min(max_copies + 1000.0, last)) + 1.0
        far = np.arange(np.log(max_copies), np.log(last) + KNOT_STEP, KNOT_STEP)
        copies = np.concatenate([near, np.minimum(np.exp(far), last)])
        groups = np.full(len(copies), group, dtype=np.int64)
        return _lagrangian(problem, relaxed, prices, groups, copies)

    def _refuse(self, problem: CloningProblem, group: int) -> None:
        """Refuse the problem because of a merged group."""
        position = int(np.flatnonzero(problem.member == group)[0])
        distribution = problem.groups[position].duration
        raise InputError(
            Fault(
                f"tasks[{position}].duration",
                f"this {distribution.label} distribution breaks Lemma 1's condition beyond "
                f"{self.max_copies[group]} copies "
                "(its cost curve is not convex there), and more copies may be better: a solution "
                "may not be the optimum",
                "allow a longer deadline or fewer machines, or describe the tasks by a "
                "distribution whose hazard falls (pareto, weibull with shape <= 1, "
                "hyper-exponential)",
            )
        )


def check_convexity(problem: CloningProblem) -> Convexity:
    """Check Lemma 1's conclusion, or the wider condition, on the range of numbers of copies.

    Pareto, Weibull of shape <= 1 and hyper-exponential distributions satisfy Lemma 1 by their form.
    The others are checked at every knot of their tables up to M - N + 1 copies.
    """
    last = problem.max_copies_per_task
    max_copies = np.full(len(problem.arrays.tasks), last, dtype=np.int64)
    convex = np.ones(len(problem.arrays.tasks), dtype=np.bool_)
    for member, group in zip(problem.member, problem.groups, strict=True):
        convex[member] = group.duration.convex_by_form
    checked = np.flatnonzero(~convex)
    if not len(checked) or last == 1:
        return Convexity(
            ConvexityCondition.LEMMA_1, max_copies, convex, np.zeros(0, dtype=np.int64)
        )
    knots = np.arange(0.0, np.log(last) + KNOT_STEP, KNOT_STEP)
    ratios = np.minimum(np.exp(knots), float(last))
    decay = problem.arrays.decay[checked]
    convex[:] = True
    reach = np.full(len(checked), np.inf)
    out = np.empty((len(checked), 3))
    for ratio in ratios:
        curves(problem.arrays, checked, np.full(len(checked), ratio), out)
        slope, bow = out[:, 1], out[:, 2]
        noise = 1e-9 * np.abs(slope) / ratio
        convex[checked] &= bow >= -noise
        broken = bow < np.minimum(0.0, -decay * slope) - noise
        reach[broken & np.isinf(reach)] = ratio
    doubtful = np.isfinite(reach)
    if not np.any(doubtful):
        condition = ConvexityCondition.LEMMA_1 if convex.all() else ConvexityCondition.WIDER
        return Convexity(condition, max_copies, convex, np.zeros(0, dtype=np.int64))
    below = np.exp(np.log(reach[doubtful]) - KNOT_STEP).astype(np.int64)
    max_copies[checked[doubtful]] = np.maximum(below, 1)
    return Convexity(ConvexityCondition.CERTIFIED, max_copies, convex, checked[doubtful])


def _lagrangian(
    problem: CloningProblem,
    relaxed: bool,
    prices: tuple[float, float],
    groups: Integers,
    ratios: Floats,
) -> Floats:
    out = np.empty((len(groups), 3))
    curves(problem.arrays, groups, ratios, out)
    phi = miss_terms(problem.arrays.decay[groups], ratios, relaxed)
    return np.asarray(out[:, 0] + prices[0] * phi + prices[1] * ratios)
