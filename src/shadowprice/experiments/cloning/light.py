"""The lightly loaded regime: deadline, epsilon, tail order, (7) and Theorem 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.cloning.api import (
    CloningProblem,
    DeadlineConstraint,
    Pareto,
    SolveMethod,
    TaskGroup,
    solve,
)
from shadowprice.core.errors import InputError
from shadowprice.experiments.style import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

MEAN: Final = 10.0  # mean duration of a task in seconds, if means are equal
TASKS: Final = 50
MACHINES: Final = 2000
ORDER: Final = 1.8
EPSILONS: Final = (0.01, 0.05, 0.2)


def _problem(order: float, deadline: float, epsilon: float, tasks: int = TASKS) -> CloningProblem:
    group = TaskGroup(tasks, Pareto.of_mean(order, MEAN))
    return CloningProblem([group], MACHINES, deadline, epsilon)


def measure_deadline(settings: ExperimentSettings) -> Tables:
    """Solve for deadlines from 0.6 to 30 means, without infeasible ones."""
    rows: list[dict[str, Any]] = []
    deadlines = np.geomspace(0.6, 30.0, 15 if settings.quick else 60)
    for index, ratio in enumerate(deadlines):
        settings.progress(index, len(deadlines), f"deadline of {ratio:.2g} means")
        for epsilon in EPSILONS:
            try:
                solution = solve(_problem(ORDER, MEAN * float(ratio), epsilon))
            except InputError:
                continue
            rows.append(
                {
                    "deadline_in_means": float(ratio),
                    "epsilon": epsilon,
                    "continuous_copies": float(solution.continuous.mean()),
                    "whole_copies": float(solution.copies.mean()),
                    "continuous_cost": solution.continuous_cost / (TASKS * MEAN),
                    "whole_cost": solution.expected_cost / (TASKS * MEAN),
                    "miss_probability": solution.miss_probability,
                }
            )
    return {"deadline": pl.DataFrame(rows)}


def draw_deadline(tables: Tables, figure: Figure) -> None:
    """Draw copies and machine time over the deadline, a line for each epsilon."""
    left, right = figure.subplots(1, 2)
    for colour, epsilon in zip(PALETTE, EPSILONS, strict=False):
        rows = tables["deadline"].filter(pl.col("epsilon") == epsilon)
        x = rows["deadline_in_means"]
        label = f"missed with {epsilon:g}"
        left.plot(x, rows["continuous_copies"], color=colour, label=label)
        left.plot(x, rows["whole_copies"], color=colour, linestyle=":", linewidth=1.4)
        right.plot(x, rows["continuous_cost"], color=colour, label=label)
        right.plot(x, rows["whole_cost"], color=colour, linestyle=":", linewidth=1.4)
    left.set(title="Copies of a task", ylabel="copies", yscale="log")
    right.set(title="Machine time, against one copy each", ylabel="relative machine time")
    left.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    left.minorticks_off()
    right.axhline(1.0, color=PALETTE[6], linewidth=1.0)
    _means_axis(left, "deadline, in mean durations", (1, 2, 5, 10, 20))
    _means_axis(right, "deadline, in mean durations", (1, 2, 5, 10, 20))
    left.plot([], [], color=PALETTE[6], linestyle=":", label="whole copies")
    left.legend()


def _means_axis(axes: Any, label: str, ticks: tuple[float, ...]) -> None:
    axes.set(xscale="log", xlabel=label)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def measure_tail(settings: ExperimentSettings) -> Tables:
    """Solve for tail orders from almost 1 to 4, and without a deadline."""
    rows: list[dict[str, Any]] = []
    orders = np.linspace(1.1, 4.0, 12 if settings.quick else 59)
    for index, order in enumerate(orders):
        settings.progress(index, len(orders), f"tail order {order:.2f}")
        for name, ratio in (("3 means", 3.0), ("8 means", 8.0), ("no deadline", 1e6)):
            solution = solve(_problem(float(order), MEAN * ratio, 0.05))
            rows.append(
                {
                    "order": float(order),
                    "deadline": name,
                    "continuous_copies": float(solution.continuous.mean()),
                    "continuous_cost": solution.continuous_cost / (TASKS * MEAN),
                    "whole_cost": solution.expected_cost / (TASKS * MEAN),
                }
            )
    return {"tail": pl.DataFrame(rows)}


def draw_tail(tables: Tables, figure: Figure) -> None:
    """Draw copies and machine time over the tail order, a line for each deadline."""
    left, right = figure.subplots(1, 2)
    for colour, name in zip(PALETTE, ("3 means", "8 means", "no deadline"), strict=False):
        rows = tables["tail"].filter(pl.col("deadline") == name)
        label = name if name == "no deadline" else f"deadline {name}"
        left.plot(rows["order"], rows["continuous_copies"], color=colour, label=label)
        right.plot(rows["order"], rows["continuous_cost"], color=colour, label=label)
    for axes in (left, right):
        axes.axvline(2.0, color=PALETTE[6], linewidth=1.0, linestyle="--")
        axes.set(xlabel="tail order (heavier to the left)")
    left.set(title="Copies of a task", ylabel="copies", ylim=(0.9, None))
    right.axhline(1.0, color=PALETTE[6], linewidth=1.0)
    right.set(title="Machine time, against one copy each", ylabel="relative machine time")
    right.text(2.06, 0.45, "left of order 2\na copy pays for itself", color=PALETTE[6])
    left.legend()


def measure_relaxed(settings: ExperimentSettings) -> Tables:
    """Compare optima under (7) with (6), for equal tasks and random jobs with whole copies."""
    epsilons = np.geomspace(0.005, 0.5, 10 if settings.quick else 40)
    rows: list[dict[str, Any]] = []
    for epsilon in epsilons:
        for tasks in (2, 10, 50, 500):
            solution = solve(
                _problem(2.5, 3.0 * MEAN, float(epsilon), tasks),
                constraint=DeadlineConstraint.RELAXED,
            )
            if solution.deadline_price > 0:
                excess = solution.continuous_miss / float(epsilon) - 1.0
                rows.append({"epsilon": float(epsilon), "tasks": tasks, "excess": excess})
    rng = np.random.default_rng(settings.seed)
    draws = 100 if settings.quick else 1500
    random_rows: list[dict[str, Any]] = []
    for index in range(draws):
        settings.progress(index, draws, "random jobs, whole copies")
        tasks = int(rng.choice([2, 5, 10, 20]))
        orders, means = rng.uniform(2.0, 3.5, tasks), rng.uniform(5.0, 15.0, tasks)
        groups = [
            TaskGroup(1, Pareto.of_mean(float(o), float(m)))
            for o, m in zip(orders, means, strict=True)
        ]
        epsilon = float(rng.choice([0.01, 0.05, 0.1, 0.2, 0.4]))
        problem = CloningProblem(groups, 40 * tasks, float(rng.uniform(25.0, 60.0)), epsilon)
        relaxed = solve(problem, constraint=DeadlineConstraint.RELAXED)
        random_rows.append(
            {
                "epsilon": epsilon,
                "tasks": tasks,
                "misses_too_often": relaxed.miss_probability > epsilon * (1 + 1e-12),
                "excess": relaxed.miss_probability / epsilon - 1.0,
                "saved": 1.0 - relaxed.expected_cost / solve(problem).expected_cost,
            }
        )
    return {"continuous": pl.DataFrame(rows), "whole": pl.DataFrame(random_rows)}


def draw_relaxed(tables: Tables, figure: Figure) -> None:
    """Draw the excess over epsilon, and how often whole copies under (7) violate (6)."""
    left, right = figure.subplots(1, 2)
    for colour, tasks in zip(PALETTE, (2, 10, 50, 500), strict=False):
        rows = tables["continuous"].filter(pl.col("tasks") == tasks)
        left.plot(rows["epsilon"], 100 * rows["excess"], color=colour, label=f"{tasks} tasks")
    left.set(
        title="How much above epsilon the optimum under (7) misses",
        ylabel="% of epsilon", xscale="log", yscale="log", xlabel="epsilon",
    )  # fmt: skip
    left.set_xticks([0.01, 0.05, 0.2, 0.5], ["0.01", "0.05", "0.2", "0.5"])
    left.set_yticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
    left.minorticks_off()
    left.legend(loc="lower right")
    counts = tables["whole"].group_by("epsilon").agg(
        pl.col("misses_too_often").mean(), pl.len().alias("jobs")
    ).sort("epsilon")  # fmt: skip
    places = np.arange(len(counts))
    bars = right.bar(places, 100 * counts["misses_too_often"].to_numpy(), color=PALETTE[0])
    right.bar_label(bars, fmt="%.1f %%", padding=2)
    right.set_xticks(places, [f"{epsilon:g}" for epsilon in counts["epsilon"]])
    right.grid(visible=False, axis="x")
    right.set(
        title="Random jobs whose whole copies under (7) break (6)",
        ylabel="% of jobs", xlabel="epsilon",
    )  # fmt: skip


def measure_theorem(settings: ExperimentSettings) -> Tables:
    """Compare Theorem 1 with the optimum, for increasing spreads of means."""
    spreads = np.geomspace(1.0, 20.0, 6 if settings.quick else 16)
    draws = 5 if settings.quick else 40
    rows: list[dict[str, Any]] = []
    for index, spread in enumerate(spreads):
        settings.progress(index, len(spreads), f"means spread {spread:.2g}-fold")
        for seed in range(draws):
            rng = np.random.default_rng(1000 * settings.seed + seed)
            means = MEAN * float(spread) ** rng.uniform(-0.5, 0.5, 20)
            groups = [TaskGroup(1, Pareto.of_mean(2.0, float(mean))) for mean in means]
            # An early deadline binds for every task, so that (1d) stays inactive.
            problem = CloningProblem(groups, 400, 1.05 * float(means.max()), 0.05)
            closed_form = solve(problem, SolveMethod.CLOSED_FORM)
            best = solve(problem, constraint=DeadlineConstraint.RELAXED)
            rows.append(
                {
                    "spread": float(spread),
                    "seed": seed,
                    "continuous": closed_form.continuous_cost / best.continuous_cost - 1.0,
                    "whole": closed_form.expected_cost / best.expected_cost - 1.0,
                }
            )
    return {"theorem": pl.DataFrame(rows)}


def draw_theorem(tables: Tables, figure: Figure) -> None:
    """Draw the extra cost of Theorem 1: median and 10 % to 90 % of the draws."""
    axes = figure.subplots(1, 2)
    titles = {
        "continuous": "Theorem 1 before rounding, over the optimum",
        "whole": "Rounded up, over the best whole copies",
    }
    for index, (name, title) in enumerate(titles.items()):
        rows = tables["theorem"].group_by("spread").agg(
            pl.col(name).median().alias("median"),
            pl.col(name).quantile(0.1).alias("low"),
            pl.col(name).quantile(0.9).alias("high"),
        ).sort("spread")  # fmt: skip
        low, high = (100 * rows[column].to_numpy() for column in ("low", "high"))
        axes[index].fill_between(
            rows["spread"], low, high, color=PALETTE[index], alpha=0.2, linewidth=0,
            label="10 % to 90 % of draws",
        )  # fmt: skip
        axes[index].plot(rows["spread"], 100 * rows["median"], color=PALETTE[index], label="median")
        axes[index].set(title=title, ylabel="extra machine time, %", ylim=(0, None))
        _means_axis(axes[index], "longest over shortest mean (about)", (1, 2, 5, 10, 20))
        axes[index].legend(loc="upper left" if index == 0 else "best")
