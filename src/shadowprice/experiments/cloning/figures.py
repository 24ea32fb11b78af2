"""Cost and benefit of copies under light and heavy load, and on real processes.

Under light load, a solver chooses the number of copies for a deadline. Under heavy load, a rule
chooses what a free machine starts. Numbers in parentheses are equations of the paper on CSD.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.cloning.api import (
    CloningProblem,
    CopyPlanner,
    DeadlineConstraint,
    Distribution,
    LogNormal,
    Pareto,
    SolveMethod,
    TaskGroup,
    solve,
)
from shadowprice.cloning.montecarlo import clopper_pearson
from shadowprice.cloning.waves import (
    WaveJobs,
    WaveRule,
    WaveRuleKind,
    jobs_from_records,
    poisson_jobs,
    simulate_waves,
)
from shadowprice.core.errors import Fault, InputError, MissingExtraError
from shadowprice.experiments.figures import PALETTE, draw_curves, set_ticks
from shadowprice.experiments.framework import ExperimentSettings, Figure, Tables
from shadowprice.traces.locate import ENVIRONMENT, traces_folder

# ------------------------------------------------------------------ light load


MEAN: Final = 10.0  # mean duration of a task in seconds, if means are equal
TASKS: Final = 50
LIGHT_MACHINES: Final = 2000
ORDER: Final = 1.8  # tail order of the Pareto distribution
EPSILONS: Final = (0.01, 0.05, 0.2)  # limits of the miss probability


def _problem(order: float, deadline: float, epsilon: float, tasks: int = TASKS) -> CloningProblem:
    group = TaskGroup(tasks, Pareto.of_mean(order, MEAN))
    return CloningProblem([group], LIGHT_MACHINES, deadline, epsilon)


def measure_deadline(settings: ExperimentSettings) -> Tables:
    """Solve for deadlines from 0.6 to 30 mean durations, and skip infeasible ones."""
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
    table = tables["deadline"].sort("epsilon")
    for panel, column in ((left, "copies"), (right, "cost")):
        curves: dict[str, Any] = {"x": "deadline_in_means", "by": "epsilon"}
        text = "missed with {:g}"
        draw_curves(panel, table, y=f"continuous_{column}", text=text, **curves)
        draw_curves(panel, table, y=f"whole_{column}", text="_", ls=":", lw=1.4, **curves)
    left.set(title="Copies of a task", ylabel="copies", yscale="log")
    right.set(title="Machine time, against one copy each", ylabel="relative machine time")
    set_ticks(left.yaxis, 1, 2, 5, 10, 20)
    right.axhline(1.0, color=PALETTE[6], linewidth=1.0)
    _means_axis(left, "deadline, in mean durations", (1, 2, 5, 10, 20))
    _means_axis(right, "deadline, in mean durations", (1, 2, 5, 10, 20))
    left.plot([], [], color=PALETTE[6], linestyle=":", label="integer copies")
    left.legend()


def _means_axis(axes: Any, label: str, ticks: tuple[float, ...]) -> None:
    axes.set(xscale="log", xlabel=label)
    set_ticks(axes.xaxis, *ticks)


def measure_tail(settings: ExperimentSettings) -> Tables:
    """Solve for tail orders from 1.1 to 4, with two deadlines and without."""
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
        rows = tables["tail"].filter(deadline=name)
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
    """Compare optima under (7) and (6): continuous for equal tasks, integer for random jobs."""
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
        settings.progress(index, draws, "random jobs, integer copies")
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
    """Draw the excess over epsilon, and how often integer copies under (7) violate (6)."""
    left, right = figure.subplots(1, 2)
    table = tables["continuous"].sort("tasks")
    draw_curves(left, table, "epsilon", "excess", "tasks", text="{} tasks", scale=100)
    left.set(
        title="How much above epsilon the optimum under (7) misses",
        ylabel="% of epsilon", xscale="log", yscale="log", xlabel="epsilon",
    )  # fmt: skip
    set_ticks(left.xaxis, 0.01, 0.05, 0.2, 0.5)
    set_ticks(left.yaxis, 0.001, 0.01, 0.1, 1)
    left.legend(loc="lower right")
    counts = tables["whole"].group_by("epsilon").agg(
        pl.col("misses_too_often").mean(), pl.len().alias("jobs")
    ).sort("epsilon")  # fmt: skip
    positions = np.arange(len(counts))
    bars = right.bar(positions, 100 * counts["misses_too_often"].to_numpy(), color=PALETTE[0])
    right.bar_label(bars, fmt="%.1f %%", padding=2)
    right.set_xticks(positions, [f"{epsilon:g}" for epsilon in counts["epsilon"]])
    right.grid(visible=False, axis="x")
    right.set(
        title="Random jobs whose integer copies under (7) break (6)",
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
            # With an early deadline, every task needs copies, so (1d) stays inactive.
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
        "whole": "Rounded up, over the best integer copies",
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


# ------------------------------------------------------------------ heavy load


MACHINES: Final = 100
LOADS: Final = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)
RULES: Final = {
    "none": WaveRule(WaveRuleKind.NONE),
    "full": WaveRule(WaveRuleKind.FULL),
    "detect": WaveRule(WaveRuleKind.DETECT),
    "saving-free": WaveRule(WaveRuleKind.SAVING, machine_price=0.0),
    "saving": WaveRule(WaveRuleKind.SAVING),
}
LOOKS: Final[dict[str, dict[str, Any]]] = {
    "none": {"label": "no copies", "color": PALETTE[6], "marker": "s", "ms": 8},
    "full": {"label": "every task in two copies", "color": PALETTE[1], "marker": "^"},
    "detect": {"label": "copies of late tasks", "color": PALETTE[4], "marker": "D"},
    "saving-free": {
        "label": "by saving, machine time free", "color": PALETTE[5], "marker": "v", "ls": "--",
    },
    "saving": {
        "label": "by saving, machine time at 0.1", "color": PALETTE[0], "marker": "o", "ms": 4,
    },
}  # fmt: skip
"""Line style of each rule."""
DISTRIBUTIONS: Final[dict[str, Distribution]] = {
    "Pareto, order 1.8": Pareto.of_mean(1.8, 10.0),
    "log-normal, sigma 0.8": LogNormal.of_mean(0.8, 10.0),
}
TRACES: Final = {"job 1": "job_1_norm.csv", "job 2": "job_2_norm.csv"}
FOLDER: Final = "alibaba_gpu_v2020/mini-batch-time"
Make = Callable[[float, int], WaveJobs]


def measure_load(settings: ExperimentSettings) -> Tables:
    """Run generated jobs of 30 tasks of 10 s on average, at several loads."""

    def maker(distribution: Distribution) -> Make:
        return lambda load, seed: poisson_jobs(
            [TaskGroup(30, distribution)],
            machines=MACHINES, load=load, jobs=150 if settings.quick else 800, seed=seed,
            spread=2.0, max_copies=2,
        )  # fmt: skip

    makers = {name: maker(distribution) for name, distribution in DISTRIBUTIONS.items()}
    return {"load": _over_load(settings, makers)}


def measure_workers(settings: ExperimentSettings) -> Tables:
    """Run the iterations of two recorded training jobs, each iteration as a job with ten tasks.

    Rules know the durations in the first half of a recording. Jobs are iterations of the second.
    """

    def maker(name: str) -> Make:
        times = worker_times(name)
        half = len(times) // 2
        return lambda load, seed: jobs_from_records(
            times[half:], times[:half],
            machines=MACHINES, load=load, jobs=300 if settings.quick else 3000, seed=seed,
            max_copies=2,
        )  # fmt: skip

    return {"load": _over_load(settings, {key: maker(file) for key, file in TRACES.items()})}


def worker_times(file: str) -> NDArray[np.float64]:
    """Return recorded times, shape (iterations, workers), of iterations with every worker."""
    path = traces_folder() / FOLDER / file
    if not path.exists():
        hint = (
            f"get mini-batch-time of the Alibaba GPU cluster trace 2020 and let {ENVIRONMENT} "
            "name the folder of traces"
        )
        raise InputError(Fault(str(path), "does not exist", hint))
    table = (
        pl.read_csv(path)
        .unique(["time", "worker"], keep="first", maintain_order=True)  # a few are logged twice
        .pivot("worker", index="time", values="batch_time_norm")
        .drop_nulls()
    )
    return table.sort("time").drop("time").to_numpy().astype(np.float64)


def _over_load(settings: ExperimentSettings, makers: dict[str, Make]) -> pl.DataFrame:
    loads = LOADS[1::3] if settings.quick else LOADS
    cases = [(name, load) for name in makers for load in loads]
    rows: list[dict[str, Any]] = []
    for index, (name, load) in enumerate(cases):
        settings.progress(index, len(cases), f"{name}, load {load:g}")
        jobs = makers[name](load, settings.seed)
        for rule, parameters in RULES.items():
            result = simulate_waves(jobs, MACHINES, parameters)
            rows.append(
                {
                    "jobs": name,
                    "load": load,
                    "rule": rule,
                    "mean_flowtime": result.mean_flowtime,
                    "p99_flowtime": float(np.quantile(result.flowtime, 0.99)),
                    "machine_time": result.machine_time / float(jobs.durations[:, 0].sum()),
                    "copies": float(result.copies.mean()),
                    "wasted": result.wasted / result.machine_time,
                }
            )
    return pl.DataFrame(rows)


def draw_load(tables: Tables, figure: Figure) -> None:
    """Draw flowtime and machine time over load, a row of panels per distribution."""
    _draw(tables["load"], figure, "seconds")


def draw_workers(tables: Tables, figure: Figure) -> None:
    """Draw flowtime and machine time over load, a row of panels per recorded job."""
    _draw(tables["load"], figure, "normalised time")


def _draw(table: pl.DataFrame, figure: Figure, unit: str) -> None:
    names = table["jobs"].unique(maintain_order=True).to_list()
    axes = figure.subplots(len(names), 2, squeeze=False, sharex=True)
    for row_number, name in enumerate(names):
        left, right = axes[row_number]
        for rule, style in LOOKS.items():
            rows = table.filter(jobs=name, rule=rule)
            left.plot(rows["load"], rows["mean_flowtime"], **style)
            right.plot(rows["load"], rows["machine_time"], **style)
        left.set(title=f"{name}: mean flowtime", ylabel=unit, yscale="log")
        _plain_ticks(left)
        right.set(title=f"{name}: machine time", ylabel="against one copy each")
        for panel in (left, right):
            panel.axvline(1.0, color=PALETTE[6], linewidth=1.0, linestyle="--")
    for panel in axes[-1]:
        panel.set(xlabel="load (work that arrives in one copy each, over capacity)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


def _plain_ticks(axes: Any) -> None:
    low, high = axes.get_ylim()
    steps = [base * 10.0**power for power in range(-1, 6) for base in (1, 2, 5)]
    set_ticks(axes.yaxis, *(step for step in steps if low <= step <= high))


# ------------------------------------------------------------------ real processes


DISTRIBUTION: Final = Pareto.of_mean(1.8, 0.18)  # of a task's seconds
BAG_TASKS: Final = 8
PROCESSES: Final = 32
DEADLINE: Final = 0.45  # seconds
MISS: Final = 0.05  # limit of the miss probability
LEVEL: Final = 0.99  # confidence level of intervals and bands
PLANS: Final = (("one copy each", 1, PALETTE[6]), ("planned", None, PALETTE[0]))
"""Name, copies of each task (None: as planned) and colour."""


def measure_processes(settings: ExperimentSettings) -> Tables:
    """Run bags of tasks that sleep for Pareto-distributed times, with and without copies."""
    if find_spec("shadowprice.training") is None:
        raise MissingExtraError("shadowprice-training", "train", "running bags on real processes")
    from shadowprice.experiments.cloning.rehearsal import Wait, wait  # noqa: PLC0415  # imports bag
    from shadowprice.training import bag  # noqa: PLC0415  # installed with the extra only

    bags = 30 if settings.quick else 250
    runs: list[dict[str, Any]] = []
    tasks: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    with bag.Workers(wait, PROCESSES) as workers:
        for index, (name, copies, _) in enumerate(PLANS):
            outcomes = []
            for number in range(bags):
                settings.progress(index * bags + number, len(PLANS) * bags, name)
                outcome = workers.run(
                    [Wait(DISTRIBUTION, settings.seed * 1_000_003 + number)] * BAG_TASKS,
                    copies=CopyPlanner(DISTRIBUTION, MISS, copies), deadline=DEADLINE,
                )  # fmt: skip
                outcomes.append(outcome)
                machine_seconds = outcome.machine_seconds
                runs.append(
                    {"plan": name, "seconds": outcome.seconds, "machine_seconds": machine_seconds}
                )
                tasks.extend(
                    {
                        "plan": name,
                        "copies": outcome.plan.copies[task],
                        "seconds": outcome.ends[task],
                        "drawn": outcome.values[task],
                    }
                    for task in range(BAG_TASKS)
                )
            missed = sum(bag_result.missed for bag_result in outcomes)
            low, high = clopper_pearson(missed, bags, LEVEL)
            plan = outcomes[0].plan
            summary.append(
                {
                    "plan": name, "copies": sum(plan.copies), "bags": bags,
                    "predicted_miss": plan.miss_probability, "measured_miss": missed / bags,
                    "low": low, "high": high, "predicted_machine_seconds": plan.machine_seconds,
                    "measured_machine_seconds": float(
                        np.mean([bag_result.machine_seconds for bag_result in outcomes])
                    ),
                }
            )  # fmt: skip
    return {
        "bags": pl.DataFrame(runs), "tasks": pl.DataFrame(tasks), "summary": pl.DataFrame(summary)
    }  # fmt: skip


def predicted_misses(seconds: NDArray[np.float64], copies: list[int]) -> NDArray[np.float64]:
    """Return the probability by (3) that a bag takes longer than each of several times.

    ``copies`` has the number of copies of each task.
    """
    late = DISTRIBUTION.survival(seconds)[:, None] ** np.asarray(copies)
    return np.asarray(1.0 - np.prod(1.0 - late, axis=1))


def band(samples: int) -> float:
    """Return the half width of a confidence band of an empirical tail, at `LEVEL`.

    Uses the inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant, which holds for
    every sample size.
    """
    return float(np.sqrt(np.log(2.0 / (1.0 - LEVEL)) / (2.0 * samples)))


def draw_processes(tables: Tables, figure: Figure) -> None:
    """Draw the shares of bags and of single tasks that take longer than a time."""
    left, right = figure.subplots(1, 2)
    times = np.geomspace(DISTRIBUTION.shortest, 20.0, 400)
    for name, _, colour in PLANS:
        rows = tables["tasks"].filter(plan=name)
        copies = rows["copies"][:BAG_TASKS].to_list()
        bag_seconds = tables["bags"].filter(plan=name)["seconds"].sort().to_numpy()
        _tail(left, bag_seconds, times, predicted_misses(times, copies), colour, name)
        task_seconds = rows["seconds"].sort().to_numpy()
        late = np.mean(DISTRIBUTION.survival(times)[:, None] ** np.asarray(copies), axis=1)
        _tail(right, task_seconds, times, late, colour, name)
    for axes, title in ((left, "Bags of 8 tasks"), (right, "Single tasks")):
        axes.axvline(DEADLINE, color=PALETTE[6], linewidth=1.0, linestyle=":")
        axes.set(title=title, xscale="log", yscale="log", xlabel="seconds", ylim=(2e-3, 1.3))
        set_ticks(axes.xaxis, 0.1, 0.2, 0.45, 1, 2, 5, 10)
        axes.yaxis.minorticks_off()
    left.set_ylabel("share that lasts longer")
    left.plot([], [], color=PALETTE[6], linestyle="--", label="predicted")
    left.legend(loc="lower left")


def _tail(axes: Any, sample: Any, times: Any, predicted: Any, colour: str, name: str) -> None:
    share = 1.0 - np.arange(1, len(sample) + 1) / len(sample)
    width = band(len(sample))
    axes.fill_between(
        times, np.maximum(predicted - width, 1e-4), np.minimum(predicted + width, 1.0),
        color=colour, alpha=0.12, linewidth=0,
    )  # fmt: skip
    axes.plot(times, predicted, color=colour, linestyle="--", linewidth=1.2)
    axes.step(sample, np.maximum(share, 1e-4), where="post", color=colour, label=name)
