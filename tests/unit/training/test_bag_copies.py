"""Copies of bags: as they are planned, what that promises, and what is measured."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shadowprice.cloning.api import CloningProblem, Pareto, TaskGroup, solve
from shadowprice.core.errors import InputError
from shadowprice.training import bag
from shadowprice.training.bag.rehearsal import Wait, wait
from tests.support import bag_functions
from tests.support.waiting import WAIT_LIMIT_SECONDS

ROOT = Path(__file__).parents[3]
LAW = Pareto.of_mean(1.8, 0.9)
LEVEL = 0.999
"""How seldom a right tail is refused, over all seeds; Dvoretzky, Kiefer, Wolfowitz and Massart."""
SLOW = 0.2
"""Seconds that processes may take to begin and tell, where none waits for a processor."""


def test_copies_are_those_of_cloning() -> None:
    laws = [LAW] * 5 + [Pareto(2.5, 0.3)] * 3
    plan = bag.plan_copies(8, 40, law=laws, deadline=2.0, miss_probability=0.02)
    found = solve(CloningProblem([TaskGroup(5, LAW), TaskGroup(3, laws[-1])], 40, 2.0, 0.02))
    assert sorted(plan.copies) == sorted(found.copies.tolist())
    assert plan.machine_seconds == pytest.approx(found.expected_cost)
    assert plan.miss_probability == pytest.approx(found.miss_probability)
    assert plan.miss_probability is not None
    assert plan.miss_probability <= 0.02


def test_what_cannot_be_planned_is_told() -> None:
    with pytest.raises(InputError, match=r"8 processes cannot finish .* processes: "):
        bag.plan_copies(8, 8, law=LAW, deadline=1.0)
    with pytest.raises(InputError, match="2 laws for 3 tasks"):
        bag.plan_copies(3, 9, law=[LAW, LAW], deadline=9.0)
    assert bag.plan_copies(3, 2, law=LAW, deadline=9.0).by_saving
    assert bag.plan_copies(3, 9).copies == (1, 1, 1)
    given = bag.plan_copies(3, 9, law=LAW, deadline=1.0, copies=2)
    late = LAW.survival(1.0) ** 2
    assert given.miss_probability == pytest.approx(1.0 - (1.0 - late) ** 3)


def test_measured_durations_make_a_law() -> None:
    seconds = LAW.inverse_survival(np.random.default_rng(1).uniform(1e-9, 1.0, 4000))
    law = bag.measured(seconds)
    assert law.survival(2.0) == pytest.approx(float(LAW.survival(2.0)), rel=0.2)
    assert law.survival(60.0) > 0.0
    assert bag.measured(seconds, tail=False).survival(seconds.max() * 1.01) == 0.0


@pytest.mark.parametrize("durations", [[], [0.0, 1.0], [math.nan, 1.0], [math.inf], [-1.0]])
def test_what_are_no_durations_make_no_law(durations: list[float]) -> None:
    for tail in (True, False):
        with pytest.raises(InputError, match="durations: they are not all durations, or none"):
            bag.measured(durations, tail=tail)


def test_too_few_durations_have_no_tail_but_make_a_law_without() -> None:
    with pytest.raises(InputError, match=r"3 are too few to tell a tail from; .* tail=False"):
        bag.measured([1.0, 2.0, 3.0])
    assert bag.measured([1.0, 2.0, 3.0], tail=False).survival(3.0) == 0.0
    copies = bag.plan_copies(2, 8, copies=np.int64(2)).copies  # type: ignore[arg-type]
    assert copies == (2, 2)


def _above(sample: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """Return how far a sorted sample's tail is above a predicted one, in widths of the band."""
    width = math.sqrt(math.log(1.0 / (1.0 - LEVEL)) / (2.0 * len(sample)))
    until = 1.0 - np.arange(len(sample)) / len(sample)
    return float((until - predicted).max()) / width


def _below(sample: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """Return how far it is below."""
    width = math.sqrt(math.log(1.0 / (1.0 - LEVEL)) / (2.0 * len(sample)))
    since = 1.0 - np.arange(1, len(sample) + 1) / len(sample)
    return float((predicted - since).max()) / width


def _slow() -> float:
    """Return `SLOW` on a machine as busy as this one, where processes wait for their turn."""
    return SLOW * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.train  # a hundred processes: not for every run
def test_the_measured_tail_is_the_predicted_one() -> None:
    tasks, copies, slow = 40, 3, _slow()
    ends: list[float] = []
    lasted: list[float] = []
    with bag.Workers(wait, tasks * copies) as workers:
        for seed in (3, 4):
            outcome = workers.run([Wait(LAW, seed)] * tasks, law=LAW, deadline=1.0, copies=copies)
            for task in range(tasks):
                least = min(_drawn(LAW, seed, task, copy) for copy in range(copies))
                assert least <= outcome.values[task] <= outcome.ends[task]
                lasted.append(least)
            slow = max(slow, _slow())  # these processes are a load themselves
            later = [outcome.ends[task] - outcome.values[task] for task in range(tasks)]
            assert np.median(later) < slow
            won = sum(one.ending is bag.Ending.WON for one in outcome.tries)
            assert (won, len(outcome.tries)) == (tasks, tasks * copies)
            ends += outcome.ends.values()
    sample = np.sort(ends)
    # Tasks last as long as the least of three copies, and no longer than processes are slow.
    assert _below(sample, LAW.survival(sample) ** copies) < 1.0
    assert _above(sample, LAW.survival(sample - slow) ** copies) < 1.0
    # The same test tells one copy from three: by how long they were to last, for that does not
    # depend on what else the machine does.
    exact = np.sort(lasted)
    assert _above(exact, LAW.survival(exact) ** copies) < 1.0
    assert _below(exact, LAW.survival(exact)) > 1.0


def test_idle_processes_copy_what_is_late(tmp_path: Path) -> None:
    # The first copy of one task never ends: without another one the bag would not either.
    law = Pareto.of_mean(1.6, 0.3)
    with bag.Workers(bag_functions.late, 3) as workers:
        outcome = workers.run([(str(tmp_path), 2)] * 4, law=law)
    assert outcome.plan.by_saving
    assert outcome.values[2] > 0
    first = next(one for one in outcome.tries if (one.task, one.copy) == (2, 0))
    assert first.ending is bag.Ending.CANCELLED
    # Nothing is copied while a task waits.
    last_begin = max(one.started for one in outcome.tries if one.copy == 0)
    assert all(one.started >= last_begin for one in outcome.tries if one.copy > 0)


def test_what_decides_on_copies_is_compiled_before_a_task_begins() -> None:
    # In a process in which nothing else has compiled it. Seconds of a compiler would be a late
    # task's own, for nobody looks meanwhile.
    program = (
        "from shadowprice.cloning.api import Pareto\n"
        "from shadowprice.kernels.cloning.saving import assess\n"
        "from shadowprice.training import bag\n"
        "from tests.support.bag_functions import square\n"
        "told = []\n"
        "with bag.Workers(square, 2) as workers:\n"
        " workers.run(range(3), law=Pareto.of_mean(1.6, 0.3),"
        " progress=lambda now: told.append((now.done, len(assess.signatures))))\n"
        "print(told[0])\n"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WAIT_LIMIT_SECONDS
    )
    assert done.stdout.split() == ["(0,", "1)"], done.stderr


def _drawn(law: Pareto, seed: int, task: int, copy: int) -> float:
    import random

    return float(law.inverse_survival(1.0 - random.Random(f"{seed}/{task}/{copy}").random()))
