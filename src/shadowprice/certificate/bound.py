"""Smallest upper bound that prices prove, by column generation from samples to all jobs.

Every vector of prices proves a bound (`certificate.relaxation`); the best one solves the dual of
the linear program over all schedules. Column generation finds it: the exact search prices
schedules, and a linear program over the schedules found so far (`certificate.master`) proposes
prices. The proposals oscillate, so the prices tried are between the proposal and the best so far
(Wentges' smoothing). Every trial proves a bound and the smallest is kept, so the result is valid
whenever the search stops.

With thousands of jobs both steps are slow, but all jobs share the prices. The search therefore
starts on a sample: every k-th job in order of arrival, with 1/k of the capacity. By the law of
large numbers, the prices of the sample are close to those of all jobs (Agrawal, Wang, Ye, *A
dynamic near-optimal algorithm for online linear programming*, Operations Research 2014). Only
trials over all jobs count as bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.certificate.master import GroupColumn, Master
from shadowprice.certificate.relaxation import Column, PricingOracle

Floats = NDArray[np.float64]

_SMOOTH: Final = 0.5
"""Weight of the best prices so far in the next prices."""
_SAMPLE: Final = 600
"""Number of jobs of the smallest sample."""
_GROWTH: Final = 5
"""Ratio of the numbers of jobs of successive samples."""
_GROUPS: Final = 2000
"""Largest number of groups of jobs in the master program."""
_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bound on the total utility of any schedule of a job set."""

    value: float
    """The bound, in utility."""
    prices: Floats
    """Prices that prove it: utility per slot for all of a pool's resource."""
    master: float
    """Value of the linear program over the schedules found. The bound of the relaxation lies
    between it and ``value``. It is 0 if no program over all jobs was solved."""
    rounds: int
    """Number of trials over all jobs."""
    columns: tuple[Column | None, ...]
    """Best schedule of each job at ``prices``."""
    settled: bool
    """Whether bound and master agree within the tolerance."""


Stop = Callable[[], bool]


def never() -> bool:
    """Return False: a stop condition that never holds."""
    return False


def upper_bound(
    oracle: PricingOracle,
    capacity_cost: Callable[[Floats], float],
    *,
    tolerance: float = 1e-3,
    deadline: float = np.inf,
    now: Callable[[], float] = time.perf_counter,
    stop: Stop = never,
    report: Callable[[Bound], None] | None = None,
) -> Bound:
    """Compute the smallest upper bound on the total utility of any schedule of a job set.

    ``oracle`` returns proved payoffs at prices, and ``capacity_cost`` the price of all capacity.
    The search stops at the relative distance ``tolerance`` of bound and master, when ``now()``
    reaches ``deadline`` (after at least one trial), or when ``stop`` returns True between trials.
    ``report`` is called with every better bound over all jobs.
    """
    prices = np.zeros(oracle.shape)
    all_jobs = np.arange(oracle.jobs)
    steps = list(_steps(oracle.jobs))
    started = now()
    for index, step in enumerate(steps):
        remaining = deadline - now()
        complete = step == 1
        # Half of the time is for trials over all jobs, the rest for the samples.
        until = (
            deadline
            if complete
            else started + (deadline - started) * (index + 1) / (2 * len(steps))
        )
        level = _Level(oracle, capacity_cost, all_jobs[::step], prices, 1.0 / step)
        for bound in level.search(
            tolerance if complete else max(tolerance, 5e-3), until, now, stop
        ):
            if complete and report is not None:
                report(bound)
            prices = bound.prices
        if complete or remaining <= 0:
            break
    if step != 1:
        level = _Level(oracle, capacity_cost, all_jobs, prices, 1.0)
        bound = level.first()
    return bound


def _steps(jobs: int) -> Iterator[int]:
    """Return the sampling interval of each level, down to 1."""
    step = 1
    steps = [1]
    while jobs / step > _SAMPLE * _GROWTH:
        step *= _GROWTH
        steps.append(step)
    return iter(reversed(steps))


class _Level:
    """Column generation over a sample of the jobs."""

    def __init__(
        self,
        oracle: PricingOracle,
        capacity_cost: Callable[[Floats], float],
        members: NDArray[np.int64],
        prices: Floats,
        scale: float,
    ) -> None:
        self._oracle, self._capacity_cost = oracle, capacity_cost
        self._members = members.tolist()
        self._scale = scale
        self._prices = prices
        size = max(1, -(-len(self._members) // _GROUPS))
        self._group = [position // size for position in range(len(self._members))]
        self._groups = (self._group[-1] + 1) if self._group else 0
        self._rounds = 0

    def first(self) -> Bound:
        """Return the bound of the initial prices."""
        value, columns, _ = self._try(self._prices)
        return Bound(value, self._prices, 0.0, self._rounds, tuple(columns), False)

    def search(
        self, tolerance: float, until: float, now: Callable[[], float], stop: Stop
    ) -> Iterator[Bound]:
        """Improve the prices; yield every bound that is better than the previous ones."""
        best_prices = self._prices
        best, columns, found_columns = self._try(best_prices)
        master = 0.0
        bound = Bound(best, best_prices, 0.0, self._rounds, tuple(columns), best <= _NOTHING)
        yield bound
        if bound.settled:
            return
        program = Master(self._groups, int(np.prod(self._oracle.shape)), self._scale)
        program.add(found_columns)
        while now() < until and not stop():
            proposed = program.solve(until - now())
            if proposed is None:
                return
            proposed = proposed.reshape(self._oracle.shape)
            master = program.value
            settled = best - master <= tolerance * max(abs(best), _NOTHING)
            if settled:
                yield Bound(best, best_prices, master, self._rounds, bound.columns, True)
                return
            added = 0
            for trial in (_SMOOTH * best_prices + (1 - _SMOOTH) * proposed, proposed):
                value, columns, found_columns = self._try(trial)
                added = program.add(found_columns)
                if value < best:
                    best, best_prices = value, trial
                    bound = Bound(best, trial, master, self._rounds, tuple(columns), False)
                    yield bound
                if added:
                    break
                # Smoothed prices give no new column, so the master's own prices are tried.
            if not added:
                return

    def _try(
        self, prices: Floats
    ) -> tuple[float, list[Column | None], list[tuple[int, GroupColumn]]]:
        """Return the bound that prices prove, each job's schedule, and each group's."""
        self._rounds += 1
        total = self._scale * self._capacity_cost(prices)
        columns: list[Column | None] = []
        chosen: list[list[Column]] = [[] for _ in range(self._groups)]
        one_job_each = self._groups == len(self._members)
        for position, member in enumerate(self._members):
            payoff, column = self._oracle.price(member, prices)
            columns.append(column)
            total += max(0.0, payoff)
            if column is not None and (payoff > 0 or one_job_each):
                chosen[self._group[position]].append(column)
        found = [(group, self._join(parts)) for group, parts in enumerate(chosen) if parts]
        return total, columns, found

    def _join(self, parts: Sequence[Column]) -> GroupColumn:
        """Return the combined utility and use of a group's schedules."""
        utility = sum(column.utility for column in parts)
        used = [column for column in parts if len(column.use)]
        if not used:
            return GroupColumn(utility, np.zeros(0, dtype=np.int32), np.zeros(0))
        first = min(column.first for column in used)
        last = max(column.first + len(column.use) for column in used)
        total = np.zeros((last - first, *self._oracle.shape[1:]))
        for column in used:
            begin = column.first - first
            total[begin : begin + len(column.use)] += column.use
        flat = total.reshape(-1)
        cells = np.flatnonzero(flat)
        offset = first * int(np.prod(self._oracle.shape[1:]))
        return GroupColumn(utility, (cells + offset).astype(np.int32), flat[cells])
