from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq

from shadowprice.cloning import solver
from shadowprice.cloning.api import (
    CloningProblem,
    DeadlineConstraint,
    Distribution,
    Empirical,
    HyperExponential,
    LogNormal,
    Pareto,
    SolveMethod,
    TaskGroup,
    Weibull,
    solve,
)
from shadowprice.cloning.problem import add_copies_greedily, min_feasible_deadline
from shadowprice.cloning.solver import (
    ConvexityCondition,
    _algorithm_1,
    build_program,
    check_convexity,
    costs,
    expected_cost,
    miss_probability,
)
from shadowprice.core.errors import InputError
from shadowprice.kernels.cloning import integer
from shadowprice.kernels.cloning.continuous import best_response
from shadowprice.kernels.cloning.curves import curve
from tests.oracles.cloning import brute_force, cost_by_quadrature, general_solver, miss_of

BODY = np.random.default_rng(9).gamma(20.0, 0.4, 500)


def mixed(machines: int = 20, deadline: float = 40.0, epsilon: float = 0.05) -> CloningProblem:
    distributions: list[Distribution] = [
        Pareto.of_mean(1.4, 9.0),
        Weibull(0.6, 6.0, 1.0),
        HyperExponential((0.8, 0.2), (3.0, 20.0), 0.5),
        LogNormal.of_mean(1.1, 8.0),
    ]
    return CloningProblem(
        [TaskGroup(1, distribution) for distribution in distributions], machines, deadline, epsilon
    )


def paretos(
    seed: int,
    tasks: int,
    machines: int,
    deadline: float = 40.0,
    epsilon: float = 0.05,
    orders: tuple[float, float] = (1.2, 2.2),
) -> CloningProblem:
    rng = np.random.default_rng(seed)
    return CloningProblem(
        [
            TaskGroup(1, Pareto.of_mean(float(order), float(mean)))
            for order, mean in zip(
                rng.uniform(*orders, tasks), np.exp(rng.uniform(0.0, 3.0, tasks)), strict=True
            )
        ],
        machines,
        deadline,
        epsilon,
    )


# Which multipliers are positive: the deadline's, the machines', both, none.
DEADLINE = paretos(4, 6, 14, 60.0, 0.02)
MACHINES = paretos(5, 6, 7, 60.0, 0.02)
BOTH = paretos(4, 8, 9, 60.0, 0.05)
BOTH_LARGE = paretos(6, 30, 36, 90.0, 0.05)
NEITHER = paretos(6, 8, 11, 60.0, 0.05)


@pytest.mark.parametrize("constraint", DeadlineConstraint)
@pytest.mark.parametrize(
    "problem",
    [
        DEADLINE,
        MACHINES,
        NEITHER,
        paretos(0, 4, 40, 25.0, orders=(2.0, 3.0)),
        paretos(3, 5, 12, 60.0, 0.2),
        mixed(),
        mixed(machines=10, deadline=60.0),
        mixed(machines=9, deadline=60.0, epsilon=0.02),
        CloningProblem(
            [TaskGroup(4, Pareto.of_mean(2.0, 12.0)), TaskGroup(1, Weibull(0.5, 9.0))],
            16, 60.0, 0.05,
        ),
        CloningProblem([TaskGroup(5, Empirical(BODY, None))], 20, 9.0, 0.1),
    ],
)  # fmt: skip
def test_integer_copies_are_optimal(
    problem: CloningProblem, constraint: DeadlineConstraint
) -> None:
    best, holding = brute_force(problem, constraint is DeadlineConstraint.RELAXED, 7)
    solution = solve(problem, constraint=constraint)
    assert holding >= 1
    assert solution.proved
    # Seven copies bound the enumeration, not the problem.
    assert solution.expected_cost <= best * (1 + 1e-9)
    if solution.copies.max() <= 7:
        assert solution.expected_cost == pytest.approx(best, rel=1e-9)
    assert solution.machines <= problem.machines
    if constraint is DeadlineConstraint.EXACT:
        assert miss_of(problem, solution.copies) <= problem.miss_probability * (1 + 1e-9)
    assert solution.miss_probability == pytest.approx(miss_of(problem, solution.copies), rel=1e-9)
    distributions = [group.duration for group in problem.groups for _ in range(group.count)]
    total = sum(
        cost_by_quadrature(distribution, float(c))
        for distribution, c in zip(distributions, solution.copies, strict=True)
    )
    assert solution.expected_cost == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("constraint", DeadlineConstraint)
@pytest.mark.parametrize("method", ["SLSQP", "trust-constr"])
@pytest.mark.parametrize(
    "problem",
    [DEADLINE, MACHINES, BOTH, NEITHER, mixed(), mixed(9, 60.0, 0.02)],
)
def test_continuous_optimum_agrees_with_general_solvers(
    problem: CloningProblem, method: str, constraint: DeadlineConstraint
) -> None:
    relaxed = constraint is DeadlineConstraint.RELAXED
    solution = solve(problem, constraint=constraint)
    with np.errstate(all="ignore"):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ratios, value = general_solver(
                problem, relaxed, lambda r: expected_cost(problem, r), method
            )
    assert solution.violation < 1e-9
    assert solution.continuous_cost <= value * (1 + 1e-7)
    assert solution.continuous_cost == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(solution.continuous, ratios, rtol=2e-2)


@pytest.mark.parametrize(
    "problem", [DEADLINE, MACHINES, BOTH, BOTH_LARGE, NEITHER, paretos(8, 40, 400, 30.0, 0.01)]
)
@pytest.mark.parametrize("constraint", DeadlineConstraint)
def test_kkt_conditions_hold(problem: CloningProblem, constraint: DeadlineConstraint) -> None:
    """(8)-(11): no direction within the constraints lowers the cost."""
    solution = solve(problem, constraint=constraint)
    r, k, l = solution.continuous, solution.deadline_price, solution.machine_price  # noqa: E741
    step = 1e-6
    owner = problem.member
    slope = (
        costs(problem.arrays, owner, r + step) - costs(problem.arrays, owner, r - step)
    ) / (2 * step)  # fmt: skip
    a = problem.arrays.decay[owner]
    h = np.exp(-a * r)
    pull = a * h if constraint is DeadlineConstraint.RELAXED else a * h / (1 - h)
    residual = slope + l - k * pull
    inside = r > 1.0
    assert np.abs(residual[inside]).max() < 1e-5 * np.abs(slope).max()
    assert np.all(residual[~inside] >= -1e-6)
    assert solution.violation < 1e-10
    assert k >= 0
    assert l >= 0


@pytest.mark.parametrize("relaxed", [True, False])
def test_the_response_to_prices_does_not_depend_on_the_start_of_the_search(relaxed: bool) -> None:
    """Against bisection; also from points with g' + l = 0, where the logarithm is large."""
    problem = mixed(machines=200, deadline=15.0)
    a = problem.arrays
    for j in range(len(a.tasks)):

        def slope(r: float, k: float, l: float, j: int = j) -> float:  # noqa: E741
            _, first, _ = curve(
                int(a.kind[j]), float(a.shape[j]), float(a.minimum[j]), float(a.scale[j]),
                a.tables[a.table[j]], r,
            )  # fmt: skip
            h = np.exp(-a.decay[j] * r)
            return float(first + l - k * a.decay[j] * h / (1.0 if relaxed else 1.0 - h))

        def search(k: float, l: float, start: float, j: int = j) -> float:  # noqa: E741
            return float(
                best_response(
                    a.kind[j], a.shape[j], a.minimum[j], a.scale[j], a.tables[a.table[j]],
                    a.decay[j], 190.0,
                    relaxed, k, l, start,
                )
            )  # fmt: skip

        for k, l in itertools.product((0.0, 1.0, 50.0, 1e6), (0.0, 1e-4, 0.3)):  # noqa: E741
            if slope(1.0, k, l) >= 0:
                expected = 1.0
            elif slope(190.0, k, l) <= 0:
                expected = 190.0
            else:
                expected = brentq(slope, 1.0, 190.0, args=(k, l), xtol=1e-13, rtol=1e-14)
            for start in (1.0, 1.7, search(0.0, l, 2.0), 30.0, 190.0):
                assert search(k, l, start) == pytest.approx(expected, rel=1e-7)


def test_machine_limit_and_single_copies_are_active_as_expected() -> None:
    for problem, late, full in (
        (DEADLINE, True, False),
        (MACHINES, False, True),
        (BOTH, True, True),
        (BOTH_LARGE, True, True),
        (NEITHER, False, False),
    ):
        solution = solve(problem)
        assert (solution.deadline_price > 0, solution.machine_price > 0) == (late, full)
        if full:
            assert solution.continuous.sum() == pytest.approx(problem.machines, rel=1e-9)
        if late:
            assert solution.continuous_miss == pytest.approx(problem.miss_probability, rel=1e-9)
    easy = CloningProblem([TaskGroup(3, Pareto.of_mean(3.0, 5.0))], 30, 5000.0, 0.5)
    assert solve(easy).continuous.tolist() == [1.0, 1.0, 1.0]
    # Order below 2: two copies cost less than one, so the optimum leaves r = 1 by itself.
    cheap = CloningProblem([TaskGroup(3, Pareto.of_mean(1.25, 5.0))], 30, 5000.0, 0.5)
    np.testing.assert_allclose(solve(cheap).continuous, 1.6, rtol=1e-9)
    # Falling cost: only the machines limit the copies.
    free = CloningProblem([TaskGroup(4, Weibull(0.5, 5.0))], 22, 50.0, 0.2)
    solution = solve(free)
    np.testing.assert_allclose(solution.continuous, 5.5, rtol=1e-9)
    assert sorted(solution.copies.tolist()) == [5, 5, 6, 6]


def test_theorem_1_is_exact_for_equal_means() -> None:
    problem = CloningProblem([TaskGroup(20, Pareto.of_mean(2.0, 12.0))], 200, 60.0, 0.05)
    closed = solve(problem, SolveMethod.CLOSED_FORM)
    exact = solve(problem, constraint=DeadlineConstraint.RELAXED)
    np.testing.assert_allclose(closed.continuous, exact.continuous, rtol=1e-10)
    # (12), written out
    nu = 2.0 * 60.0 / (1.0 * 12.0)
    ratio = np.log(20 / -np.log(0.95)) / np.log(nu) / 2.0
    np.testing.assert_allclose(closed.continuous, ratio, rtol=1e-12)
    assert closed.copies.tolist() == [2] * 20
    # Rounding every number up is not optimal.
    assert exact.expected_cost < closed.expected_cost


def test_theorem_1_refers_to_algorithm_1_beyond_the_machines() -> None:
    with pytest.raises(InputError, match=r"need 8 machines.*--method subgradient"):
        solve(MACHINES, SolveMethod.CLOSED_FORM)


def test_theorem_1_costs_more_for_unequal_means() -> None:
    rng = np.random.default_rng(2)
    groups = [TaskGroup(1, Pareto.of_mean(2.0, float(m))) for m in rng.uniform(2.0, 30.0, 20)]
    problem = CloningProblem(groups, 500, 45.0, 0.05)
    closed = solve(problem, SolveMethod.CLOSED_FORM)
    exact = solve(problem, constraint=DeadlineConstraint.RELAXED)
    # Both meet (7) with equality; the closed form spends more on it.
    h = np.exp(-problem.arrays.decay[problem.member] * closed.continuous)
    assert h.sum() == pytest.approx(problem.budget, rel=1e-9)
    assert 1.001 < closed.continuous_cost / exact.continuous_cost < 1.1


@pytest.mark.parametrize("ratio", [1.999998, 2.0, 2.000002, 2.000018, 2.0001])
def test_rounded_copies_of_the_subgradient_method_meet_the_deadline(ratio: float) -> None:
    """The optimum is just above or below an integer, within the method's tolerance."""
    distribution = Pareto.of_mean(2.0, 12.0)
    budget = -20.0 * math.log1p(-((distribution.minimum / 60.0) ** (2.0 * ratio)))
    epsilon = -math.expm1(-budget)
    problem = CloningProblem([TaskGroup(20, distribution)], 200, 60.0, epsilon)
    answer = solve(problem, SolveMethod.SUBGRADIENT)
    assert answer.miss_probability <= epsilon * (1.0 + 1e-9)


def test_the_gap_of_a_method_without_a_lower_bound_is_unknown() -> None:
    assert solve(mixed()).gap == 0.0
    assert solve(mixed(), method=SolveMethod.SUBGRADIENT).gap == math.inf


def test_relaxed_constraint_misses_slightly_more_often() -> None:
    problem = CloningProblem([TaskGroup(50, Pareto.of_mean(2.0, 12.0))], 1000, 60.0, 0.05)
    relaxed = solve(problem, constraint=DeadlineConstraint.RELAXED)
    assert round(relaxed.continuous_miss, 5) == 0.05003
    assert solve(problem).continuous_miss == pytest.approx(0.05, rel=1e-10)


@pytest.mark.parametrize(
    "problem",
    [DEADLINE, MACHINES, BOTH, paretos(8, 40, 400, 30.0, 0.01), mixed()],
)
@pytest.mark.parametrize("constraint", DeadlineConstraint)
def test_subgradient_converges_to_the_optimum(
    problem: CloningProblem, constraint: DeadlineConstraint
) -> None:
    exact = solve(problem, constraint=constraint)
    program = build_program(problem, constraint, check_convexity(problem).max_copies)
    ratios, _, iterations, violation = _algorithm_1(program, 100_000, 1e-7)
    ratios = ratios[problem.member]
    assert 1 < iterations < 100_000
    assert violation <= 1e-7
    assert expected_cost(problem, ratios) == pytest.approx(exact.continuous_cost, rel=1e-5)
    np.testing.assert_allclose(ratios, exact.continuous, rtol=1e-3)


@pytest.mark.parametrize("constraint", DeadlineConstraint)
@pytest.mark.parametrize("problem", [MACHINES, BOTH, paretos(0, 5, 8, 90.0, 0.3, (1.1, 1.4))])
def test_subgradient_answers_if_the_machines_bind(
    problem: CloningProblem, constraint: DeadlineConstraint
) -> None:
    """Against scipy's continuous optimum, its slope in M, and all integer copies."""
    relaxed = constraint is DeadlineConstraint.RELAXED

    def value(machines: int) -> float:
        other = CloningProblem(problem.groups, machines, problem.deadline, problem.miss_probability)
        return general_solver(other, relaxed, lambda r: expected_cost(other, r))[1]

    solution = solve(problem, SolveMethod.SUBGRADIENT, constraint)
    here = value(problem.machines)
    assert np.ceil(solution.continuous - 1e-5).sum() > problem.machines
    assert solution.continuous.sum() == pytest.approx(problem.machines, rel=1e-5)
    assert solution.continuous_cost == pytest.approx(here, rel=1e-4)
    # The optimum is convex in M, so the multiplier is at least what one more machine saves.
    assert solution.machine_price > 0.0
    assert solution.machine_price >= here - value(problem.machines + 1) - 1e-4 * here
    best, _ = brute_force(problem, relaxed, problem.max_copies_per_task)
    assert solution.machines <= problem.machines
    if not relaxed:
        assert miss_of(problem, solution.copies) <= problem.miss_probability * (1 + 1e-9)
    assert best * (1 - 1e-9) <= solution.expected_cost <= best * 1.05


def test_integer_copies_of_the_subgradient_method_always_hold() -> None:
    """Few machines, equal tasks, and steps that end before they converge."""
    rng = np.random.default_rng(3)
    exceeding = 0
    for seed in range(12):
        groups = [
            TaskGroup(int(rng.integers(1, 5)), group.duration)
            for group in paretos(seed, 4, 20, orders=(1.1, 1.8)).groups
        ]
        tasks = sum(group.count for group in groups)
        problem = CloningProblem(groups, tasks + int(rng.integers(2, 9)), 90.0, 0.3)
        if add_copies_greedily(problem, DeadlineConstraint.EXACT, 200)[1] > problem.machines:
            continue
        best = solve(problem).expected_cost
        for iterations in (1, 10, 20_000):
            solution = solve(problem, SolveMethod.SUBGRADIENT, iterations=iterations)
            exceeding += int(np.ceil(solution.continuous - 1e-4).sum() > problem.machines)
            assert solution.machines <= problem.machines
            assert miss_of(problem, solution.copies) <= 0.3 * (1 + 1e-9)
            assert solution.expected_cost >= best * (1 - 1e-9)
    assert exceeding >= 12


def test_grouping_changes_nothing() -> None:
    distribution = Pareto.of_mean(1.8, 10.0)
    other = Weibull(0.7, 8.0, 1.0)
    grouped = CloningProblem([TaskGroup(7, distribution), TaskGroup(5, other)], 60, 70.0, 0.03)
    single = CloningProblem(
        [TaskGroup(1, distribution)] * 7 + [TaskGroup(1, other)] * 5, 60, 70.0, 0.03
    )
    shuffled = CloningProblem(
        [TaskGroup(3, distribution), TaskGroup(5, other), TaskGroup(4, distribution)],
        60,
        70.0,
        0.03,
    )
    first, second, third = solve(grouped), solve(single), solve(shuffled)
    assert first.copies.tolist() == second.copies.tolist()
    assert first.expected_cost == second.expected_cost == third.expected_cost
    np.testing.assert_array_equal(first.continuous, second.continuous)
    np.testing.assert_array_equal(third.continuous[3:8], first.continuous[7:])


def test_large_problem_is_proved() -> None:
    problem = paretos(11, 2000, 6000, 90.0, orders=(1.6, 3.0))
    solution = solve(problem)
    assert solution.proved
    assert solution.gap == 0.0
    assert solution.continuous_cost <= solution.lower_bound <= solution.expected_cost
    assert solution.miss_probability <= 0.05
    # No single copy can be dropped.
    for task in range(0, 2000, 97):
        if solution.copies[task] > 1:
            fewer = solution.copies.copy()
            fewer[task] -= 1
            worse = expected_cost(problem, fewer) > solution.expected_cost
            assert worse or miss_probability(problem, fewer) > 0.05


def test_the_search_for_integer_copies_ends_after_a_limited_number_of_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Tasks whose cost isn't convex are searched one by one, so the states grow with each of them.
    groups = [
        TaskGroup(100, Pareto.of_mean(1.5, 12.0)),
        TaskGroup(3000, LogNormal.of_mean(1.0, 12.0)),
    ]
    problem = CloningProblem(groups, 100_000, 60.0, 0.001)
    optimum = solve(problem)
    assert optimum.proved
    listed = []
    list_undominated = integer.list_undominated

    def count_listed(order: NDArray[np.int64], *more: Any) -> int:
        listed.append(len(order))
        return list_undominated(order, *more)

    monkeypatch.setattr(integer, "list_undominated", count_listed)
    monkeypatch.setattr(solver, "MAX_LISTED_STATES", 10_000)
    monkeypatch.setattr(solver, "FEW_STATES", 10)
    solution = solve(problem)
    assert sum(listed) < 10_000 + 100 * len(listed)
    assert not solution.proved
    assert solution.miss_probability <= 0.001
    assert solution.lower_bound <= optimum.expected_cost <= solution.expected_cost
    assert solution.gap < 1e-3


def test_measured_body_needs_the_wider_condition() -> None:
    problem = CloningProblem([TaskGroup(5, Empirical(BODY, None))], 20, 12.0, 0.1)
    solution = solve(problem)
    assert solution.condition is ConvexityCondition.WIDER


@pytest.mark.parametrize(
    ("sample", "other", "machines", "deadline", "proved"),
    [
        ([40.0, 13.0, 13.0, 2.0, 2.0], HyperExponential((0.3, 0.7), (3.0, 15.0)), 9, 56.0, True),
        ([8.0, 40.0, 3.0], Weibull(0.2, 4.6), 4, 10.5, False),
    ],
)
def test_a_distribution_that_meets_no_condition_does_not_limit_others(
    sample: list[float], other: Distribution, machines: int, deadline: float, proved: bool
) -> None:
    # Samples so small that no condition holds for them beyond one copy.
    groups = [TaskGroup(1, Empirical(np.array(sample), None)), TaskGroup(2, other)]
    problem = CloningProblem(groups, machines, deadline, 0.9)
    best, _ = brute_force(problem, False, problem.max_copies_per_task)
    solution = solve(problem)
    assert solution.condition is ConvexityCondition.CERTIFIED
    assert solution.proved is proved
    assert solution.expected_cost == pytest.approx(best, rel=1e-9)
    assert solution.lower_bound <= best * (1 + 1e-9)


def test_a_distribution_that_meets_no_condition_is_refused() -> None:
    # Uniform from almost 0: hazard rises, and a deadline that most tasks miss.
    sample = np.linspace(0.001, 10.0, 400)
    problem = CloningProblem([TaskGroup(2, Empirical(sample, None))], 60, 0.5, 0.4)
    with pytest.raises(InputError, match="Lemma 1"):
        solve(problem)


def test_an_infeasible_deadline_is_refused_with_a_feasible_one() -> None:
    # The probability that a task outlasts a minute rounds to 1: the normal tail 13.6 deviations
    # off.
    groups = [TaskGroup(4, LogNormal(0.3, 3600.0))]
    with pytest.raises(InputError, match="no number of copies helps") as caught:
        solve(CloningProblem(groups, 200, 60.0, 0.05))
    deadline = min_feasible_deadline(CloningProblem(groups, 200, 60.0, 0.05))
    assert f"{deadline:.8g}s" in str(caught.value)
    # Fifty copies of each task, whose minimum ends by then.
    outlasts = 0.5 * math.erfc(math.log(deadline / 3600.0) / 0.3 / math.sqrt(2.0))
    assert (1.0 - outlasts**50) ** 4 == pytest.approx(0.95, rel=1e-6)


class TestRefusals:
    problem = paretos(5, 6, 12, 22.0, 0.002, (1.6, 3.0))

    def test_smallest_numbers_would_do_and_less_would_not(self) -> None:
        with pytest.raises(InputError, match="any one of these would do") as caught:
            solve(self.problem)
        groups = self.problem.groups
        deadline = min_feasible_deadline(self.problem)
        assert f"{deadline:.8g}s" in str(caught.value)
        assert solve(CloningProblem(groups, 12, deadline, 0.002)).machines == 12
        with pytest.raises(InputError):
            solve(CloningProblem(groups, 12, deadline * 0.9999, 0.002))
        _, machines = add_copies_greedily(self.problem, DeadlineConstraint.EXACT, 10_000)
        assert f"machines: {machines} " in str(caught.value)
        solve(CloningProblem(groups, machines, 22.0, 0.002))
        with pytest.raises(InputError):
            solve(CloningProblem(groups, machines - 1, 22.0, 0.002))
        late, _ = add_copies_greedily(self.problem, DeadlineConstraint.EXACT, 12)
        epsilon = -np.expm1(-late)
        assert f"the smallest is {epsilon:.6g}" in str(caught.value)
        solve(CloningProblem(groups, 12, 22.0, epsilon * 1.0001))
        with pytest.raises(InputError):
            solve(CloningProblem(groups, 12, 22.0, epsilon * 0.9999))

    def test_greedy_is_the_least_miss_of_all(self) -> None:
        problem = paretos(6, 4, 11, 20.0, 0.001, (1.6, 3.0))
        late, used = add_copies_greedily(problem, DeadlineConstraint.EXACT, 11)
        assert used == 11
        best = min(
            miss_of(problem, copies)
            for copies in itertools.product(range(1, 9), repeat=4)
            if sum(copies) <= 11
        )
        assert -np.expm1(-late) == pytest.approx(best, rel=1e-10)

    def test_deadline_below_the_shortest_duration(self) -> None:
        problem = CloningProblem([TaskGroup(2, Pareto(2.0, 10.0))], 20, 9.0, 0.1)
        with pytest.raises(InputError, match=r"shortest possible.*deadline: 1\d\.\d+s"):
            solve(problem)

    @pytest.mark.parametrize(
        ("machines", "deadline", "epsilon", "word"),
        [
            (5, 60.0, 0.05, "cloning waves"),
            (50, 60.0, 0.0, "outside"),
            (50, 60.0, 1.0, "outside"),
            (50, 0.0, 0.05, "positive time"),
        ],
    )
    def test_numbers_out_of_range(
        self, machines: int, deadline: float, epsilon: float, word: str
    ) -> None:
        with pytest.raises(InputError, match=word):
            CloningProblem([TaskGroup(6, Pareto(2.0, 10.0))], machines, deadline, epsilon)

    def test_every_fault_is_listed(self) -> None:
        with pytest.raises(InputError) as caught:
            CloningProblem(
                [TaskGroup(0, Pareto(2.0, 1.0)), TaskGroup(9, Pareto(2.0, 1.0))], 2, -1.0, 3
            )
        assert len(caught.value.faults) == 4

    @pytest.mark.parametrize("epsilon", [1e-6, 1e-12, 1e-15, 1e-30])
    def test_sums_keep_their_precision_below_rounding_errors_of_the_first(
        self, epsilon: float
    ) -> None:
        problem = paretos(2, 40, 200, 22.0, epsilon, (1.6, 3.0))
        decays = problem.decays(problem.deadline).tolist()
        ratios, copies = np.exp(-np.array(decays)), np.ones(len(decays))
        while (late := math.fsum(-np.log1p(-(ratios**copies)))) > problem.budget:
            following = -np.log1p(-(ratios ** (copies + 1)))
            copies[np.argmax(-np.log1p(-(ratios**copies)) - following)] += 1
        found, used = add_copies_greedily(problem, DeadlineConstraint.EXACT, 10_000)
        assert used == copies.sum()
        assert found == pytest.approx(late, rel=1e-9)
