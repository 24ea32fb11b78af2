"""Figs. 7 and 8: revenue fairness ratios of users, and their variance."""

from __future__ import annotations

from itertools import product
from statistics import pvariance
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from shadowprice.experiments.astraea.efficiency import (
    HORIZON,
    JOBS,
    SERVERS,
    USERS,
    trials_of,
)
from shadowprice.experiments.astraea.presets import PRESETS
from shadowprice.experiments.astraea.runs import COLOURS, POLICIES, initial_shares
from shadowprice.experiments.framework import ExperimentSettings, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _ratios(preset: str, trial: int, policy: str, seed: int) -> list[tuple[Any, ...]]:
    setting = PRESETS[preset]
    cluster = setting.cluster(USERS, SERVERS, HORIZON)
    jobs, source = setting.draw(cluster, JOBS, seed + trial)
    ratios = setting.run(policy, cluster, jobs).fairness()
    shares = initial_shares(cluster)
    return [
        (preset, policy, user, trial, ratio, shares[user], source) for user, ratio in ratios.items()
    ]


def _variances(preset: str, count: int, trial: int, policy: str, seed: int) -> tuple[Any, ...]:
    setting = PRESETS[preset]
    cluster = setting.cluster(USERS, SERVERS, HORIZON)
    jobs, source = setting.draw(cluster, count, seed + trial)
    outcome = setting.run(policy, cluster, jobs)
    real = pvariance(outcome.fairness().values())
    ideal = pvariance(outcome.fairness(ideal=True).values())
    return (preset, policy, count, real, ideal, source)


def measure_fig7(settings: ExperimentSettings) -> Tables:
    """Return each user's mean ratio, by policy."""
    results = settings.each(
        _ratios,
        product(PRESETS, range(trials_of(settings)), POLICIES, [settings.seed]),
        lambda preset, trial, policy, _seed: f"{preset}: trial {trial + 1}, {policy}",
    )
    rows = [row for rows in results for row in rows]
    schema = ["preset", "policy", "user", "trial", "ratio", "share", "arrivals"]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    keys = ("preset", "policy", "user", "arrivals")
    means = frame.group_by(keys, maintain_order=True).agg(pl.col("ratio", "share").mean())
    summary = means.group_by("preset", "policy", maintain_order=True).agg(
        (pl.col("ratio") >= 1).sum().alias("at_1_or_more"),
        pl.col("ratio").min().alias("lowest"),
        pl.col("ratio").max().alias("highest"),
        pl.col("ratio").var(ddof=0).alias("variance"),
        (pl.col("ratio") * pl.col("share")).sum().alias("mean_by_share"),
    )
    return {"ratios": means, "summary": summary, "trials": frame}


def draw_fig7(tables: Tables, figure: Figure) -> None:
    """Draw a row per preset and a panel per policy: ratios by user, and the line of fairness."""
    panels = figure.subplots(len(PRESETS), len(POLICIES), sharex=True, sharey=True)
    for axes, (preset, policy) in zip(panels.ravel(), product(PRESETS, POLICIES), strict=True):
        bars = tables["ratios"].filter((pl.col("preset") == preset) & (pl.col("policy") == policy))
        axes.bar(range(len(bars)), bars["ratio"], color=COLOURS[policy])
        axes.axhline(1.0, color="black", lw=1, ls="--")
        fair = int((bars["ratio"] >= 1).sum())
        axes.set_title(f"{policy}: {fair} of {len(bars)} at 1 or more", fontsize=10)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(bars)), bars["user"].to_list(), rotation=60, fontsize=7)
    for row, setting in zip(panels, PRESETS.values(), strict=True):
        row[0].set_ylabel(f"fairness ratio, {setting.title}", fontsize=9)


def measure_fig8(settings: ExperimentSettings) -> Tables:
    """Return the mean variance over users, by policy and number of jobs."""
    counts = (100, 300) if settings.quick else (100, 300, 500)
    rows = settings.each(
        _variances,
        product(PRESETS, counts, range(trials_of(settings)), POLICIES, [settings.seed]),
        lambda preset, count, _trial, policy, _seed: f"{preset}: {count} jobs, {policy}",
    )
    schema = ["preset", "policy", "jobs", "variance", "variance_ideal", "arrivals"]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    keys = ("preset", "policy", "jobs", "arrivals")
    return {"variance": frame.group_by(keys, maintain_order=True).mean()}


def draw_fig8(tables: Tables, figure: Figure) -> None:
    """Draw groups of bars by number of jobs, one panel per preset."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (preset, setting) in zip(panels, PRESETS.items(), strict=True):
        table = tables["variance"].filter(pl.col("preset") == preset)
        counts = sorted(table["jobs"].unique().to_list())
        for index, policy in enumerate(POLICIES):
            heights = table.filter(pl.col("policy") == policy).sort("jobs")["variance"]
            xs = np.arange(len(counts)) + (index - 1.5) * 0.2
            axes.bar(xs, heights, 0.19, color=COLOURS[policy], label=policy)
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
        axes.set(xlabel="jobs", title=setting.title)
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("variance of the fairness ratio")
    panels[0].set_ylim(top=1.2 * panels[0].get_ylim()[1])
    panels[0].legend(loc="upper left", ncols=2)
