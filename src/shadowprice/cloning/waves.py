"""Simulation of jobs whose tasks run in waves, because machines are fewer than tasks.

A rule decides what a free machine runs: the next waiting task, or a copy of a running one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from shadowprice.cloning.problem import TaskGroup
from shadowprice.core import bounds
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.distributions.empirical import Empirical
from shadowprice.distributions.parametric import Distribution
from shadowprice.kernels.cloning import waves as kernel
from shadowprice.kernels.cloning.saving import MIN_LOG_SURVIVAL, DistributionTables, Tasks


@dataclass(frozen=True)
class WaveJobs:
    """Jobs in order of arrival."""

    arrival: Floats  # of each job in seconds
    priority: Floats  # priority of each job: higher goes first, equal ones in order of arrival
    first: Integers  # index of each job's first task, then the number of all tasks
    distributions: tuple[Distribution, ...]  # distributions of durations, which rules know
    distribution: Integers  # index of each task's distribution
    scale: Floats  # factor on each task's durations, for a task with more input
    durations: Floats
    """Actual seconds of each task's copies, shape (tasks, copies).

    They are drawn in advance, so that rules are compared on the same durations.
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

    ``load`` is the expected work that arrives per second, with one copy per task, divided by
    ``machines``. A job's durations are multiplied by a factor drawn log-uniformly from [1/spread,
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
    # The mean of a log-uniform factor.
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
    """Build jobs from recorded seconds: a job is an iteration, a task is a worker's part of it.

    ``recorded`` has shape (iterations, workers). Jobs take its rows in order, and from the first
    again after the last. Copies after a task's first are drawn from all recorded times. Rules know
    the distribution of ``known``, which are seconds measured earlier. Other parameters are those of
    `poisson_jobs`.
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


KNOTS = 512  # of each table of ln S
GRID = np.concatenate([[0.0], np.geomspace(0.01, 60.0, 39)])
"""Points of the integrals of the rule by saving, in units of a job's time scale (`assess`)."""


class WaveRuleKind(Enum):
    """What a free machine runs."""

    NONE = "none"
    """The next waiting task, never a copy."""
    FULL = "full"
    """Every task in a fixed number of copies, next to each other in the queue."""
    DETECT = "detect"
    """A copy of a late task (speculative execution as in Hadoop and Spark).

    A task is late if it has run longer than a factor times the median of its job's finished tasks.
    """
    SAVING = "saving"
    """A copy that saves more expected flowtime than the delay it causes to waiting jobs."""


_CODES = {
    WaveRuleKind.NONE: kernel.NO_COPIES,
    WaveRuleKind.FULL: kernel.EVERY_TASK,
    WaveRuleKind.DETECT: kernel.LATE_TASKS,
    WaveRuleKind.SAVING: kernel.BY_SAVING,
}


@dataclass(frozen=True, slots=True)
class WaveRule:
    """A rule with its parameters."""

    rule: WaveRuleKind
    """The rule."""
    copies: int = 2
    """Maximum number of copies of a task; with FULL, the number for every task."""
    late_factor: float = 1.5
    """DETECT: a task is late after this multiple of the median duration."""
    late_share: float = 0.75
    """DETECT: a job has late tasks only after this share of its tasks has finished."""
    machine_price: float = 0.1
    """SAVING: flowtime in seconds that a machine second costs, in addition to the delay that it
    causes. It limits copies while no job waits."""
    check_period: float | None = None
    """DETECT, SAVING: seconds between checks of running tasks while machines are idle.

    None is a quarter of the mean task duration.
    """

    def __post_init__(self) -> None:
        faults = []
        if self.copies < 1:
            faults.append(Fault("copies", f"{self.copies} copies", "write 1 or more"))
        if not self.late_factor > 0.0:
            faults.append(Fault("late_factor", "must be positive", "write 1.5"))
        if not 0.0 <= self.late_share <= 1.0:
            faults.append(Fault("late_share", "is outside [0, 1]", "write 0.75"))
        if not self.machine_price >= 0.0:
            faults.append(Fault("machine_price", "must not be negative", "write 0"))
        if self.check_period is not None and not self.check_period > 0.0:
            hint = "write a number of seconds, or leave it out"
            faults.append(Fault("check_period", "must be positive", hint))
        if faults:
            raise InputError(faults)


@dataclass(frozen=True)
class WaveResult:
    """Results of a run."""

    flowtime: Floats
    """Seconds from arrival to the end of the last task (Definition 1)."""
    started: Floats
    """Start of each job's first task in seconds."""
    work: Floats
    """Machine seconds of each job, copies included."""
    copies: Integers
    """Number of copies of each task that were started."""
    wasted: float
    """Machine seconds of copies that didn't finish first."""
    helped: int
    """Number of tasks whose first copy to finish was not the first to start."""
    makespan: float
    """End of the last task in seconds."""

    @property
    def mean_flowtime(self) -> float:
        """Mean flowtime in seconds."""
        return float(self.flowtime.mean())

    @property
    def machine_time(self) -> float:
        """Machine seconds of all jobs."""
        return float(self.work.sum())


def simulate_waves(jobs: WaveJobs, machines: int, rule: WaveRule) -> WaveResult:
    """Run jobs on ``machines`` machines, each with room for one copy, until all have finished.

    Raises `InputError` if ``machines`` is below 1, or if the rule may start more copies of a task
    than there are drawn durations.
    """
    if machines < 1:
        raise InputError(Fault("machines", f"{machines} is not positive", "write 1 or more"))
    max_copies = 1 if rule.rule is WaveRuleKind.NONE else rule.copies
    if jobs.durations.shape[1] < max_copies:
        message = (
            f"the rule may start {max_copies} copies of a task, but durations were drawn for "
            f"{jobs.durations.shape[1]}"
        )
        hint = f"draw the jobs with max_copies={max_copies}"
        raise InputError(Fault("copies", message, hint))
    distributions = tabulate_distributions(jobs.distributions)
    mean_duration = float((distributions.means[jobs.distribution] * jobs.scale).mean())
    count = jobs.jobs
    order = np.empty(count, dtype=np.int64)  # rank of each job by priority, then arrival
    order[np.lexsort((np.arange(count), -jobs.priority))] = np.arange(count)
    number = len(jobs.distribution)
    tasks = Tasks(
        jobs.distribution,
        jobs.scale,
        np.zeros(number, dtype=np.bool_),
        np.zeros(number, dtype=np.int64),
        np.empty((number, max_copies)),
    )
    outcome = kernel.WaveOutcome(
        np.empty(count), np.empty(count), np.zeros(count), np.zeros(number, dtype=np.int64)
    )
    owner = np.repeat(np.arange(count), np.diff(jobs.first))
    durations = jobs.durations[:, :max_copies].copy()
    check_period = 0.25 * mean_duration if rule.check_period is None else rule.check_period
    wasted = kernel.run_waves(
        machines,
        kernel.Rule(
            _CODES[rule.rule],
            float(rule.late_factor),
            float(rule.late_share),
            float(rule.machine_price),
            float(check_period),
        ),
        kernel.ArrivingJobs(jobs.arrival, order, jobs.first, owner, durations),
        tasks,
        distributions,
        GRID,
        outcome,
    )
    return WaveResult(
        flowtime=outcome.finish - jobs.arrival,
        started=outcome.started,
        work=outcome.work,
        copies=tasks.copies,
        wasted=float(wasted),
        helped=int((outcome.won > 0).sum()),
        makespan=float(outcome.finish.max()),
    )


def tabulate_distributions(distributions: Sequence[Distribution]) -> DistributionTables:
    """Return distributions as tables for kernels."""
    return DistributionTables(
        *log_survival_tables(distributions),
        np.array([distribution.mean for distribution in distributions]),
        np.array([break_even_age(distribution) for distribution in distributions]),
    )


def log_survival_tables(distributions: Sequence[Distribution]) -> tuple[Floats, Floats, Floats]:
    """Tabulate ln S of each distribution at equal steps of ln t, from S near 1 to S = 1e-9.

    Returns the tables, and the first ln t and the step of each.
    """
    tables = np.empty((len(distributions), KNOTS))
    begins, steps = np.empty(len(distributions)), np.empty(len(distributions))
    for row, distribution in enumerate(distributions):
        low = float(distribution.inverse_survival(1.0 - 1e-6))
        high = max(float(distribution.inverse_survival(1e-9)), 2.0 * low)
        knots = np.linspace(np.log(low), np.log(high), KNOTS)
        tables[row] = np.maximum(distribution.log_survival(np.exp(knots)), MIN_LOG_SURVIVAL)
        tables[row, 0] = 0.0
        begins[row], steps[row] = knots[0], knots[1] - knots[0]
    return tables, begins, steps


def break_even_age(distribution: Distribution) -> float:
    """Return the age in seconds at which a second copy reduces a task's machine time most.

    With a copy that starts at age e, the expected machine time is
    integral_0^e S(t) dt + 2 integral S(e + t) S(t) dt. With a heavy tail, a task that has run long
    will run much longer. Two machines until the first copy ends can then cost less than one machine
    until the end. A grid of ages up to a hundred means is tried; the result is infinite if no copy
    helps.
    """
    mean = distribution.mean
    time = np.concatenate([[0.0], np.geomspace(1e-3 * mean, 1000.0 * mean, 1500)])
    unaided, fresh = distribution.survival(time), distribution.survival(time)
    so_far = np.concatenate([[0.0], np.cumsum(0.5 * (unaided[1:] + unaided[:-1]) * np.diff(time))])
    best, smallest = float("inf"), float(so_far[-1]) * (1.0 - 1e-9)
    for age in np.concatenate([[0.0], np.geomspace(0.02 * mean, 100.0 * mean, 600)]):
        work = float(np.interp(age, time, so_far))
        work += 2.0 * float(np.trapezoid(distribution.survival(age + time) * fresh, time))
        if work < smallest:
            best, smallest = float(age), work
    return best
