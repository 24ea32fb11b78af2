"""Copies of bags: their plan, its promise, and the measured durations."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shadowprice.cloning.api import (
    CloningProblem,
    CopyPlan,
    CopyPlanner,
    Pareto,
    TaskGroup,
    fit_durations,
    solve,
)
from shadowprice.core.errors import InputError
from shadowprice.experiments.cloning.rehearsal import Wait, wait
from shadowprice.training import bag
from shadowprice.training.bag.copies import StatedCopies
from tests.support import bag_functions
from tests.support.waiting import WAIT_LIMIT_SECONDS

ROOT = Path(__file__).parents[3]
DISTRIBUTION = Pareto.of_mean(1.8, 0.9)
LEVEL = 0.999
"""Probability that a right tail is refused, over all seeds; Dvoretzky, Kiefer, Wolfowitz and
Massart.
"""


def _plan(planner: CopyPlanner, tasks: int, processes: int, deadline: float | None) -> CopyPlan:
    return planner.plan(tasks, range(tasks), processes, deadline)


def test_copies_are_those_of_cloning() -> None:
    distributions = [DISTRIBUTION] * 5 + [Pareto(2.5, 0.3)] * 3
    plan = _plan(CopyPlanner(distributions, 0.02), 8, 40, 2.0)
    solution = solve(
        CloningProblem([TaskGroup(5, DISTRIBUTION), TaskGroup(3, distributions[-1])], 40, 2.0, 0.02)
    )
    assert sorted(plan.copies) == sorted(solution.copies.tolist())
    assert plan.machine_seconds == pytest.approx(solution.expected_cost)
    assert plan.miss_probability == pytest.approx(solution.miss_probability)
    assert plan.miss_probability is not None
    assert plan.miss_probability <= 0.02


def test_unplannable_jobs_are_reported() -> None:
    with pytest.raises(InputError, match=r"8 processes cannot finish .* processes: "):
        _plan(CopyPlanner(DISTRIBUTION), 8, 8, 1.0)
    with pytest.raises(InputError, match="2 distributions for 3 tasks"):
        _plan(CopyPlanner([DISTRIBUTION, DISTRIBUTION]), 3, 9, 9.0)
    with pytest.raises(InputError, match="distribution: expected a distribution, got int"):
        CopyPlanner(3)  # type: ignore[arg-type]  # the error under test
    with pytest.raises(InputError, match="copies: 0 copies for 3 tasks"):
        _plan(CopyPlanner(DISTRIBUTION, copies=0), 3, 9, 9.0)
    assert _plan(CopyPlanner(DISTRIBUTION), 3, 2, 9.0).savings is not None
    assert _plan(CopyPlanner(DISTRIBUTION), 3, 1, 9.0).savings is None
    given = _plan(CopyPlanner(DISTRIBUTION, copies=2), 3, 9, 1.0)
    late = DISTRIBUTION.survival(1.0) ** 2
    assert given.miss_probability == pytest.approx(1.0 - (1.0 - late) ** 3)


def test_measured_durations_make_a_distribution() -> None:
    seconds = DISTRIBUTION.inverse_survival(np.random.default_rng(1).uniform(1e-9, 1.0, 4000))
    distribution = fit_durations(seconds)
    assert distribution.survival(2.0) == pytest.approx(float(DISTRIBUTION.survival(2.0)), rel=0.2)
    assert distribution.survival(60.0) > 0.0
    assert fit_durations(seconds, tail=False).survival(seconds.max() * 1.01) == 0.0


@pytest.mark.parametrize("durations", [[], [0.0, 1.0], [math.nan, 1.0], [math.inf], [-1.0]])
def test_invalid_durations_make_no_distribution(durations: list[float]) -> None:
    for tail in (True, False):
        with pytest.raises(InputError, match="durations: expected positive, finite durations"):
            fit_durations(durations, tail=tail)


def test_too_few_durations_have_no_tail_but_make_a_law_without() -> None:
    with pytest.raises(InputError, match=r"3 are too few to fit a tail; .* tail=False"):
        fit_durations([1.0, 2.0, 3.0])
    assert fit_durations([1.0, 2.0, 3.0], tail=False).survival(3.0) == 0.0


def test_stated_copies_are_a_number_or_one_for_each_task() -> None:
    assert StatedCopies(np.int64(2)).plan(2, (0, 1), 8, None).copies == (2, 2)
    plan = StatedCopies([1, 2, 3]).plan(3, (0, 2), 8, 9.0)
    assert (plan.copies, plan.deadline) == ((1, 3), 9.0)


def test_copies_of_remaining_tasks_are_those_of_their_own_distributions() -> None:
    distributions = [DISTRIBUTION, Pareto(2.5, 0.3), DISTRIBUTION]
    plan = CopyPlanner(distributions, copies=[3, 2, 1]).plan(3, (1, 2), 9, 1.0)
    assert plan.copies == (2, 1)
    kept = (1.0 - distributions[1].survival(1.0) ** 2) * (1.0 - DISTRIBUTION.survival(1.0))
    assert plan.miss_probability == pytest.approx(1.0 - float(kept))


def _above(sample: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """Return the maximum excess of a sorted sample's tail over a predicted one, in widths of the
    band.
    """
    width = math.sqrt(math.log(1.0 / (1.0 - LEVEL)) / (2.0 * len(sample)))
    until = 1.0 - np.arange(len(sample)) / len(sample)
    return float((until - predicted).max()) / width


def _below(sample: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """Return the maximum deficit."""
    width = math.sqrt(math.log(1.0 / (1.0 - LEVEL)) / (2.0 * len(sample)))
    since = 1.0 - np.arange(1, len(sample) + 1) / len(sample)
    return float((predicted - since).max()) / width


@pytest.mark.extended
@pytest.mark.train  # a hundred processes: not for every run
def test_the_measured_tail_is_the_predicted_one() -> None:
    tasks, copies = 40, 3
    ends: list[float] = []
    least: list[float] = []
    won: list[float] = []
    with bag.Workers(wait, tasks * copies) as workers:
        for seed in (3, 4):
            outcome = workers.run(
                [Wait(DISTRIBUTION, seed)] * tasks,
                copies=CopyPlanner(DISTRIBUTION, copies=copies),
                deadline=1.0,
            )
            winners = [one for one in outcome.tries if one.ending is bag.CopyEnding.WON]
            assert (len(winners), len(outcome.tries)) == (tasks, tasks * copies)
            for winner in winners:
                drawn = [_drawn(DISTRIBUTION, seed, winner.task, copy) for copy in range(copies)]
                assert (
                    outcome.values[winner.task] == drawn[winner.copy] <= outcome.ends[winner.task]
                )
                least.append(min(drawn))
                won.append(drawn[winner.copy])
            ends += outcome.ends.values()
    # No task ends sooner than the minimum of three copies. How much later it ends depends on the
    # load of the machine, so the tail is compared from above by the durations drawn.
    sample = np.sort(ends)
    assert _below(sample, DISTRIBUTION.survival(sample) ** copies) < 1.0
    exact = np.sort(least)
    assert _above(exact, DISTRIBUTION.survival(exact) ** copies) < 1.0
    # The first copy to end wins: those that won run for less time than single copies would.
    winning = np.sort(won)
    assert _below(winning, DISTRIBUTION.survival(winning)) > 1.0


def test_idle_processes_copy_what_is_late(tmp_path: Path) -> None:
    # The first copy of one task never ends: without another one, neither would the bag.
    distribution = Pareto.of_mean(1.6, 0.3)
    with bag.Workers(bag_functions.late, 3) as workers:
        outcome = workers.run([(str(tmp_path), 2)] * 4, copies=CopyPlanner(distribution))
    assert outcome.plan.savings is not None
    assert outcome.values[2] > 0
    first = next(one for one in outcome.tries if (one.task, one.copy) == (2, 0))
    assert first.ending is bag.CopyEnding.CANCELLED
    # No task is copied while another one waits.
    last_begin = max(one.started for one in outcome.tries if one.copy == 0)
    assert all(one.started >= last_begin for one in outcome.tries if one.copy > 0)


def test_what_decides_on_copies_is_compiled_before_a_task_begins() -> None:
    # In a process that hasn't compiled it. A compiler's seconds would count as delays of tasks,
    # because nothing polls meanwhile.
    program = (
        "from shadowprice.cloning.api import CopyPlanner, Pareto\n"
        "from shadowprice.kernels.cloning.saving import assess\n"
        "from shadowprice.training import bag\n"
        "from tests.support.bag_functions import square\n"
        "told = []\n"
        "with bag.Workers(square, 2) as workers:\n"
        " workers.run(range(3), copies=CopyPlanner(Pareto.of_mean(1.6, 0.3)),"
        " progress=lambda now: told.append((now.done, len(assess.signatures))))\n"
        "print(told[0])\n"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WAIT_LIMIT_SECONDS
    )
    assert done.stdout.split() == ["(0,", "1)"], done.stderr


def _drawn(distribution: Pareto, seed: int, task: int, copy: int) -> float:
    import random

    return float(
        distribution.inverse_survival(1.0 - random.Random(f"{seed}/{task}/{copy}").random())
    )
