"""Monte Carlo simulation of a cloned job, to check the analytic formulas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.special import betaincinv, ndtri

from shadowprice.cloning.problem import CloningProblem, TaskGroup
from shadowprice.cloning.solver import expected_cost, miss_probability
from shadowprice.core import bounds
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.distributions.parametric import (
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
)
from shadowprice.kernels.cloning.draws import min_over_copies

_ALMOST_ONE = 1.0 - 2.0**-53  # largest number below 1; the quantile of 1 is infinite


class DurationSampler:
    """Maps uniform random numbers to durations, with a column for each task of the groups."""

    def __init__(self, groups: Sequence[TaskGroup]) -> None:
        self._distributions = [group.duration for group in groups]
        self._counts = np.array([group.count for group in groups], dtype=np.int64)
        self._owner = np.repeat(np.arange(len(groups), dtype=np.int64), self._counts)
        forms = np.array([type(each) for each in self._distributions], dtype=object)[self._owner]
        self._columns: dict[type[Distribution], Integers] = {
            form: np.flatnonzero(forms == form) for form in dict.fromkeys(forms)
        }
        # S^r has no closed inverse for these tasks, so every copy is drawn.
        self.by_copy = forms == HyperExponential

    def phases(self, drawn: Integers) -> Iterator[tuple[int, int, HyperExponential]]:
        """Yield (first draw, end, distribution) of hyper-exponential groups, for draws by task."""
        ends = np.concatenate([[0], np.cumsum(drawn)])[
            np.concatenate([[0], np.cumsum(self._counts)])
        ]
        for position, distribution in enumerate(self._distributions):
            if isinstance(distribution, HyperExponential):
                yield int(ends[position]), int(ends[position + 1]), distribution

    def times(self, uniforms: Floats, exponents: Integers | None = None) -> Floats:
        """Return times in seconds for uniform numbers in [0, 1), both of shape (trials, tasks).

        A number is a value of 1 - S; columns of hyper-exponential tasks already have times. With
        ``exponents`` r, shape (tasks,), the result is the minimum of r durations, whose survival
        function is S^r. The numbers may be overwritten.
        """
        times = uniforms
        for form, columns in self._columns.items():
            if form is HyperExponential:
                continue
            all_columns = len(columns) == uniforms.shape[1]
            part = uniforms if all_columns else uniforms[:, columns]
            logs = np.log1p(-part)
            if exponents is not None:
                logs /= exponents[columns]
            inverse = self._invert(form, columns, logs)
            if all_columns:
                return inverse
            times[:, columns] = inverse
        return times

    def _invert(self, form: type[Distribution], columns: Integers, logs: Floats) -> Floats:
        """Return the times at which ln S equals ``logs``, with a distribution for each column."""
        distributions = [self._distributions[position] for position in self._owner[columns]]

        def column(name: str) -> Floats:
            return np.array([getattr(distribution, name) for distribution in distributions])

        if form is Pareto:
            logs *= -1.0 / column("shape")
            np.exp(logs, out=logs)
            logs *= column("minimum")
            return logs
        if form is Weibull:
            np.negative(logs, out=logs)
            np.power(logs, 1.0 / column("shape"), out=logs)
            logs *= column("time_scale")
            logs += column("minimum")
            return logs
        if form is LogNormal:
            normal = ndtri(np.minimum(np.exp(logs), _ALMOST_ONE))
            times = column("median") * np.exp(-column("sigma") * normal)
            return np.asarray(times + column("minimum"))
        survival = np.exp(logs)
        for position in np.unique(self._owner[columns]):
            of_distribution = self._owner[columns] == position
            survival[:, of_distribution] = self._distributions[position].inverse_survival(
                survival[:, of_distribution]
            )
        return survival


_NUMBERS_PER_BLOCK = 250_000  # uniform numbers drawn at a time: 2 MB, which fits into the cache


class SamplingMethod(Enum):
    """Method of drawing the shortest duration among a task's copies."""

    COPIES = "copies"
    """Draw every copy and take the minimum, as in the model."""
    WINNER = "winner"
    """Draw the minimum of r copies directly, by inverting its survival function S^r.

    Copies of hyper-exponential tasks are drawn one by one. The distribution is the same as that of
    COPIES, with fewer draws.
    """


@dataclass(frozen=True)
class MonteCarloResult:
    """Results of many simulated runs of a job, with the predictions of the formulas."""

    trials: int
    """Number of runs."""
    misses: int
    """Number of runs that exceeded the deadline."""
    miss_probability: float
    """Share of the runs that exceeded the deadline."""
    interval: tuple[float, float]
    """Clopper-Pearson interval of the miss probability."""
    confidence: float
    """Confidence level of the interval."""
    predicted_miss: float
    """Pr[flowtime > T_d] by (3)."""
    machine_time: float
    """Mean machine seconds of a run."""
    machine_time_error: float
    """Standard error of the mean machine seconds."""
    predicted_machine_time: float
    """Expected machine seconds by (5)."""
    flowtime: float
    """Mean seconds from the start to the end of the last task."""
    flowtime_error: float
    """Standard error of the mean flowtime."""
    flowtimes: Floats
    """Flowtime of every run in seconds."""
    machine_times: Floats
    """Machine seconds of every run."""


def simulate(
    problem: CloningProblem,
    copies: Integers,
    *,
    trials: int = 10_000,
    seed: int = 0,
    draw: SamplingMethod = SamplingMethod.COPIES,
    confidence: float = 0.95,
) -> MonteCarloResult:
    """Run a job ``trials`` times with given numbers of copies.

    ``copies`` has shape (tasks,), in the order of the groups; ``confidence`` is the level of the
    interval. The same seed gives the same runs; the first runs don't depend on the number of
    trials. Raises `InputError` if ``trials`` is not positive or a task has no copy.
    """
    if trials < 1:
        raise InputError(Fault("trials", f"{trials} is not positive", "write 10000"))
    copies = np.asarray(copies, dtype=np.int64)
    if copies.shape != (problem.tasks,) or copies.min() < 1:
        raise InputError(Fault("copies", "every task needs one copy or more"))
    sampler = DurationSampler(problem.groups)
    winners = draw is SamplingMethod.WINNER
    drawn = np.where(sampler.by_copy, copies, 1) if winners else copies
    width = int(drawn.sum())
    block = max(_NUMBERS_PER_BLOCK // width, 1)
    bounds.DRAWS.check(trials * width, "trials", "run fewer trials, or fewer copies")
    rng = np.random.default_rng(seed)
    flowtimes, machine_times = np.empty(trials), np.empty(trials)
    for begin in range(0, trials, block):
        part = slice(begin, min(begin + block, trials))
        numbers = rng.random((part.stop - part.start, width))
        times = _first_to_finish(sampler, numbers, drawn, copies if winners else None)
        flowtimes[part] = times.max(axis=1)
        machine_times[part] = times @ copies
    misses = int((flowtimes > problem.deadline).sum())
    return MonteCarloResult(
        trials=trials,
        misses=misses,
        miss_probability=misses / trials,
        interval=clopper_pearson(misses, trials, confidence),
        confidence=confidence,
        predicted_miss=miss_probability(problem, copies),
        machine_time=float(machine_times.mean()),
        machine_time_error=_error(machine_times),
        predicted_machine_time=expected_cost(problem, copies),
        flowtime=float(flowtimes.mean()),
        flowtime_error=_error(flowtimes),
        flowtimes=flowtimes,
        machine_times=machine_times,
    )


def _first_to_finish(
    sampler: DurationSampler, numbers: Floats, drawn: Integers, exponents: Integers | None
) -> Floats:
    """Return the duration of each task's first copy to finish; overwrites ``numbers``."""
    # Map hyper-exponential draws first: their smallest number isn't always the shortest time.
    for begin, end, distribution in sampler.phases(drawn):
        numbers[:, begin:end] = distribution.from_uniform(numbers[:, begin:end])
    minimum = np.empty((len(numbers), len(drawn)))
    min_over_copies(numbers, drawn, minimum)
    # For other tasks it is, so only the smallest number is mapped.
    return sampler.times(minimum, exponents)


def _error(sample: Floats) -> float:
    return float(sample.std(ddof=1) / math.sqrt(sample.size)) if sample.size > 1 else math.nan


def clopper_pearson(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return the exact (conservative) confidence interval of a probability."""
    tail = 0.5 * (1.0 - confidence)
    low = 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, tail))
    high = 1.0 if hits == trials else 1.0 - float(betaincinv(trials - hits, hits + 1, tail))
    return low, high
