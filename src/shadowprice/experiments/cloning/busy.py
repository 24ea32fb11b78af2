"""The heavily loaded regime: rules for the next task of a free machine, over load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.cloning.api import Distribution, LogNormal, Pareto, TaskGroup
from shadowprice.cloning.waves import (
    WaveJobs,
    WaveRule,
    WaveRuleKind,
    jobs_from_records,
    poisson_jobs,
    simulate_waves,
)
from shadowprice.core.errors import Fault, InputError
from shadowprice.experiments.style import PALETTE
from shadowprice.traces.locate import ENVIRONMENT, traces_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from shadowprice.experiments.framework import ExperimentSettings, Tables

MACHINES: Final = 100
LOADS: Final = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)
LOOKS: Final = (
    (
        "none",
        WaveRule(WaveRuleKind.NONE),
        "no copies",
        {"color": PALETTE[6], "marker": "s", "ms": 8},
    ),
    (
        "full",
        WaveRule(WaveRuleKind.FULL),
        "every task in two copies",
        {"color": PALETTE[1], "marker": "^"},
    ),
    (
        "detect",
        WaveRule(WaveRuleKind.DETECT),
        "copies of late tasks",
        {"color": PALETTE[4], "marker": "D"},
    ),
    (
        "saving-free",
        WaveRule(WaveRuleKind.SAVING, machine_price=0.0),
        "by saving, idle machines free",
        {"color": PALETTE[5], "marker": "v", "ls": "--"},
    ),
    (
        "saving",
        WaveRule(WaveRuleKind.SAVING),
        "by saving, machine second 0.1 s",
        {"color": PALETTE[0], "marker": "o", "ms": 4},
    ),
)
"""Rules compared: name, parameters, label, and line style."""
DISTRIBUTIONS: Final[dict[str, Distribution]] = {
    "Pareto, order 1.8": Pareto.of_mean(1.8, 10.0),
    "log-normal, sigma 0.8": LogNormal.of_mean(0.8, 10.0),
}
TRACES: Final = {"job 1": "job_1_norm.csv", "job 2": "job_2_norm.csv"}
FOLDER: Final = "alibaba_gpu_v2020/mini-batch-time"

Make = Callable[[float, int], WaveJobs]


def measure_load(settings: ExperimentSettings) -> Tables:
    """Run generated jobs of 30 tasks of 10 s on average, with sizes spread fourfold."""

    def maker(distribution: Distribution) -> Make:
        return lambda load, seed: poisson_jobs(
            [TaskGroup(30, distribution)],
            machines=MACHINES, load=load, jobs=150 if settings.quick else 800, seed=seed,
            spread=2.0, max_copies=2,
        )  # fmt: skip

    return {
        "load": _over_load(
            settings, {name: maker(distribution) for name, distribution in DISTRIBUTIONS.items()}
        )
    }


def measure_workers(settings: ExperimentSettings) -> Tables:
    """Run iterations of two recorded jobs as jobs of ten tasks.

    Rules know the first half of a recording. Jobs consist of iterations of the second half.
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
    """Return recorded times, shape (iterations, workers), of iterations with every worker.

    Raises `InputError` if the recording is missing.
    """
    path = traces_folder() / FOLDER / file
    if not path.exists():
        raise InputError(
            Fault(
                str(path),
                "unknown recording",
                f"get mini-batch-time of the Alibaba GPU cluster trace 2020 and let {ENVIRONMENT} "
                "name the folder of traces",
            )
        )
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
        for rule, parameters, _, _ in LOOKS:
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
        for rule, _, label, looks in LOOKS:
            rows = table.filter((pl.col("jobs") == name) & (pl.col("rule") == rule))
            style: dict[str, Any] = {"label": label, **looks}
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
    ticks = [step for step in steps if low <= step <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
