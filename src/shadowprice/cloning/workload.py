"""Jobs for the heavily loaded regime: arrivals, tasks, what rules know and what happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shadowprice.cloning.api import Distribution, Empirical, TaskGroup
from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class WaveJobs:
    """Jobs in the order of their arrival.

    Attributes
    ----------
    arrival : ndarray, shape (jobs,)
        Seconds.
    priority : ndarray, shape (jobs,)
        Higher goes first; equal ones in the order of arrival.
    first : ndarray of int64, shape (jobs + 1,)
        First task of each job.
    laws : tuple of Distribution
        What rules know of durations.
    law : ndarray of int64, shape (tasks,)
        Law of each task.
    scale : ndarray, shape (tasks,)
        Factor of each task's durations (a task with more input).
    durations : ndarray, shape (tasks, copies)
        Seconds that the first, second, ... copy would run. The same whatever the rule: rules are
        compared on the same luck.
    """

    arrival: Floats
    priority: Floats
    first: Integers
    laws: tuple[Distribution, ...]
    law: Integers
    scale: Floats
    durations: Floats

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return len(self.arrival)

    @property
    def expected_work(self) -> float:
        """Expected machine seconds of all tasks in one copy each."""
        means = np.array([law.mean for law in self.laws])
        return float(means[self.law] @ self.scale)


def poisson_jobs(
    groups: Sequence[TaskGroup],
    *,
    machines: int,
    load: float,
    jobs: int,
    seed: int = 0,
    spread: float = 1.0,
    most: int = 4,
) -> WaveJobs:
    """Draw jobs of the same tasks that arrive at random.

    Parameters
    ----------
    groups : sequence of TaskGroup
        The tasks of a job.
    machines : int
        M.
    load : float
        Arrival rate times a job's expected work in one copy each, over M.
    jobs : int
        How many.
    seed : int
        Of everything drawn.
    spread : float
        A job's durations are multiplied by a factor drawn log-uniformly from [1/spread, spread]
        (known to the rules); 1 for equal jobs.
    most : int
        Copies of each task that durations are drawn for.

    Returns
    -------
    WaveJobs
        The jobs, all of one priority.
    """
    _check_positive(machines=machines, load=load, jobs=jobs, most=most)
    if spread < 1.0:
        raise InputError(Fault("spread", f"{spread:g} is below 1", "write 1 for equal jobs"))
    rng = np.random.default_rng(seed)
    counts = np.array([group.count for group in groups])
    total = int(counts.sum())
    bounds.WAVE_TASKS.check(jobs * total * most, "jobs", "simulate fewer jobs, tasks or copies")
    laws = tuple(group.duration for group in groups)
    one = np.repeat(np.arange(len(groups), dtype=np.int64), counts)
    factor = np.exp(rng.uniform(-np.log(spread), np.log(spread), jobs)) if spread > 1 else None
    scale = np.repeat(np.ones(jobs) if factor is None else factor, total)
    mean_factor = 1.0 if factor is None else float(np.sinh(np.log(spread)) / np.log(spread))
    work = float(counts @ [law.mean for law in laws]) * mean_factor
    arrival = np.cumsum(rng.exponential(work / (load * machines), jobs))
    law = np.tile(one, jobs)
    survival = 1.0 - rng.random((jobs * total, most))
    durations = np.empty_like(survival)
    for number, known in enumerate(laws):
        rows = law == number
        durations[rows] = known.inverse_survival(survival[rows])
    return WaveJobs(
        arrival=arrival - arrival[0],
        priority=np.zeros(jobs),
        first=np.arange(0, jobs * total + 1, total, dtype=np.int64),
        laws=laws,
        law=law,
        scale=scale,
        durations=durations * scale[:, None],
    )


def measured_jobs(
    recorded: Floats,
    known: Floats,
    *,
    machines: int,
    load: float,
    jobs: int,
    seed: int = 0,
    most: int = 4,
) -> WaveJobs:
    """Make jobs of recorded times: a job is an iteration, a task one worker's part of it.

    Parameters
    ----------
    recorded : ndarray, shape (iterations, workers)
        Measured times; a job takes a row, in its order, starting over at the end.
    known : ndarray
        Times measured earlier, which the rules take for the law.
    machines, load, jobs, seed, most
        As in `poisson_jobs`. Copies after the first draw from all recorded times.

    Returns
    -------
    WaveJobs
        The jobs.
    """
    _check_positive(machines=machines, load=load, jobs=jobs, most=most)
    rng = np.random.default_rng(seed)
    workers = recorded.shape[1]
    law = Empirical(np.asarray(known, dtype=np.float64).ravel(), None)
    work = workers * float(recorded.mean())
    arrival = np.cumsum(rng.exponential(work / (load * machines), jobs))
    tasks = jobs * workers
    durations = rng.choice(recorded.ravel(), size=(tasks, most))
    durations[:, 0] = recorded[np.arange(jobs) % len(recorded)].ravel()
    return WaveJobs(
        arrival=arrival - arrival[0],
        priority=np.zeros(jobs),
        first=np.arange(0, tasks + 1, workers, dtype=np.int64),
        laws=(law,),
        law=np.zeros(tasks, dtype=np.int64),
        scale=np.ones(tasks),
        durations=durations,
    )


def _check_positive(**values: float) -> None:
    faults = [
        Fault(name, f"{value:g} is not positive") for name, value in values.items() if value <= 0
    ]
    if faults:
        raise InputError(faults)
