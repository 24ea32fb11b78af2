"""Times of solving and simulating cloning problems (CSD), compared with slower methods.

Run ``python benchmarks/bench_cloning.py``. Times are medians after a warm-up. Building the problem
(distributions to arrays) has its own line.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize

from shadowprice.cloning.api import (
    CloningProblem,
    DeadlineConstraint,
    HyperExponential,
    LogNormal,
    Pareto,
    SamplingMethod,
    SolveMethod,
    TaskGroup,
    Weibull,
    simulate,
    solve,
)
from shadowprice.cloning.problem import check_feasible
from shadowprice.cloning.solver import (
    _algorithm_1,
    _continuous,
    build_program,
    check_convexity,
    expected_cost,
)
from shadowprice.kernels.cloning.curves import Program


def different_tasks(tasks: int, machines: int, deadline: float, seed: int = 0) -> CloningProblem:
    rng = np.random.default_rng(seed)
    orders, means = rng.uniform(1.2, 3.0, tasks), rng.uniform(5.0, 20.0, tasks)
    groups = [
        TaskGroup(1, Pareto.of_mean(float(o), float(m))) for o, m in zip(orders, means, strict=True)
    ]
    return CloningProblem(groups, machines, deadline, 0.05)


def grouped(tasks: int) -> CloningProblem:
    each = tasks // 5
    distributions = [
        Pareto.of_mean(1.5, 10.0), Weibull(0.6, 10.0, 2.0), LogNormal.of_mean(1.0, 12.0),
        HyperExponential((0.9, 0.1), (5.0, 40.0), 1.0), Pareto.of_mean(2.5, 20.0),
    ]  # fmt: skip
    return CloningProblem(
        [TaskGroup(each, distribution) for distribution in distributions], 50 * tasks, 100.0, 0.05
    )


def scaled_log_normal(tasks: int) -> CloningProblem:
    rng = np.random.default_rng(1)
    distributions = [LogNormal.of_mean(1.0, float(mean)) for mean in rng.uniform(5.0, 20.0, tasks)]
    return CloningProblem(
        [TaskGroup(1, distribution) for distribution in distributions], 50 * tasks, 200.0, 0.05
    )


def median(work: Callable[[], object], repeats: int) -> float:
    work()
    spans = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        spans.append(time.perf_counter() - begin)
    return statistics.median(spans)


def slsqp(problem: CloningProblem) -> float:
    """Solve the continuous problem by scipy, with exact gradients; return the cost."""
    arrays = problem.arrays
    decay = arrays.decay[problem.member]

    def cost(r: np.ndarray) -> float:
        return expected_cost(problem, r) / problem.tasks

    def slope(r: np.ndarray) -> np.ndarray:
        order, low = arrays.shape[problem.member], arrays.scale[problem.member]
        return np.asarray(low * (1.0 - 1.0 / (order * r - 1.0) ** 2)) / problem.tasks

    def slack(r: np.ndarray) -> float:
        return float(1.0 + np.log1p(-np.exp(-decay * r)).sum() / problem.budget)

    def slack_slope(r: np.ndarray) -> np.ndarray:
        h = np.exp(-decay * r)
        return np.asarray(decay * h / (1.0 - h)) / problem.budget

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = minimize(
            cost, np.full(problem.tasks, 4.0), jac=slope, method="SLSQP",
            bounds=[(1.0, None)] * problem.tasks,
            constraints=[{"type": "ineq", "fun": slack, "jac": slack_slope}],
            options={"maxiter": 500, "ftol": 1e-12},
        )  # fmt: skip
    return float(result.fun) * problem.tasks


def plain_simulation(problem: CloningProblem, copies: np.ndarray, trials: int) -> float:
    """Draw every copy with numpy, task by task; return the miss probability."""
    rng = np.random.default_rng(0)
    distribution = [group.duration for group in problem.groups for _ in range(group.count)]
    flow = np.zeros(trials)
    for task, number in enumerate(copies):
        times = distribution[task].inverse_survival(1.0 - rng.random((trials, int(number))))
        flow = np.maximum(flow, times.min(axis=1))
    return float((flow > problem.deadline).mean())


def exact_program(problem: CloningProblem) -> Program:
    return build_program(problem, DeadlineConstraint.EXACT, check_convexity(problem).max_copies)


def main() -> None:
    table = Table("work", "time", "aim", "slower method", "its time", title="CSD")

    def row(work: str, span: float, aim: str = "", method: str = "", other: float = 0.0) -> None:
        table.add_row(
            work, f"{span * 1e3:.2f} ms", aim, method, f"{other * 1e3:.1f} ms" if other else ""
        )

    tiny = different_tasks(3, 30, 60.0)
    _algorithm_1(exact_program(tiny), 10, 1e-6)  # compiles
    big = different_tasks(10_000, 50_000, 100.0)
    tight = different_tasks(10_000, 23_300, 100.0)
    pooled, scaled = grouped(10_000), scaled_log_normal(10_000)
    for name, problem in (
        ("10,000 different Pareto tasks", big),
        ("10,000 different, machines bind", tight),
        ("10,000 tasks in 5 groups of 4 distributions", pooled),
        ("10,000 log-normal tasks of different scale", scaled),
    ):
        assert problem.arrays is not None
        program = exact_program(problem)
        check_feasible(problem, DeadlineConstraint.EXACT)
        exact = median(lambda p=program: _continuous(p), 9)
        begin = time.perf_counter()
        _, _, iterations, error = _algorithm_1(program, 2000, 1e-6)
        paper = time.perf_counter() - begin
        method = f"Algorithm 1, {iterations} iterations, error {error:.0e}"
        row(f"continuous: {name}", exact, "20 ms", method, paper)
        whole = median(lambda p=problem: solve(p), 5)
        proved = solve(problem).proved
        row(f"feasibility + continuous + integer ({'proved' if proved else 'gap'}): {name}", whole)
    row(
        "build: 10,000 different distributions to arrays",
        median(lambda: different_tasks(10_000, 50_000, 100.0).arrays, 3),
    )
    small = different_tasks(200, 2000, 80.0)
    exact = median(lambda: solve(small), 9)
    general = median(lambda: slsqp(small), 1)
    difference = abs(slsqp(small) / solve(small).continuous_cost - 1.0)
    row("200 different tasks", exact, "", f"SLSQP, relative difference {difference:.0e}", general)
    closed = median(lambda: solve(big, SolveMethod.CLOSED_FORM), 5)
    row("Theorem 1, 10,000 tasks", closed)
    run = different_tasks(1000, 10_000, 100.0)
    copies = solve(run).copies
    row(
        f"Monte-Carlo, 10,000 trials x 1,000 tasks ({copies.mean():.2f} copies a task)",
        median(lambda: simulate(run, copies, trials=10_000), 3), "1 s",
        "numpy, task by task", median(lambda: plain_simulation(run, copies, 10_000), 1),
    )  # fmt: skip
    row(
        "the same, only the first copy to finish is drawn",
        median(lambda: simulate(run, copies, trials=10_000, draw=SamplingMethod.WINNER), 3), "1 s",
    )  # fmt: skip
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
