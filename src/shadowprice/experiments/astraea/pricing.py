"""Figs. 9 to 12: decision time, a wrong theta, and admission."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import polars as pl

from shadowprice.experiments.astraea.efficiency import (
    HORIZON,
    JOBS,
    SERVERS,
    USERS,
    trials_of,
)
from shadowprice.experiments.astraea.presets import PRESETS, STATED
from shadowprice.experiments.astraea.runs import COLOURS
from shadowprice.experiments.framework import ExperimentSettings, Tables
from shadowprice.experiments.style import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEN = COLOURS["astraea"]


def _times(settings: ExperimentSettings, points: list[tuple[int, int]]) -> pl.DataFrame:
    """Return mean run time and decision time per job, by preset and (jobs, servers)."""
    warm = STATED.cluster(USERS, 20, 64)
    STATED.run("astraea", warm, STATED.draw(warm, 20, settings.seed)[0])  # compiles
    rows = []
    cases = list(product(PRESETS, points))
    for done, (preset, (count, servers)) in enumerate(cases):
        settings.progress(done, len(cases), f"{preset}: {count} jobs, {servers} servers")
        setting = PRESETS[preset]
        cluster = setting.cluster(USERS, servers, HORIZON)
        for trial in range(trials_of(settings)):
            jobs, source = setting.draw(cluster, count, settings.seed + trial)
            outcome = setting.run("astraea", cluster, jobs)
            rows.append(
                {
                    "preset": preset,
                    "jobs": count,
                    "servers": servers,
                    "seconds": outcome.seconds,
                    "deciding_ms_per_job": 1000 * outcome.deciding / count,
                    "arrivals": source,
                }
            )
    keys = ("preset", "jobs", "servers", "arrivals")
    return pl.DataFrame(rows).group_by(keys, maintain_order=True).mean()


def measure_fig9(settings: ExperimentSettings) -> Tables:
    """Return running time by number of jobs."""
    counts = (100, 300, 500) if settings.quick else (100, 200, 300, 400, 500, 1000)
    return {"time": _times(settings, [(count, SERVERS) for count in counts])}


def measure_fig10(settings: ExperimentSettings) -> Tables:
    """Return running time by number of servers."""
    sizes = (60, 140) if settings.quick else (60, 80, 100, 120, 140, 300)
    return {"time": _times(settings, [(JOBS, size) for size in sizes])}


def _draw_times(tables: Tables, figure: Figure, axis: str) -> None:
    left, right = figure.subplots(1, 2)
    for preset, setting in PRESETS.items():
        table = tables["time"].filter(pl.col("preset") == preset).sort(axis)
        look = {"color": setting.colour, "label": setting.title}
        left.plot(table[axis], table["seconds"], "o-", **look)
        right.plot(table[axis], table["deciding_ms_per_job"], "o-", **look)
    left.set(xlabel=axis, ylabel="seconds", title="Simulating the whole workload", ylim=(0, None))
    right.set(xlabel=axis, ylabel="milliseconds", title="Deciding, per job", ylim=(0, None))
    left.legend()


def draw_fig9(tables: Tables, figure: Figure) -> None:
    """Draw time over jobs."""
    _draw_times(tables, figure, "jobs")


def draw_fig10(tables: Tables, figure: Figure) -> None:
    """Draw time over servers."""
    _draw_times(tables, figure, "servers")


def _run_with_scaled_theta(preset: str, count: int, scale: float, seed: int) -> tuple[Any, ...]:
    setting = PRESETS[preset]
    cluster = setting.cluster(USERS, SERVERS, HORIZON)
    jobs, source = setting.draw(cluster, count, seed)
    outcome = setting.run("astraea", cluster, jobs, theta_scale=scale)
    return (preset, count, scale, outcome.revenue, outcome.ideal, source)


def measure_fig11(settings: ExperimentSettings) -> Tables:
    """Return revenue with theta at percentages of its definition, for loads and presets."""
    scales = (
        (0.2, 0.8, 1.0, 2.0) if settings.quick else (0.05, 0.2, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 5.0)
    )
    counts = (100, 500) if settings.quick else (100, 300, 500)
    trials = [settings.seed + trial for trial in range(trials_of(settings))]
    rows = settings.each(
        _run_with_scaled_theta,
        product(PRESETS, counts, scales, trials),
        lambda preset, count, scale, _seed: f"{preset}: {count} jobs, {scale:.0%}",
    )
    schema = ["preset", "jobs", "scale", "revenue", "ideal_revenue", "arrivals"]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    keys = ("preset", "jobs", "scale", "arrivals")
    means = frame.group_by(keys, maintain_order=True).mean()
    exact = means.filter(pl.col("scale") == 1.0).select(
        "preset", "jobs", base="revenue", ideal_base="ideal_revenue"
    )
    table = means.join(exact, on=["preset", "jobs"], maintain_order="left").with_columns(
        (pl.col("revenue") / pl.col("base")).alias("relative"),
        (pl.col("ideal_revenue") / pl.col("ideal_base")).alias("ideal_relative"),
    )
    return {"theta": table.drop("base", "ideal_base")}


def draw_fig11(tables: Tables, figure: Figure) -> None:
    """Draw revenue relative to the exact theta's, over the percentage."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (preset, setting) in zip(panels, PRESETS.items(), strict=True):
        table = tables["theta"].filter(pl.col("preset") == preset)
        for index, count in enumerate(sorted(table["jobs"].unique().to_list())):
            curve = table.filter(pl.col("jobs") == count).sort("scale")
            label = f"{count} jobs"
            axes.plot(curve["scale"], curve["relative"], "o-", color=PALETTE[index], label=label)
            axes.plot(curve["scale"], curve["ideal_relative"], ":", color=PALETTE[index])
        axes.axvline(1.0, color="#6B6B6B", lw=1, ls="--")
        axes.set_xscale("log")
        ticks = [0.05, 0.2, 0.5, 1.0, 2.0, 5.0]
        axes.set_xticks(ticks, [f"{tick:.0%}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel="theta in use, of the setting's", title=setting.title)
    panels[0].set_ylabel("revenue over that at 100 %")
    panels[0].legend(title="dotted: ideal clock")


def measure_fig12(settings: ExperimentSettings) -> Tables:
    """Return ideal revenue and price of every admitted job."""
    rows = []
    for preset, setting in PRESETS.items():
        cluster = setting.cluster(USERS, SERVERS, HORIZON)
        jobs, source = setting.draw(cluster, JOBS, settings.seed)
        outcome = setting.run("astraea", cluster, jobs)
        for name, commit in outcome.commits.items():
            loan = name in outcome.borrowers
            rows.append(
                (
                    preset,
                    name,
                    loan,
                    commit.utility,
                    commit.cost,
                    outcome.earned.get(name, 0.0),
                    source,
                )
            )
    schema = ["preset", "job", "borrowed", "ideal_revenue", "cost", "revenue", "arrivals"]
    return {"jobs": pl.DataFrame(rows, schema=schema, orient="row")}


def draw_fig12(tables: Tables, figure: Figure) -> None:
    """Draw a dot per job: price over ideal revenue, below the diagonal."""
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (preset, setting) in zip(panels, PRESETS.items(), strict=True):
        table = tables["jobs"].filter(pl.col("preset") == preset)
        for loan, colour, label in (
            (False, GREEN, "own share: not paid"),
            (True, PALETTE[1], "borrowed: paid"),
        ):
            dots = table.filter(pl.col("borrowed") == loan)
            axes.plot(
                dots["ideal_revenue"],
                dots["cost"],
                ".",
                color=colour,
                label=f"{label} ({len(dots)})",
                alpha=0.7,
            )
        axes.plot([0, 1000], [0, 1000], color="black", lw=1, ls="--")
        axes.set(xlabel="ideal revenue", title=setting.title, xlim=(0, 1000), ylim=(-15, 1000))
        axes.legend(loc="upper left")
    panels[0].set_ylabel("price of its places")
