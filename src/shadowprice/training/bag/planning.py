"""Number of copies of each task: by CSD if all can start at once, otherwise by savings."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from shadowprice.laws.distributions import Distribution

LawArgument: TypeAlias = "Distribution | Sequence[Distribution] | None"


@dataclass(frozen=True)
class Plan:
    """Copies of every task, and what they promise.

    Parameters
    ----------
    copies : tuple of int
        Copies with which each task starts.
    deadline : float or None
        Seconds until every task is to be done.
    miss_probability : float or None
        Probability of missing the deadline with these copies; None if unknown.
    machine_seconds : float or None
        Expected machine time; None if unknown.
    by_saving : bool
        Whether idle processes start further copies if these are expected to save time.
    """

    copies: tuple[int, ...]
    deadline: float | None = None
    miss_probability: float | None = None
    machine_seconds: float | None = None
    by_saving: bool = False


def measured(durations: ArrayLike, *, tail: bool = True) -> Distribution:
    """Return the distribution of measured durations.

    ``durations`` are seconds of copies that ran to their end. The durations of killed copies are
    unknown, so measure with a bag without copies. ``tail`` fits a Pareto tail beyond the body;
    without it, no duration exceeds the longest measured one.

    Raises
    ------
    InputError
        If they are too few, or not positive and finite.
    """
    from shadowprice.laws.empirical import Empirical  # noqa: PLC0415  # only where planned
    from shadowprice.laws.tail import fit_pareto_tail  # noqa: PLC0415

    seconds = np.asarray(durations, dtype=np.float64).ravel()
    if not seconds.size or not (np.isfinite(seconds) & (seconds > 0.0)).all():
        hint = "give seconds, more than 0, of one try at least"
        raise InputError(Fault("durations", "they are not all durations, or none", hint))
    try:
        return Empirical(seconds, fit_pareto_tail(seconds) if tail else None)
    except InputError as error:
        hint = "measure more, or give tail=False to use them as they are"
        message = f"{seconds.size} are too few to tell a tail from"
        raise InputError(Fault("durations", message, hint)) from error


def laws_of(law: LawArgument, tasks: int) -> tuple[Distribution, ...] | None:
    """Return the distribution of every task's duration, None if none is given.

    ``law`` is one distribution for all tasks, or one for each task.

    Raises
    ------
    InputError
        If their number differs from ``tasks``, or an element isn't a distribution.
    """
    if law is None:
        return None
    from shadowprice.laws.distributions import Distribution  # noqa: PLC0415  # only where planned

    values: tuple[object, ...] = tuple(law) if isinstance(law, Sequence) else (law,) * tasks
    laws = tuple(value for value in values if isinstance(value, Distribution))
    for value in values:
        if not isinstance(value, Distribution):
            hint = "write for example Pareto.of_mean(1.8, 30.0), of shadowprice.cloning.api"
            raise InputError(Fault("law", f"{type(value).__name__} is no law of durations", hint))
    if len(laws) != tasks:
        hint = "give one law for all tasks, or one a task"
        raise InputError(Fault("law", f"{len(laws)} laws for {tasks} tasks", hint))
    return laws


def plan_copies(
    tasks: int,
    processes: int,
    *,
    law: LawArgument = None,
    deadline: float | None = None,
    miss_probability: float = 0.05,
    copies: int | Sequence[int] | None = None,
) -> Plan:
    """Plan how many copies of each task to start.

    With a distribution, a deadline and a process for every task, CSD plans the copies: they
    minimise the expected machine time within the miss probability. With a distribution alone, or
    with fewer processes than tasks, every task starts once. Further copies start by expected saving
    when no task waits. Without a distribution every task runs once.

    ``law`` is as in `laws_of`, ``deadline`` is in seconds, and ``copies`` replaces the plan.

    Raises
    ------
    InputError
        If no number of copies keeps the deadline; the message names the deadline, processes or miss
        probability that would do. Also if a distribution is invalid, or breaks an assumption of the
        solver.
    """
    laws = laws_of(law, tasks)
    if tasks == 0:
        return Plan((), deadline)
    if copies is not None:
        return _given(laws, tasks, processes, copies, deadline, miss_probability)
    if laws is None:
        return Plan((1,) * tasks, deadline)
    if deadline is None or processes < tasks:
        return Plan((1,) * tasks, deadline, by_saving=processes > 1)
    from shadowprice.cloning.api import CloningProblem, TaskGroup, solve  # noqa: PLC0415

    groups = [TaskGroup(1, distribution) for distribution in laws]
    try:
        solution = solve(CloningProblem(groups, processes, deadline, miss_probability))
    except InputError as error:
        raise InputError([_in_our_words(fault) for fault in error.faults]) from error
    return Plan(
        tuple(int(number) for number in solution.copies),
        deadline,
        solution.miss_probability,
        solution.expected_cost,
    )


def _given(
    laws: Sequence[Distribution] | None,
    tasks: int,
    processes: int,
    copies: int | Sequence[int],
    deadline: float | None,
    miss_probability: float,
) -> Plan:
    numbers = tuple(copies) if isinstance(copies, Iterable) else (operator.index(copies),) * tasks
    if len(numbers) != tasks or min(numbers) < 1:
        hint = "write a number from 1 on, or one for each task"
        raise InputError(Fault("copies", f"{copies} of {tasks} tasks", hint))
    if laws is None or deadline is None or sum(numbers) > processes:
        return Plan(numbers, deadline)
    from shadowprice.cloning.api import CloningProblem, TaskGroup  # noqa: PLC0415
    from shadowprice.cloning.solver import expected_cost  # noqa: PLC0415
    from shadowprice.cloning.solver import miss_probability as missed  # noqa: PLC0415

    groups = [TaskGroup(1, distribution) for distribution in laws]
    problem = CloningProblem(groups, processes, deadline, miss_probability)
    counts: NDArray[np.int64] = np.array(numbers, dtype=np.int64)
    return Plan(numbers, deadline, missed(problem, counts), expected_cost(problem, counts))


def _in_our_words(fault: Fault) -> Fault:
    """Replace "machines" by "processes" in a diagnostic of the solver."""
    return Fault(
        "processes" if fault.place == "machines" else fault.place,
        fault.message.replace("machines", "processes"),
        fault.mend.replace("machines:", "processes:").replace("machines", "processes"),
    )
