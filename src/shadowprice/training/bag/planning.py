"""How many copies of which task: CSD where every task can start at once, by saving where not."""

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
        Copies that each task starts with.
    deadline : float or None
        Seconds until every task is to be done.
    miss_probability : float or None
        How likely that is missed with these copies, by the laws; None where it is not known.
    machine_seconds : float or None
        Expected machine time, by the laws.
    by_saving : bool
        Whether idle processes take further copies where these are expected to save time.
    """

    copies: tuple[int, ...]
    deadline: float | None = None
    miss_probability: float | None = None
    machine_seconds: float | None = None
    by_saving: bool = False


def measured(durations: ArrayLike, *, tail: bool = True) -> Distribution:
    """Return the law of durations that were measured.

    Parameters
    ----------
    durations : array_like
        Seconds, of copies that ran to their end. Of copies that were killed the durations are not
        known: run a bag without copies to measure.
    tail : bool
        Whether a Pareto tail is fitted beyond the body; without, nothing lasts longer than what
        was seen.

    Raises
    ------
    InputError
        If they are too few, or no durations.
    """
    from shadowprice.laws.empirical import Empirical  # noqa: PLC0415  # only where planned
    from shadowprice.laws.tail import fit_pareto_tail  # noqa: PLC0415

    seconds = np.asarray(durations, dtype=np.float64).ravel()
    if not seconds.size or not (np.isfinite(seconds) & (seconds > 0.0)).all():
        mend = "give seconds, more than 0, of one try at least"
        raise InputError(Fault("durations", "they are not all durations, or none", mend))
    try:
        return Empirical(seconds, fit_pareto_tail(seconds) if tail else None)
    except InputError as error:
        mend = "measure more, or give tail=False to use them as they are"
        what = f"{seconds.size} are too few to tell a tail from"
        raise InputError(Fault("durations", what, mend)) from error


def laws_of(law: LawArgument, tasks: int) -> tuple[Distribution, ...] | None:
    """Return the law of every task's duration, None where none is known.

    Parameters
    ----------
    law : Distribution, sequence of Distribution, or None
        One for all tasks, or one a task.
    tasks : int
        How many there are.

    Raises
    ------
    InputError
        If there are not as many laws as tasks, or something is no law.
    """
    if law is None:
        return None
    from shadowprice.laws.distributions import Distribution  # noqa: PLC0415  # only where planned

    given: tuple[object, ...] = tuple(law) if isinstance(law, Sequence) else (law,) * tasks
    laws = tuple(one for one in given if isinstance(one, Distribution))
    for one in given:
        if not isinstance(one, Distribution):
            mend = "write for example Pareto.of_mean(1.8, 30.0), of shadowprice.cloning.api"
            raise InputError(Fault("law", f"{type(one).__name__} is no law of durations", mend))
    if len(laws) != tasks:
        mend = "give one law for all tasks, or one a task"
        raise InputError(Fault("law", f"{len(laws)} laws for {tasks} tasks", mend))
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

    With a law, a deadline and a process for every task these are CSD's: the copies of least
    expected machine time that keep the deadline but for the miss probability. With a law alone, or
    fewer processes than tasks, every task starts once, and copies are begun by expected saving
    when nothing waits. Without a law every task runs once.

    Parameters
    ----------
    tasks, processes : int
        How many there are.
    law : optional
        As in `laws_of`.
    deadline : float, optional
        Seconds until every task is to be done.
    miss_probability : float
        How often that may be missed.
    copies : int or sequence of int, optional
        So many, in place of a plan.

    Raises
    ------
    InputError
        If no copies keep the deadline, saying which deadline, number of processes or miss
        probability would do; if a law is wrong, or breaks what the solver rests on.
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

    groups = [TaskGroup(1, one) for one in laws]
    try:
        found = solve(CloningProblem(groups, processes, deadline, miss_probability))
    except InputError as error:
        raise InputError([_in_our_words(fault) for fault in error.faults]) from error
    return Plan(
        tuple(int(number) for number in found.copies),
        deadline,
        found.miss_probability,
        found.expected_cost,
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
        mend = "write a number from 1 on, or one for each task"
        raise InputError(Fault("copies", f"{copies} of {tasks} tasks", mend))
    if laws is None or deadline is None or sum(numbers) > processes:
        return Plan(numbers, deadline)
    from shadowprice.cloning.api import CloningProblem, TaskGroup  # noqa: PLC0415
    from shadowprice.cloning.solver import expected_cost  # noqa: PLC0415
    from shadowprice.cloning.solver import miss_probability as missed  # noqa: PLC0415

    groups = [TaskGroup(1, one) for one in laws]
    problem = CloningProblem(groups, processes, deadline, miss_probability)
    each: NDArray[np.int64] = np.array(numbers, dtype=np.int64)
    return Plan(numbers, deadline, missed(problem, each), expected_cost(problem, each))


def _in_our_words(fault: Fault) -> Fault:
    """Call machines what they are here: processes."""
    return Fault(
        "processes" if fault.place == "machines" else fault.place,
        fault.message.replace("machines", "processes"),
        fault.mend.replace("machines:", "processes:").replace("machines", "processes"),
    )
