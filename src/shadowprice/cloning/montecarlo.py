"""Run a cloned job many times, to hold the formulas against what happens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from shadowprice.cloning.draws import Sampler
from shadowprice.cloning.problem import CloningProblem
from shadowprice.cloning.solver import expected_cost, miss_probability
from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.kernels.cloning.draws import least_of_copies

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_BLOCK = 250_000
"""Uniform numbers drawn at a time: 2 MB, which stay in the cache."""


class Draw(Enum):
    """How the first copy to finish is drawn."""

    COPIES = "copies"
    """Draw every copy and take the first: the model, literally."""
    WINNER = "winner"
    """Draw the first one itself: the least of r draws has survival S^r, and its inverse is known
    (except for hyper-exponential tasks, whose copies are drawn). The same law, fewer draws."""


@dataclass(frozen=True)
class Measured:
    """What many runs of a job show, beside what the formulas say.

    Attributes
    ----------
    trials : int
        Runs.
    misses : int
        Runs that outlasted the deadline.
    miss_probability : float
        Their share.
    interval : (float, float)
        Clopper-Pearson interval of the miss probability.
    confidence : float
        Its level.
    predicted_miss : float
        Pr[flowtime > T_d] by (3).
    machine_time, machine_time_error : float
        Mean machine seconds of a run and its standard error.
    predicted_machine_time : float
        (5).
    flowtime, flowtime_error : float
        Mean seconds from start to the last task's end, and its standard error.
    flowtimes, machine_times : ndarray, shape (trials,)
        Every run's.
    """

    trials: int
    misses: int
    miss_probability: float
    interval: tuple[float, float]
    confidence: float
    predicted_miss: float
    machine_time: float
    machine_time_error: float
    predicted_machine_time: float
    flowtime: float
    flowtime_error: float
    flowtimes: Floats
    machine_times: Floats


def simulate(
    problem: CloningProblem,
    copies: Integers,
    *,
    trials: int = 10_000,
    seed: int = 0,
    draw: Draw = Draw.COPIES,
    confidence: float = 0.95,
) -> Measured:
    """Run the job ``trials`` times with given numbers of copies.

    Parameters
    ----------
    problem : CloningProblem
        Tasks and deadline.
    copies : ndarray of int64, shape (tasks,)
        Copies of every task, in the order of the groups.
    trials : int
        Runs.
    seed : int
        Seed; the same seed gives the same runs, and the first runs do not depend on how many
        follow.
    draw : Draw
        Every copy, or the winner's law.
    confidence : float
        Level of the interval.

    Returns
    -------
    Measured
        Misses, machine time and flowtime, with the formulas' values.

    Raises
    ------
    InputError
        If ``trials`` is not positive or some task has no copy.
    """
    if trials < 1:
        raise InputError(Fault("trials", f"{trials} runs show nothing", "write 10000"))
    copies = np.asarray(copies, dtype=np.int64)
    if copies.shape != (problem.tasks,) or copies.min() < 1:
        raise InputError(Fault("copies", "every task needs one copy or more"))
    sampler = Sampler(problem.groups)
    winners = draw is Draw.WINNER
    drawn = np.where(sampler.by_copy, copies, 1) if winners else copies
    width = int(drawn.sum())
    block = max(_BLOCK // width, 1)
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
    return Measured(
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
    sampler: Sampler, numbers: Floats, drawn: Integers, exponents: Integers | None
) -> Floats:
    """Return every task's duration, shape (trials, tasks), from a uniform number a draw."""
    # A hyper-exponential copy becomes a time at once: two numbers say phase and rest of one draw.
    for begin, end, law in sampler.phases(drawn):
        numbers[:, begin:end] = law.from_uniform(numbers[:, begin:end])
    least = np.empty((len(numbers), len(drawn)))
    least_of_copies(numbers, drawn, least)
    # Elsewhere S^-1 falls, so the least time is that of the least number: turned into a time
    # once, with the same result as turning every copy.
    return sampler.times(least, exponents)


def _error(sample: Floats) -> float:
    return float(sample.std(ddof=1) / math.sqrt(sample.size)) if sample.size > 1 else math.nan


def clopper_pearson(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return the exact (conservative) interval of a probability.

    Parameters
    ----------
    hits, trials : int
        How often it happened, of how many.
    confidence : float
        Level, in (0, 1).
    """
    tail = 0.5 * (1.0 - confidence)
    low = 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, tail))
    high = 1.0 if hits == trials else 1.0 - float(betaincinv(trials - hits, hits + 1, tail))
    return low, high
