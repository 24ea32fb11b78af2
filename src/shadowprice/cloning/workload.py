"""Jobs for the heavily loaded regime: arrivals, tasks, known and actual durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shadowprice.cloning.problem import TaskGroup
from shadowprice.core import bounds
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.distributions.empirical import Empirical
from shadowprice.distributions.parametric import Distribution


@dataclass(frozen=True)
class WaveJobs:
    """Jobs in order of arrival."""

    arrival: Floats  # of each job in seconds
    priority: Floats  # priority of each job: higher goes first, equal ones in order of arrival
    first: Integers  # task of each job
    distributions: tuple[Distribution, ...]  # distributions that rules know
    distribution: Integers  # index of each task's distribution
    scale: Floats  # factor on each task's durations, for a task with more input
    durations: Floats
    """Actual seconds of each task's copies, shape (tasks, copies).

    They don't depend on the rule, so that rules are compared on the same draws.
    """

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return len(self.arrival)


def poisson_jobs(
    groups: Sequence[TaskGroup],
    *,
    machines: int,
    load: float,
    jobs: int,
    seed: int = 0,
    spread: float = 1.0,
    max_copies: int = 4,
) -> WaveJobs:
    """Draw jobs with the same tasks and Poisson arrivals, all of one priority.

    ``load`` is the arrival rate times a job's expected work with one copy per task, divided by the
    machines. A job's durations are multiplied by a factor drawn log-uniformly from [1/spread,
    spread], which the rules know. Durations are drawn for ``max_copies`` copies of each task.
    """
    _check_positive(machines=machines, load=load, jobs=jobs, max_copies=max_copies)
    if not spread >= 1.0:
        raise InputError(Fault("spread", f"{spread:g} is below 1", "write 1 for equal jobs"))
    rng = np.random.default_rng(seed)
    counts = np.array([group.count for group in groups])
    total = int(counts.sum())
    bounds.WAVE_TASKS.check(
        jobs * total * max_copies, "jobs", "simulate fewer jobs, tasks or copies"
    )
    distributions = tuple(group.duration for group in groups)
    distribution_of_task = np.repeat(np.arange(len(groups), dtype=np.int64), counts)
    factor = np.exp(rng.uniform(-np.log(spread), np.log(spread), jobs)) if spread > 1 else None
    scale = np.repeat(np.ones(jobs) if factor is None else factor, total)
    mean_factor = 1.0 if factor is None else float(np.sinh(np.log(spread)) / np.log(spread))
    work = float(counts @ [distribution.mean for distribution in distributions]) * mean_factor
    arrival = np.cumsum(rng.exponential(work / (load * machines), jobs))
    index = np.tile(distribution_of_task, jobs)
    survival = 1.0 - rng.random((jobs * total, max_copies))
    durations = np.empty_like(survival)
    for number, distribution in enumerate(distributions):
        rows = index == number
        durations[rows] = distribution.inverse_survival(survival[rows])
    return WaveJobs(
        arrival=arrival - arrival[0],
        priority=np.zeros(jobs),
        first=np.arange(0, jobs * total + 1, total, dtype=np.int64),
        distributions=distributions,
        distribution=index,
        scale=scale,
        durations=durations * scale[:, None],
    )


def jobs_from_records(
    recorded: Floats,
    known: Floats,
    *,
    machines: int,
    load: float,
    jobs: int,
    seed: int = 0,
    max_copies: int = 4,
) -> WaveJobs:
    """Make jobs of recorded times: a job is an iteration, a task is one worker's part of it.

    ``recorded`` has shape (iterations, workers); jobs take rows in order, and start over at the
    end. The rules know the distribution of ``known``, which was measured earlier. Other parameters
    are those of `poisson_jobs`. Copies after the first are drawn from all recorded times.
    """
    _check_positive(machines=machines, load=load, jobs=jobs, max_copies=max_copies)
    rng = np.random.default_rng(seed)
    workers = recorded.shape[1]
    distribution = Empirical(np.asarray(known, dtype=np.float64).ravel(), None)
    work = workers * float(recorded.mean())
    arrival = np.cumsum(rng.exponential(work / (load * machines), jobs))
    tasks = jobs * workers
    durations = rng.choice(recorded.ravel(), size=(tasks, max_copies))
    durations[:, 0] = recorded[np.arange(jobs) % len(recorded)].ravel()
    return WaveJobs(
        arrival=arrival - arrival[0],
        priority=np.zeros(jobs),
        first=np.arange(0, tasks + 1, workers, dtype=np.int64),
        distributions=(distribution,),
        distribution=np.zeros(tasks, dtype=np.int64),
        scale=np.ones(tasks),
        durations=durations,
    )


def _check_positive(**values: float) -> None:
    faults = [
        Fault(name, f"{value:g} is not positive")
        for name, value in values.items()
        if not value > 0  # NaN too
    ]
    if faults:
        raise InputError(faults)
