from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowprice.cloning import solver
from shadowprice.cloning.api import (
    CloningProblem,
    CloningSolution,
    DeadlineConstraint,
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    SolveMethod,
    TaskGroup,
    Weibull,
    solve,
)
from shadowprice.cloning.solver import expected_cost, miss_probability
from shadowprice.core.errors import InputError
from tests.oracles.cloning import brute_force
from tests.support.examples import example_count

FAST = settings(
    deadline=None,
    max_examples=example_count(60),
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

means = st.floats(1.0, 20.0)
# Orders of 2 and above: a copy never pays for itself, as the paper assumes.
dear = st.builds(Pareto.of_mean, st.floats(2.0, 4.0), means)
paretos = st.builds(Pareto.of_mean, st.floats(1.1, 4.0), means)
distributions: st.SearchStrategy[Distribution] = st.one_of(
    paretos,
    st.builds(lambda k, m: Weibull(k, m, 0.1 * m), st.floats(0.4, 1.0), means),
    st.builds(lambda p, m: HyperExponential((1 - p, p), (m, 9 * m)), st.floats(0.05, 0.5), means),
    st.builds(LogNormal.of_mean, st.floats(0.6, 1.5), means),
)


def groups(distribution: st.SearchStrategy[Distribution]) -> st.SearchStrategy[list[TaskGroup]]:
    return st.lists(st.builds(TaskGroup, st.integers(1, 6), distribution), min_size=1, max_size=5)


def solved(
    tasks: list[TaskGroup],
    machines: int,
    deadline: float,
    epsilon: float,
    constraint: DeadlineConstraint = DeadlineConstraint.EXACT,
) -> CloningSolution | None:
    total = sum(group.count for group in tasks)
    try:
        problem = CloningProblem(tasks, total + machines, deadline, epsilon)
        return solve(problem, constraint=constraint)
    except InputError:
        return None


deadlines = st.floats(15.0, 120.0)
epsilons = st.floats(0.005, 0.4)
rooms = st.integers(0, 60)


@pytest.mark.extended
@FAST
@given(groups(distributions), rooms, deadlines, epsilons, st.sampled_from(DeadlineConstraint))
def test_solutions_are_feasible_proved_and_above_their_bounds(
    tasks: list[TaskGroup],
    room: int,
    deadline: float,
    epsilon: float,
    constraint: DeadlineConstraint,
) -> None:
    result = solved(tasks, room, deadline, epsilon, constraint)
    if result is None:
        return
    assert result.violation < 1e-7
    assert result.proved
    assert result.copies.min() >= 1
    assert result.machines <= result.problem.machines
    if constraint is DeadlineConstraint.EXACT:
        assert result.miss_probability <= epsilon * (1 + 1e-9)
        assert result.continuous_miss <= epsilon * (1 + 1e-7)
    assert result.continuous_cost <= result.expected_cost * (1 + 1e-9)
    assert result.expected_cost == pytest.approx(expected_cost(result.problem, result.copies))
    # No single step up or down is feasible and cheaper.
    if constraint is DeadlineConstraint.EXACT:
        for task in range(len(result.copies)):
            for step in (-1, 1):
                other = result.copies.copy()
                other[task] += step
                if other[task] < 1 or other.sum() > result.problem.machines:
                    continue
                cheaper = expected_cost(result.problem, other) < result.expected_cost * (1 - 1e-9)
                assert not cheaper or miss_probability(result.problem, other) > epsilon


@FAST
@given(groups(dear), rooms, deadlines, epsilons, st.floats(1.0, 3.0))
def test_copies_do_not_grow_with_the_deadline(
    tasks: list[TaskGroup], room: int, deadline: float, epsilon: float, later: float
) -> None:
    first = solved(tasks, room, deadline, epsilon)
    if first is None:
        return
    second = solved(tasks, room, deadline * later, epsilon)
    assert second is not None
    # Copies may shift from one task to another; the total may not rise.
    assert second.continuous_cost <= first.continuous_cost * (1 + 1e-7)
    assert second.expected_cost <= first.expected_cost * (1 + 1e-9)
    if len(tasks) == 1:
        assert np.all(second.continuous <= first.continuous * (1 + 1e-7))


@FAST
@given(groups(distributions), rooms, deadlines, epsilons, st.floats(0.1, 1.0))
def test_cost_does_not_fall_with_epsilon(
    tasks: list[TaskGroup], room: int, deadline: float, epsilon: float, share: float
) -> None:
    strict = solved(tasks, room, deadline, epsilon * share)
    if strict is None:
        return
    loose = solved(tasks, room, deadline, epsilon)
    assert loose is not None
    assert loose.continuous_cost <= strict.continuous_cost * (1 + 1e-7)
    assert loose.expected_cost <= strict.expected_cost * (1 + 1e-9)


@FAST
@given(groups(distributions), rooms, deadlines, epsilons, st.integers(1, 20))
def test_more_machines_never_cost_more(
    tasks: list[TaskGroup], room: int, deadline: float, epsilon: float, more: int
) -> None:
    first = solved(tasks, room, deadline, epsilon)
    if first is None:
        return
    second = solved(tasks, room + more, deadline, epsilon)
    assert second is not None
    assert second.continuous_cost <= first.continuous_cost * (1 + 1e-7)
    assert second.expected_cost <= first.expected_cost * (1 + 1e-9)


@FAST
@given(groups(distributions), deadlines, epsilons)
def test_relaxing_lowers_the_cost_and_closed_form_raises_it(
    tasks: list[TaskGroup], deadline: float, epsilon: float
) -> None:
    exact = solved(tasks, 200, deadline, epsilon)
    relaxed = solved(tasks, 200, deadline, epsilon, DeadlineConstraint.RELAXED)
    if exact is None or relaxed is None:
        return
    assert relaxed.continuous_cost <= exact.continuous_cost * (1 + 1e-7)
    assert relaxed.lower_bound <= exact.expected_cost * (1 + 1e-9)
    assert relaxed.expected_cost <= exact.expected_cost * (1 + 1e-9) or not relaxed.proved
    try:
        closed = solve(exact.problem, SolveMethod.CLOSED_FORM)
    except InputError:
        return
    assert closed.continuous_cost >= relaxed.continuous_cost * (1 - 1e-7)
    assert closed.expected_cost >= relaxed.lower_bound * (1 - 1e-9)


log_normals = st.builds(LogNormal.of_mean, st.floats(0.6, 1.5), means)
few = st.lists(st.builds(TaskGroup, st.integers(1, 3), log_normals), min_size=1, max_size=2)


@pytest.mark.extended
@pytest.mark.parametrize("ways", [2, solver.MAX_COMBINATIONS])
@settings(parent=FAST, max_examples=example_count(40))
@given(few, st.integers(1, 8), deadlines, st.floats(0.02, 0.4))
def test_tasks_of_one_law_match_brute_force_together_and_in_turn(
    ways: int, tasks: list[TaskGroup], room: int, deadline: float, epsilon: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "MAX_COMBINATIONS", ways)
        result = solved(tasks, room, deadline, epsilon)
    if result is None:
        return
    best, _ = brute_force(result.problem, False, room + 1)
    assert result.proved
    assert result.expected_cost == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("mean", "deadline", "epsilon"), [(14.0, 16.0, 0.125), (13.0, 15.0, 0.005859375)]
)
@pytest.mark.parametrize("constraint", DeadlineConstraint)
def test_a_cheap_task_that_may_have_two_hundred_copies_is_no_obstacle_to_a_proof(
    mean: float, deadline: float, epsilon: float, constraint: DeadlineConstraint
) -> None:
    tasks = [TaskGroup(1, Pareto.of_mean(2.0, mean)), TaskGroup(1, LogNormal.of_mean(1.25, 1.0))]
    result = solved(tasks, 200, deadline, epsilon, constraint)
    assert result is not None
    assert result.proved
    best, _ = brute_force(result.problem, constraint is DeadlineConstraint.RELAXED, 12)
    assert result.expected_cost == pytest.approx(best, rel=1e-9)


@settings(parent=FAST, max_examples=example_count(25))
@given(
    st.lists(distributions, min_size=1, max_size=4),
    st.integers(0, 8),
    deadlines,
    st.floats(0.02, 0.4),
)
def test_whole_copies_match_brute_force(
    each: list[Distribution], room: int, deadline: float, epsilon: float
) -> None:
    result = solved([TaskGroup(1, distribution) for distribution in each], room, deadline, epsilon)
    if result is None or room + 1 > 6:
        return
    best, _ = brute_force(result.problem, False, room + 1)
    assert result.expected_cost == pytest.approx(best, rel=1e-9)
