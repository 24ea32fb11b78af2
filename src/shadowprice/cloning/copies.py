"""Plans of copies for the tasks of a bag that runs on real processes.

If all tasks can start at once, CSD plans the copies; otherwise copies start by expected saving. A
`CopyPlanner` is an argument of ``shadowprice.training.bag.Workers.run``. That library runs inside
jobs and doesn't import this package, so it describes planner and plan as protocols.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shadowprice.cloning.problem import CloningProblem, TaskGroup
from shadowprice.cloning.solver import expected_cost, miss_probability, solve
from shadowprice.cloning.waves import GRID, tabulate_distributions
from shadowprice.core.arrays import Integers
from shadowprice.core.errors import Fault, InputError
from shadowprice.distributions.empirical import Empirical, fit_pareto_tail
from shadowprice.distributions.parametric import Distribution
from shadowprice.kernels.cloning.saving import Gains, Tasks, assess


class CopySavings:
    """Rule for copies of running tasks while no task waits: the one with the largest saving.

    ``distributions`` are those of the tasks' durations. ``machine_price`` is the flowtime in
    seconds that a machine second costs. It prevents copies that save nearly nothing.
    """

    def __init__(
        self,
        distributions: Sequence[Distribution],
        *,
        max_copies: int = 3,
        machine_price: float = 0.1,
    ) -> None:
        distinct = {id(distribution): distribution for distribution in distributions}
        positions = {key: position for position, key in enumerate(distinct)}
        self._distribution = np.array(
            [positions[id(distribution)] for distribution in distributions], dtype=np.int64
        )
        unique = tuple(distinct.values())
        self._distributions = tabulate_distributions(unique)
        self._max_copies = max_copies
        self._price = machine_price
        # Seconds between checks while no task ends.
        self.check_period = 0.25 * float(self._distributions.means[self._distribution].mean())

    def best(
        self, now: float, running: Sequence[int], start_times: Sequence[Sequence[float]]
    ) -> int | None:
        """Return the task whose next copy saves most beyond its cost, None if no copy pays.

        ``start_times`` are the start times of the present copies of each ``running`` task.
        """
        count = len(running)
        copies = np.array(
            [min(len(starts_of_task), self._max_copies) for starts_of_task in start_times],
            dtype=np.int64,
        )
        starts = np.full((count, self._max_copies), now)
        for row, starts_of_task in enumerate(start_times):
            newest = sorted(starts_of_task)[-self._max_copies :]
            starts[row, : len(newest)] = newest
        gains = Gains(np.zeros(count), np.zeros(count))
        tasks = Tasks(
            self._distribution[np.asarray(running, dtype=np.int64)],
            np.ones(count),
            np.zeros(count, dtype=np.bool_),
            copies,
            starts,
        )
        assess(0, count, True, float(now), tasks, self._distributions, GRID, gains)
        gain = np.where(copies < self._max_copies, gains.saving - self._price * gains.extra, 0.0)
        index = int(np.argmax(gain)) if count else 0
        return running[index] if count and gain[index] > 0.0 else None


@dataclass(frozen=True)
class CopyPlan:
    """Copies of every task, and what they promise."""

    copies: tuple[int, ...]  # number of copies with which each task starts
    deadline: float | None = None  # seconds until all tasks should have finished
    miss_probability: float | None = None
    """Probability of missing the deadline with these copies; None if unknown."""
    machine_seconds: float | None = None  # expected machine time; None if unknown
    savings: CopySavings | None = None
    """Rule by which idle processes start further copies; None: they start none."""


@dataclass(frozen=True)
class CopyPlanner:
    """Planner of the copies of a bag's tasks.

    With a deadline and a process for every task, CSD plans copies that minimise the expected
    machine time within the miss probability. Without a deadline, or with fewer processes than
    tasks, every task starts once. Further copies then start by expected saving when no task waits.
    Raises `InputError` if ``distribution`` isn't a distribution.
    """

    distribution: Distribution | Sequence[Distribution]
    """Distribution of durations in seconds: one for all tasks, or one for each task."""
    miss_probability: float = 0.05  # maximum probability that the bag misses its deadline
    copies: int | Sequence[int] | None = None
    """Copies to start instead of planned ones, for all tasks or for each task. The plan then only
    predicts what they achieve."""

    def __post_init__(self) -> None:
        one = self.distribution
        values: Sequence[object] = one if isinstance(one, Sequence) else (one,)
        for value in values:
            if not isinstance(value, Distribution):
                hint = "write for example Pareto.of_mean(1.8, 30.0), of shadowprice.cloning.api"
                message = f"expected a distribution, got {type(value).__name__}"
                raise InputError(Fault("distribution", message, hint))

    def plan(
        self, tasks: int, remaining: Sequence[int], processes: int, deadline: float | None
    ) -> CopyPlan:
        """Plan how many copies of each remaining task to start.

        The bag has ``tasks`` tasks in all; ``remaining`` are the indices of those without a result,
        in the order of the plan. ``processes`` copies can run at once. ``deadline`` is in seconds
        from now; None for none.

        Raises `InputError` if no number of copies keeps the deadline; the message names the
        deadline, processes or miss probability that would do. Also if the number of distributions
        or copies differs from that of tasks, or a distribution breaks an assumption of the solver.
        """
        distributions = self._distributions(tasks, remaining)
        if not remaining:
            return CopyPlan((), deadline)
        if self.copies is not None:
            stated = (
                self.copies if isinstance(self.copies, Iterable) else operator.index(self.copies)
            )
            return self._plan_stated(stated, distributions, tasks, remaining, processes, deadline)
        if deadline is None or processes < len(remaining):
            return CopyPlan(
                (1,) * len(remaining), deadline, savings=_savings(distributions, processes)
            )
        try:
            solution = solve(self._problem(distributions, processes, deadline))
        except InputError as error:
            raise InputError([_name_processes(fault) for fault in error.faults]) from error
        return CopyPlan(
            tuple(int(number) for number in solution.copies),
            deadline,
            solution.miss_probability,
            solution.expected_cost,
        )

    def _distributions(self, tasks: int, remaining: Sequence[int]) -> tuple[Distribution, ...]:
        given = self.distribution
        distributions = tuple(given) if isinstance(given, Sequence) else (given,) * tasks
        if len(distributions) != tasks:
            hint = "give one distribution for all tasks, or one for each task"
            raise InputError(
                Fault("distribution", f"{len(distributions)} distributions for {tasks} tasks", hint)
            )
        return tuple(distributions[task] for task in remaining)

    def _problem(
        self, distributions: Sequence[Distribution], processes: int, deadline: float
    ) -> CloningProblem:
        groups = [TaskGroup(1, distribution) for distribution in distributions]
        return CloningProblem(groups, processes, deadline, self.miss_probability)

    def _plan_stated(
        self,
        stated: int | Sequence[int],
        distributions: Sequence[Distribution],
        tasks: int,
        remaining: Sequence[int],
        processes: int,
        deadline: float | None,
    ) -> CopyPlan:
        """Return a plan with given copies, and predictions if all copies can start at once."""
        numbers = tuple(stated) if isinstance(stated, Iterable) else (stated,) * tasks
        if len(numbers) != tasks or min(numbers) < 1:
            hint = "write a number from 1 on, or one for each task"
            raise InputError(Fault("copies", f"{stated} copies for {tasks} tasks", hint))
        copies = tuple(numbers[task] for task in remaining)
        if deadline is None or sum(copies) > processes:
            return CopyPlan(copies, deadline)
        problem = self._problem(distributions, processes, deadline)
        counts: Integers = np.array(copies, dtype=np.int64)
        missed, cost = miss_probability(problem, counts), expected_cost(problem, counts)
        return CopyPlan(copies, deadline, missed, cost)


def fit_durations(durations: ArrayLike, *, tail: bool = True) -> Distribution:
    """Return the distribution of measured durations.

    ``durations`` are seconds of tasks that ran to their end. A killed copy has no known duration,
    so measure a bag without copies. With ``tail``, a Pareto tail is fitted to the longest
    durations; without it, no duration exceeds the longest measured one. Raises `InputError` if
    durations are too few, or not positive and finite.
    """
    seconds = np.asarray(durations, dtype=np.float64).ravel()
    if not seconds.size or not (np.isfinite(seconds) & (seconds > 0.0)).all():
        hint = "give the seconds, above 0, of one copy or more"
        raise InputError(Fault("durations", "expected positive, finite durations", hint))
    try:
        return Empirical(seconds, fit_pareto_tail(seconds) if tail else None)
    except InputError as error:
        hint = "measure more, or give tail=False to use them as they are"
        message = f"{seconds.size} are too few to fit a tail"
        raise InputError(Fault("durations", message, hint)) from error


def _savings(distributions: Sequence[Distribution], processes: int) -> CopySavings | None:
    if processes == 1:
        return None
    savings = CopySavings(distributions)
    # The first call compiles for seconds, so call it before any task runs.
    savings.best(0.0, (), ())
    return savings


def _name_processes(fault: Fault) -> Fault:
    """Replace "machines" by "processes" in an error of the solver."""
    return Fault(
        "processes" if fault.location == "machines" else fault.location,
        fault.message.replace("machines", "processes"),
        fault.hint.replace("machines:", "processes:").replace("machines", "processes"),
    )
