"""Bags on real processes: measured durations against the distribution of the plan."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.cloning.api import CopyPlanner, Pareto
from shadowprice.cloning.montecarlo import clopper_pearson
from shadowprice.core.errors import MissingExtraError
from shadowprice.experiments.style import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from shadowprice.experiments.framework import ExperimentSettings, Tables

DISTRIBUTION: Final = Pareto.of_mean(1.8, 0.18)
TASKS: Final = 8
PROCESSES: Final = 32
DEADLINE: Final = 0.45
MISS: Final = 0.05
LEVEL: Final = 0.99  # confidence level of intervals and bands
PLANS: Final = (("one copy each", 1, PALETTE[6]), ("planned", None, PALETTE[0]))


def measure_processes(settings: ExperimentSettings) -> Tables:
    """Run bags of tasks that sleep for Pareto-distributed times, with and without copies."""
    if find_spec("shadowprice.training") is None:
        raise MissingExtraError("shadowprice-training", "train", "running bags on real processes")
    from shadowprice.experiments.rehearsal import Wait, wait  # noqa: PLC0415  # needs it too
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
                    [Wait(DISTRIBUTION, settings.seed * 1_000_003 + number)] * TASKS,
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
                    for task in range(TASKS)
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
    """Return the probability, by (3), that a bag takes longer than each of some times.

    ``copies`` has the copies of each task of the bag.
    """
    late = DISTRIBUTION.survival(seconds)[:, None] ** np.asarray(copies)
    return np.asarray(1.0 - np.prod(1.0 - late, axis=1))


def band(samples: int) -> float:
    """Return the half width of a confidence band of an empirical tail, at `LEVEL`.

    By the inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant, which holds for
    every sample size.
    """
    return float(np.sqrt(np.log(2.0 / (1.0 - LEVEL)) / (2.0 * samples)))


def draw_processes(tables: Tables, figure: Figure) -> None:
    """Draw how often bags, and single tasks, take longer than a time."""
    left, right = figure.subplots(1, 2)
    times = np.geomspace(DISTRIBUTION.shortest, 20.0, 400)
    for name, _, colour in PLANS:
        rows = tables["tasks"].filter(pl.col("plan") == name)
        copies = rows["copies"][:TASKS].to_list()
        bag_seconds = tables["bags"].filter(pl.col("plan") == name)["seconds"].sort().to_numpy()
        _tail(left, bag_seconds, times, predicted_misses(times, copies), colour, name)
        task_seconds = rows["seconds"].sort().to_numpy()
        late = np.mean(DISTRIBUTION.survival(times)[:, None] ** np.asarray(copies), axis=1)
        _tail(right, task_seconds, times, late, colour, name)
    for axes, title in ((left, "Bags of 8 tasks"), (right, "Single tasks")):
        axes.axvline(DEADLINE, color=PALETTE[6], linewidth=1.0, linestyle=":")
        axes.set(title=title, xscale="log", yscale="log", xlabel="seconds", ylim=(2e-3, 1.3))
        axes.set_xticks([0.1, 0.2, 0.45, 1, 2, 5, 10], ["0.1", "0.2", "0.45", "1", "2", "5", "10"])
        axes.minorticks_off()
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
