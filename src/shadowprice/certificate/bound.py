"""Smallest upper bound that prices prove: column generation, or the volume algorithm.

Every vector of prices proves a bound (`certificate.relaxation`); the best one solves the dual of
the linear program over all schedules. Every trial proves a bound and the smallest is kept, so the
result is valid whenever the search stops.

Up to 3,000 jobs, column generation finds it: the exact search prices schedules, and a linear
program over the schedules found so far (`Master`) proposes prices. The proposals
oscillate, so the prices tried are between the proposal and the best so far (Wentges' smoothing).

With more jobs that program is slow. The volume algorithm (Barahona and Anbil, *The volume
algorithm: producing primal solutions with a subgradient method*, Mathematical Programming 87, 2000)
needs none: prices rise in slots that the schedules found so far, on average, use too much, and
fall in others. A round costs one pricing of all jobs. The search starts on a sample: every k-th job
in order of arrival, with 1/k of the capacity. By the law of large numbers, the prices of the sample
are close to those of all jobs (Agrawal, Wang, Ye, *A dynamic near-optimal algorithm for online
linear programming*, Operations Research 2014). Only trials over all jobs count as bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import highspy
import numpy as np
from numpy.typing import NDArray

from shadowprice.certificate.relaxation import Column, PricedJobs, Relaxation
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import ShadowpriceError
from shadowprice.policies.milp import QuietHighs

_PRIMAL_SIMPLEX: Final = 4
_IDLE: Final = 8  # rounds after which an unused column is dropped


@dataclass(frozen=True, slots=True)
class GroupColumn:
    """Schedules of a group of jobs at some prices."""

    utility: float  # total utility of the group
    cells: NDArray[np.int32]  # indices of the flattened prices that the group uses, ascending
    shares: Floats  # share of the pool's resource in each of these cells


class Master:
    """Restricted master program, which keeps its basis while columns are added.

        max  sum utility x   s.t.  each group of jobs uses one of its columns,
        shares of each pool's resource in each slot sum to <= 1

    A group's column is the sum of its jobs' schedules at the same prices. Groups make the program
    smaller; its prices stay valid, but it takes longer to converge.
    ``cells`` is the number of flattened prices.
    """

    def __init__(self, groups: int, cells: int) -> None:
        self._groups = groups
        solver = QuietHighs()
        solver.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        rows = groups + cells
        upper = np.ones(rows)
        none = np.zeros(0, dtype=np.int32)
        lower = np.full(rows, -highspy.kHighsInf)
        starts = np.zeros(rows, dtype=np.int32)
        solver.addRows(rows, lower, upper, 0, starts, none, np.zeros(0))
        self._solver = solver
        self._known: set[tuple[int, float, bytes, bytes]] = set()
        self._keys: list[tuple[int, float, bytes, bytes]] = []
        self._idle = np.zeros(0, dtype=np.int64)
        self.value = 0.0

    def add(self, columns: Sequence[tuple[int, GroupColumn]]) -> int:
        """Add the new ones among columns, each with its group; return their number."""
        costs, starts, indices, values = [], [], [], []
        size = 0
        for group, column in columns:
            key = (group, column.utility, column.cells.tobytes(), column.shares.tobytes())
            if key in self._known:
                continue
            self._known.add(key)
            self._keys.append(key)
            costs.append(column.utility)
            starts.append(size)
            indices.append(
                np.concatenate(
                    (np.array([group], dtype=np.int32), column.cells + np.int32(self._groups))
                )
            )
            values.append(np.concatenate((np.ones(1), column.shares)))
            size += len(column.cells) + 1
        if not costs:
            return 0
        count = len(costs)
        self._solver.addCols(
            count,
            np.array(costs),
            np.zeros(count),
            np.full(count, highspy.kHighsInf),
            size,
            np.array(starts, dtype=np.int32),
            np.concatenate(indices).astype(np.int32),
            np.concatenate(values),
        )
        self._idle = np.concatenate((self._idle, np.zeros(count, dtype=np.int64)))
        return count

    def solve(self, seconds: float) -> Floats | None:
        """Solve the program; return the prices of all cells, or None if time ran out.

        Raises `ShadowpriceError` if the solver fails.
        """
        solver = self._solver
        solver.setOptionValue("time_limit", solver.getRunTime() + max(0.01, seconds))
        solver.run()
        status = solver.getModelStatus()
        states = highspy.HighsModelStatus
        if status == states.kTimeLimit:
            return None
        if status not in {states.kOptimal, states.kModelEmpty}:
            raise ShadowpriceError(f"HiGHS stopped: {solver.modelStatusToString(status)}")
        solution = solver.getSolution()
        self.value = float(solver.getInfo().objective_function_value)
        prices = np.maximum(0.0, np.array(solution.row_dual)[self._groups :])
        self._drop(np.array(solution.col_value), np.array(solution.col_dual))
        return np.asarray(prices, dtype=np.float64)

    def _drop(self, weights: Floats, reduced: Floats) -> None:
        """Drop columns that have been unused for long."""
        self._idle = np.where((weights > 0) | (reduced > -1e-9), 0, self._idle + 1)
        stale = np.flatnonzero(self._idle >= _IDLE)
        if len(stale) < max(1000, len(self._keys) // 3):
            return
        self._solver.deleteCols(len(stale), stale.astype(np.int32))
        dropped = set(stale.tolist())
        self._known -= {self._keys[index] for index in dropped}
        self._keys = [key for index, key in enumerate(self._keys) if index not in dropped]
        self._idle = np.delete(self._idle, stale)


_SMOOTHING_WEIGHT: Final = 0.5  # weight of the best prices so far in the next prices
_MAX_COLUMN_GENERATION_JOBS: Final = 3000  # up to which it finds the prices, to the end
_MIN_SAMPLE_JOBS: Final = 600  # number of jobs of the smallest sample
_SAMPLE_GROWTH: Final = 5  # ratio of the numbers of jobs of successive samples
_MAX_GROUPS: Final = 2000  # largest number of groups of jobs in the master program
_PAYOFF_GAP: Final = 1e-3
"""Relative gap of the schedules of trials; their payoffs are upper bounds in any case."""
_INITIAL_STEP: Final = 0.1
_STEP_GROWTH: Final = 1.1
_STEP_SHRINKAGE: Final = 0.66
_MAX_STEP: Final = 2.0
_MAX_FAILURES: Final = 8
"""The step, as a share of the distance to the target, grows with successes and shrinks after this
many failures in a row."""
_TARGET_SHARE: Final = 0.95
_TARGET_MARGIN: Final = 0.02
"""The target is this share of the best bound, and falls if the bound comes this close to it."""
_FINAL_USE_WEIGHT: Final = 0.02
_INITIAL_USE_WEIGHT: Final = 0.2
_WEIGHT_HALVING_TRIALS: Final = 40
"""Weight of a trial's use in the mean use: final, initial, and the trials in which it halves."""
_STALL_TRIALS: Final = 60  # trials after which the search ends if they improved too little together
_NEGLIGIBLE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bound on the total utility of any schedule of a job set."""

    value: float  # the bound, in utility
    prices: Floats  # prices that prove it: utility per slot for all of a pool's resource
    master: float
    """Value of the linear program over the schedules found. The bound of the relaxation lies
    between it and ``value``. It is 0 if no program over all jobs was solved."""
    rounds: int  # number of trials over all jobs
    payoffs: Floats  # best payoff of each job at ``prices``
    utilities: Floats  # utility of the schedule that reaches it
    settled: bool  # whether bound and master agree within the tolerance


Stop = Callable[[], bool]


def never() -> bool:
    """Return False: a stop condition that never holds."""
    return False


def upper_bound(
    oracle: Relaxation,
    *,
    tolerance: float = 1e-3,
    deadline: float = np.inf,
    now: Callable[[], float] = time.perf_counter,
    stop: Stop = never,
    report: Callable[[Bound], None] | None = None,
) -> Bound:
    """Compute the smallest upper bound on the total utility of any schedule of a job set.

    The search stops at the relative distance ``tolerance`` from the program's value, when ``now()``
    reaches ``deadline`` (after at least one trial), or when ``stop`` returns True. ``report`` is
    called with every better bound over all jobs.
    """
    emit = report or emit_nothing
    members = np.arange(oracle.jobs)
    prices = np.zeros(oracle.shape)
    if oracle.jobs <= _MAX_COLUMN_GENERATION_JOBS:
        for bound in _Columns(oracle, prices).search(tolerance, deadline, now, stop):
            emit(bound)
        return bound
    steps, started = _steps(oracle.jobs), now()
    rounds, length = 0, _INITIAL_STEP
    for index, step in enumerate(steps):
        # Half of the time is for trials over all jobs, the rest for the samples.
        until = started + (deadline - started) * (index + 1) / (2 * len(steps))
        until = deadline if step == 1 else until
        sample = np.arange(0, oracle.jobs, step)
        ascent = VolumeSearch(oracle, sample, prices, 1.0 / step, length)
        while now() < until and not stop() and not ascent.settled(tolerance):
            if ascent.improve() and step == 1:
                emit(_bound_at(ascent.prices, ascent.best, ascent.priced, rounds))
            rounds += step == 1
        prices, length = ascent.prices, ascent.step
    exact = oracle.price_all(members, prices)
    value = float(exact.total + (oracle.capacity * prices).sum())
    return _bound_at(prices, value, exact, rounds + 1)


def emit_nothing(*report: object) -> None:
    """Ignore a report."""
    del report


def _bound_at(prices: Floats, value: float, priced: PricedJobs, rounds: int) -> Bound:
    """Return the bound that prices prove, before the program is known to be solved."""
    return Bound(value, prices, 0.0, rounds, priced.payoffs, priced.utilities, False)


def _steps(jobs: int) -> list[int]:
    """Return the sampling interval of each level, down to 1."""
    steps = [1]
    while jobs / steps[-1] > _MIN_SAMPLE_JOBS * _SAMPLE_GROWTH:
        steps.append(steps[-1] * _SAMPLE_GROWTH)
    return steps[::-1]


class VolumeSearch:
    """Better and better prices of the jobs ``members``, by the volume algorithm.

    ``scale`` is their part of the capacity, ``step`` the initial share of the way to the target.
    """

    def __init__(
        self,
        oracle: Relaxation,
        members: Integers,
        prices: Floats,
        scale: float,
        step: float = _INITIAL_STEP,
    ) -> None:
        self._oracle, self._members = oracle, members
        self._capacity = oracle.capacity * scale
        self._counted = oracle.capacity > 0
        self.prices = prices
        self.priced, self.best = self._try(prices)
        self._use = self.priced.use
        self.step = step
        self._failures, self._trials = 0, 0
        self._target = _TARGET_SHARE * self.best
        self._recent = [self.best]

    def settled(self, tolerance: float) -> bool:
        """Return whether many trials improved the bound by less than a relative tolerance."""
        if len(self._recent) <= _STALL_TRIALS:
            return self.best <= _NEGLIGIBLE
        return self._recent[-_STALL_TRIALS] - self.best <= tolerance * max(self.best, _NEGLIGIBLE)

    def improve(self) -> bool:
        """Try other prices; return whether they prove a smaller bound."""
        self._trials += 1
        excess = self._use - self._capacity
        excess[(self.prices <= 0) & (excess < 0)] = 0.0
        norm = float((excess**2).sum())
        if norm <= _NEGLIGIBLE**2:
            self._recent += [self.best] * _STALL_TRIALS
            return False
        length = self.step * max(0.0, self.best - self._target) / norm
        prices = np.maximum(0.0, self.prices + length * excess) * self._counted
        priced, value = self._try(prices)
        weight = max(
            _FINAL_USE_WEIGHT, _INITIAL_USE_WEIGHT / (1.0 + self._trials / _WEIGHT_HALVING_TRIALS)
        )
        self._use = weight * priced.use + (1.0 - weight) * self._use
        better = value < self.best
        if better:
            if float((excess * (priced.use - self._capacity)).sum()) > 0:
                self.step = min(_MAX_STEP, self.step * _STEP_GROWTH)
            self.prices, self.priced, self.best = prices, priced, value
            self._failures = 0
        else:
            self._failures += 1
            # A trial that is worse by the whole distance to the target went much too far.
            if self._failures >= _MAX_FAILURES or value - self.best > self.best - self._target:
                self.step, self._failures = self.step * _STEP_SHRINKAGE, 0
        if self.best - self._target < _TARGET_MARGIN * self.best:
            self._target = _TARGET_SHARE * self.best
        self._recent.append(self.best)
        return better

    def _try(self, prices: Floats) -> tuple[PricedJobs, float]:
        """Return jobs at prices, and the bound that the prices prove for them."""
        priced = self._oracle.price_all(self._members, prices, _PAYOFF_GAP)
        return priced, float(priced.total + (self._capacity * prices).sum())


class _Columns:
    """Column generation over all jobs."""

    def __init__(self, oracle: Relaxation, prices: Floats) -> None:
        self._oracle, self._prices = oracle, prices
        self._capacity = oracle.capacity
        size = max(1, -(-oracle.jobs // _MAX_GROUPS))
        self._group = [job // size for job in range(oracle.jobs)]
        self._groups = (self._group[-1] + 1) if self._group else 0
        self._rounds = 0

    def search(
        self, tolerance: float, until: float, now: Callable[[], float], stop: Stop
    ) -> Iterator[Bound]:
        """Improve the prices; yield every bound that is better than the previous ones."""
        found_columns, bound = self._try(self._prices, 0.0)
        if bound.value <= _NEGLIGIBLE:
            yield replace(bound, settled=True)
            return
        yield bound
        program = Master(self._groups, int(np.prod(self._oracle.shape)))
        program.add(found_columns)
        while now() < until and not stop():
            proposed = program.solve(until - now())
            if proposed is None:
                return
            proposed = proposed.reshape(self._oracle.shape)
            master = program.value
            if bound.value - master <= tolerance * max(abs(bound.value), _NEGLIGIBLE):
                yield replace(bound, master=master, settled=True)
                return
            added = 0
            for trial in (
                _SMOOTHING_WEIGHT * bound.prices + (1 - _SMOOTHING_WEIGHT) * proposed,
                proposed,
            ):
                found_columns, found = self._try(trial, master)
                added = program.add(found_columns)
                if found.value < bound.value:
                    bound = found
                    yield bound
                if added:
                    break
                # Smoothed prices give no new column, so the master's own prices are tried.
            if not added:
                return

    def _try(self, prices: Floats, master: float) -> tuple[list[tuple[int, GroupColumn]], Bound]:
        """Return each group's schedules at prices, and the bound that these prove."""
        self._rounds += 1
        jobs = self._oracle.jobs
        payoffs, utilities = np.zeros(jobs), np.zeros(jobs)
        chosen: list[list[Column]] = [[] for _ in range(self._groups)]
        one_job_each = self._groups == jobs
        for job in range(jobs):
            payoff, column = self._oracle.price(job, prices)
            payoffs[job] = max(0.0, payoff)
            if column is not None:
                utilities[job] = column.utility
                if payoff > 0 or one_job_each:
                    chosen[self._group[job]].append(column)
        found = [(group, self._sum_columns(parts)) for group, parts in enumerate(chosen) if parts]
        value = float((self._capacity * prices).sum() + payoffs.sum())
        return found, Bound(value, prices, master, self._rounds, payoffs, utilities, False)

    def _sum_columns(self, parts: Sequence[Column]) -> GroupColumn:
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
