"""Smallest upper bound that prices prove: column generation, or the volume algorithm.

Every vector of prices proves a bound (`certificate.relaxation`); the best one solves the dual of
the linear program over all schedules. A trial computes the bound of some prices. The smallest bound
is kept, so the result is valid whenever the search stops.

A pool is a group of servers that counts as one machine. Its limits are linear constraints on the
processes that it holds. A cell is a limit of a pool in a slot, and each cell has a price.

Up to 3,000 jobs, column generation finds these prices. `Relaxation.price` finds each job's best
schedule at given prices, exactly. A linear program over all schedules found so far (`Master`)
proposes the next prices. The proposals oscillate, so trials mix the proposal with the best prices
so far (Wentges' smoothing).

With more jobs the linear program is slow, so the volume algorithm replaces it (Barahona and Anbil,
*The volume algorithm: producing primal solutions with a subgradient method*, Mathematical
Programming 87, 2000). Prices rise in slots that the mean of all schedules so far overuses, and fall
in other slots. A round costs one pricing of all jobs. The search starts on a sample: every k-th job
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

_PRIMAL_SIMPLEX: Final = 4  # a basis stays primal feasible when columns are added
_MAX_IDLE_ROUNDS: Final = 8  # rounds after which an unused column is dropped
_MIN_DROPPED: Final = 1000  # a deletion rebuilds all keys, so many columns are dropped at once


@dataclass(frozen=True, slots=True)
class GroupColumn:
    """Schedules of a group of jobs at some prices."""

    utility: float  # total utility of the group
    cells: NDArray[np.int32]  # indices of the flattened prices that the group uses, ascending
    shares: Floats  # share of the pool's capacity in each of these cells


class Master:
    """Restricted master program, which keeps its basis while columns are added.

        max  sum utility x   s.t.  x of each group's columns sums to <= 1,
        used shares of each limit of each pool in each slot sum to <= 1

    A group's column is the sum of its jobs' schedules at the same prices. Groups make the program
    smaller. Its prices stay valid, but convergence takes longer.
    ``groups`` and ``cells`` are the numbers of groups and of flattened prices.
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
        """Add the new columns, each with its group; return how many are new."""
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
        # A reduced cost of 0 means that the column could enter the basis at no loss.
        self._idle = np.where((weights > 0) | (reduced > -1e-9), 0, self._idle + 1)
        stale = np.flatnonzero(self._idle >= _MAX_IDLE_ROUNDS)
        if len(stale) < max(_MIN_DROPPED, len(self._keys) // 3):
            return
        self._solver.deleteCols(len(stale), stale.astype(np.int32))
        dropped = set(stale.tolist())
        self._known -= {self._keys[index] for index in dropped}
        self._keys = [key for index, key in enumerate(self._keys) if index not in dropped]
        self._idle = np.delete(self._idle, stale)


_SMOOTHING_WEIGHT: Final = 0.5  # weight of the best prices so far in the next prices
_MAX_COLUMN_GENERATION_JOBS: Final = 3000  # the linear program is too slow for more jobs
_MIN_SAMPLE_JOBS: Final = 600  # minimum number of jobs of a sample
_SAMPLE_GROWTH: Final = 5  # ratio of the numbers of jobs of successive samples
_MAX_GROUPS: Final = 2000  # maximum number of groups of jobs in the master program
_PAYOFF_GAP: Final = 1e-3
"""Relative optimality gap of schedules in the volume algorithm; payoffs stay upper bounds."""
# Step lengths are shares of the distance from the best bound to the target.
_INITIAL_STEP: Final = 0.1
_MAX_STEP: Final = 2.0
_STEP_GROWTH: Final = 1.1  # factor after a success, if a longer step does better
_STEP_SHRINKAGE: Final = 0.66  # factor after too many failures, or a much too long step
_MAX_FAILURES: Final = 8  # failures in a row after which the step shrinks
_TARGET_SHARE: Final = 0.95
_TARGET_MARGIN: Final = 0.02
"""The target, a guess of the optimum, is this share of the best bound. If the bound comes closer to
the target than this margin, the target falls."""
_FINAL_USE_WEIGHT: Final = 0.02
_INITIAL_USE_WEIGHT: Final = 0.2
_WEIGHT_HALVING_TRIALS: Final = 40
"""Weight of a trial's capacity use in the mean use: final, initial, and trials until half."""
_STALL_TRIALS: Final = 60  # the search ends if this many trials together improved too little
_NEGLIGIBLE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bound on the total utility of any schedule of a job set."""

    value: float  # the bound, in utility
    prices: Floats
    """Prices that prove the bound: utility per slot for the whole of a limit, shape (slots, pools,
    limits)."""
    master: float
    """Value of the linear program over the schedules found, 0 if none was solved over all jobs.
    The smallest bound of the relaxation lies between ``master`` and ``value``."""
    rounds: int  # number of trials over all jobs
    payoffs: Floats  # best payoff of each job at ``prices``
    utilities: Floats  # utility of each job's schedule with that payoff
    settled: bool  # whether ``value`` and ``master`` agree within the tolerance


Stop = Callable[[], bool]


def never() -> bool:
    """Return False: the stop condition of a search that only ends by itself."""
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

    The search stops at the relative distance ``tolerance`` from the linear program's value, or
    without a program when trials improve the bound by less. It also stops when ``now()`` reaches
    ``deadline`` (after at least one trial), or when ``stop`` returns True. ``report`` is called
    with every better bound over all jobs.
    """
    emit = report or emit_nothing
    members = np.arange(oracle.jobs)
    prices = np.zeros(oracle.shape)
    if oracle.jobs <= _MAX_COLUMN_GENERATION_JOBS:
        for bound in _ColumnGeneration(oracle, prices).search(tolerance, deadline, now, stop):
            emit(bound)
        return bound
    intervals, started = _sampling_intervals(oracle.jobs), now()
    rounds, step = 0, _INITIAL_STEP
    for index, interval in enumerate(intervals):
        # All samples take less than half of the time. The rest is for trials over all jobs.
        until = started + (deadline - started) * (index + 1) / (2 * len(intervals))
        until = deadline if interval == 1 else until
        sample = np.arange(0, oracle.jobs, interval)
        search = VolumeSearch(oracle, sample, prices, 1.0 / interval, step)
        while now() < until and not stop() and not search.settled(tolerance):
            if search.improve() and interval == 1:
                emit(_bound_at(search.prices, search.best, search.priced, rounds))
            rounds += interval == 1
        prices, step = search.prices, search.step
    # Trials only bound each payoff from above, within `_PAYOFF_GAP`. The exact payoffs give a
    # bound that is at most as large.
    exact = oracle.price_all(members, prices)
    value = float(exact.total + (oracle.capacity * prices).sum())
    return _bound_at(prices, value, exact, rounds + 1)


def emit_nothing(*report: object) -> None:
    """Ignore a report."""
    del report


def _bound_at(prices: Floats, value: float, priced: PricedJobs, rounds: int) -> Bound:
    """Return the bound of prices, without a value of the linear program."""
    return Bound(value, prices, 0.0, rounds, priced.payoffs, priced.utilities, False)


def _sampling_intervals(jobs: int) -> list[int]:
    """Return k of each sample (every k-th job), from the smallest sample to all jobs (1)."""
    intervals = [1]
    while jobs / intervals[-1] > _MIN_SAMPLE_JOBS * _SAMPLE_GROWTH:
        intervals.append(intervals[-1] * _SAMPLE_GROWTH)
    return intervals[::-1]


class VolumeSearch:
    """Search for the best prices of the jobs ``members``, by the volume algorithm.

    ``scale`` is the fraction of the capacity that these jobs share. ``step`` is the initial step
    length, as a share of the distance from the best bound to the target.
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
        """Return whether the last trials together improved the bound by at most ``tolerance``."""
        if len(self._recent) <= _STALL_TRIALS:
            return self.best <= _NEGLIGIBLE
        return self._recent[-_STALL_TRIALS] - self.best <= tolerance * max(self.best, _NEGLIGIBLE)

    def improve(self) -> bool:
        """Try other prices; return whether they prove a smaller bound."""
        self._trials += 1
        excess = self._use - self._capacity
        excess[(self.prices <= 0) & (excess < 0)] = 0.0  # a price can't fall below 0
        norm = float((excess**2).sum())
        if norm <= _NEGLIGIBLE**2:  # optimal: no price has a reason to change
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
            # Use at the new prices still exceeds the same capacity: a longer step does better.
            if float((excess * (priced.use - self._capacity)).sum()) > 0:
                self.step = min(_MAX_STEP, self.step * _STEP_GROWTH)
            self.prices, self.priced, self.best = prices, priced, value
            self._failures = 0
        else:
            self._failures += 1
            # A bound that rises by more than the distance to the target shows much too long a step.
            if self._failures >= _MAX_FAILURES or value - self.best > self.best - self._target:
                self.step, self._failures = self.step * _STEP_SHRINKAGE, 0
        if self.best - self._target < _TARGET_MARGIN * self.best:
            self._target = _TARGET_SHARE * self.best
        self._recent.append(self.best)
        return better

    def _try(self, prices: Floats) -> tuple[PricedJobs, float]:
        """Price the members; return the result and the bound on their total utility."""
        priced = self._oracle.price_all(self._members, prices, _PAYOFF_GAP)
        return priced, float(priced.total + (self._capacity * prices).sum())


class _ColumnGeneration:
    def __init__(self, oracle: Relaxation, prices: Floats) -> None:
        self._oracle, self._prices = oracle, prices
        self._capacity = oracle.capacity
        size = max(1, -(-oracle.jobs // _MAX_GROUPS))
        self._group_of_job = [job // size for job in range(oracle.jobs)]
        self._groups = (self._group_of_job[-1] + 1) if self._group_of_job else 0
        self._rounds = 0

    def search(
        self, tolerance: float, until: float, now: Callable[[], float], stop: Stop
    ) -> Iterator[Bound]:
        """Improve the prices; yield every bound that is better than the previous ones."""
        columns, bound = self._try(self._prices, 0.0)
        if bound.value <= _NEGLIGIBLE:
            yield replace(bound, settled=True)
            return
        yield bound
        program = Master(self._groups, int(np.prod(self._oracle.shape)))
        program.add(columns)
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
                columns, trial_bound = self._try(trial, master)
                added = program.add(columns)
                if trial_bound.value < bound.value:
                    bound = trial_bound
                    yield bound
                if added:
                    break
                # Smoothed prices give no new column, so the next trial uses the proposed prices.
            if not added:  # the program is optimal: only rounding separates it from the bound
                return

    def _try(self, prices: Floats, master: float) -> tuple[list[tuple[int, GroupColumn]], Bound]:
        """Return each group's column at prices, and the bound of the prices."""
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
                # A schedule with a negative payoff would make its group's column worse. If the job
                # is alone in its group, the schedule may have a positive payoff at later prices.
                if payoff > 0 or one_job_each:
                    chosen[self._group_of_job[job]].append(column)
        columns = [(group, self._sum_columns(parts)) for group, parts in enumerate(chosen) if parts]
        value = float((self._capacity * prices).sum() + payoffs.sum())
        return columns, Bound(value, prices, master, self._rounds, payoffs, utilities, False)

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
