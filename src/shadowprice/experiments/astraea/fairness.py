"""Figs. 7 and 8: revenue fairness ratios of users, and their variance."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from shadowprice.experiments.astraea.efficiency import (
    HORIZON,
    JOBS,
    PRESETS,
    SERVERS,
    USERS,
    trials_of,
)
from shadowprice.experiments.astraea.runs import COLOURS, POLICIES, run, variance
from shadowprice.experiments.astraea.workload import draw_jobs, shared_cluster
from shadowprice.experiments.framework import Settings, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure_fig7(settings: Settings) -> Tables:
    """Return each user's mean ratio, by policy."""
    rows = []
    cluster = shared_cluster(USERS, SERVERS, HORIZON)
    trials = trials_of(settings)
    for trial in range(trials):
        settings.progress(trial, trials, f"trial {trial + 1}")
        drawn, source = draw_jobs(cluster, JOBS, settings.seed + trial)
        for policy in POLICIES:
            for user, ratio in run(policy, cluster, drawn).fairness().items():
                rows.append((policy, user, trial, ratio, source))
    schema = ["policy", "user", "trial", "ratio", "arrivals"]
    each = pl.DataFrame(rows, schema=schema, orient="row")
    means = each.group_by("policy", "user", "arrivals", maintain_order=True).agg(
        pl.col("ratio").mean()
    )
    return {"ratios": means, "trials": each}


def draw_fig7(tables: Tables, figure: Figure) -> None:
    """Draw one panel a policy: bars by user, and the line of absolute fairness."""
    panels = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    for axes, policy in zip(panels, POLICIES, strict=True):
        mine = tables["ratios"].filter(pl.col("policy") == policy)
        axes.bar(range(len(mine)), mine["ratio"], color=COLOURS[policy])
        axes.axhline(1.0, color="black", lw=1, ls="--")
        fair = int((mine["ratio"] >= 1).sum())
        axes.set_title(f"{policy}: {fair} of {len(mine)} users at 1 or more", fontsize=10)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(mine)), mine["user"].to_list(), rotation=60, fontsize=7)
    for axes in panels[::2]:
        axes.set_ylabel("fairness ratio")


def measure_fig8(settings: Settings) -> Tables:
    """Return the mean variance over users, by policy and number of jobs."""
    counts = (100, 300) if settings.quick else (100, 300, 500)
    cases = list(product(PRESETS, counts, range(trials_of(settings))))
    cluster = shared_cluster(USERS, SERVERS, HORIZON)
    rows = []
    for done, (preset, count, trial) in enumerate(cases):
        settings.progress(done, len(cases), f"{preset}: {count} jobs")
        drawn, source = draw_jobs(cluster, count, settings.seed + trial, ranges=PRESETS[preset])
        for policy in POLICIES:
            outcome = run(policy, cluster, drawn)
            real = variance(list(outcome.fairness().values()))
            ideal = variance(list(outcome.fairness(ideal=True).values()))
            rows.append((preset, policy, count, real, ideal, source))
    schema = ["preset", "policy", "jobs", "variance", "variance_ideal", "arrivals"]
    each = pl.DataFrame(rows, schema=schema, orient="row")
    keys = ("preset", "policy", "jobs", "arrivals")
    return {"variance": each.group_by(keys, maintain_order=True).mean()}


def draw_fig8(tables: Tables, figure: Figure) -> None:
    """Draw groups of bars by number of jobs, one panel a preset."""
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"paper": "the paper's ranges", "short": "a sixteenth of the work"}
    for axes, (preset, title) in zip(panels, titles.items(), strict=True):
        table = tables["variance"].filter(pl.col("preset") == preset)
        counts = sorted(table["jobs"].unique().to_list())
        for at, policy in enumerate(POLICIES):
            heights = table.filter(pl.col("policy") == policy).sort("jobs")["variance"]
            xs = np.arange(len(counts)) + (at - 1.5) * 0.2
            axes.bar(xs, heights, 0.19, color=COLOURS[policy], label=policy)
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
        axes.set(xlabel="jobs", title=title)
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("variance of the fairness ratio")
    panels[0].set_ylim(top=1.2 * panels[0].get_ylim()[1])
    panels[0].legend(loc="upper left", ncols=2)
