"""Figs. 5 and 6: revenue over that of an offline optimum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.utility import utility_value
from shadowprice.experiments.astraea.runs import COLOURS, POLICIES, run
from shadowprice.experiments.astraea.workload import TINY, draw_jobs, shared_cluster
from shadowprice.experiments.framework import Settings, Tables
from shadowprice.experiments.style import PALETTE
from shadowprice.policies.astraea.optimum import Batch, Optimum
from shadowprice.policies.tenants.gang_jobs import gang_job
from shadowprice.policies.tenants.tenancy import Claim, tenancy_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMESPAN: Final = 48
"""Slots that the offline schedule may use; every job's last utility is far above its value then."""

TIME_LIMIT: Final = 20.0
"""Seconds for one offline optimum; its bound stands in where it is not proved by then."""


def offline(cluster: Cluster, jobs: Sequence[Job]) -> Optimum:
    """Return the offline optimum of (3), placements relaxed to the totals of the cluster.

    An upper bound of the optimum, so that ratios to it are lower bounds of the performance ratio.
    """
    tenancy = tenancy_of(cluster)
    gangs = []
    for job in jobs:
        claim = tenancy.claim_of(job)
        assert isinstance(claim, Claim)
        gangs.append(gang_job(job, claim, int(tenancy.ps[0].max())))
    first = min(job.arrival for job in jobs)
    batch = Batch(
        gangs,
        tenancy.workers[0],
        tenancy.ps[0],
        TIMESPAN,
        releases=[job.arrival - first for job in jobs],
        worth=lambda at, end: utility_value(jobs[at].utility, first + end - 1 - jobs[at].arrival),
    )
    return batch.solve(placed=False, time_limit=TIME_LIMIT, gap=1e-3)


def measure(
    settings: Settings, jobs: Sequence[int], servers: Sequence[int], policies: Sequence[str]
) -> Tables:
    """Return the mean ratio of each policy over trials, for linear and convex utilities."""
    trials = 1 if settings.quick else 3
    cases = list(product((False, True), servers, jobs, range(trials)))
    rows = []
    for done, (convex, size, count, trial) in enumerate(cases):
        settings.progress(done, len(cases), f"{count} jobs, {size} servers")
        cluster = shared_cluster(2, size, 64)
        seed = settings.seed + 1000 * trial + count
        drawn, source = draw_jobs(cluster, count, seed, ranges=TINY, convex=convex)
        best = offline(cluster, drawn)
        for policy in policies:
            outcome = run(policy, cluster, drawn)
            rows.append(
                {
                    "utility": "convex" if convex else "linear",
                    "policy": policy,
                    "jobs": count,
                    "servers": size,
                    "trial": trial,
                    "revenue": outcome.revenue,
                    "ideal_revenue": outcome.ideal,
                    "offline_bound": best.bound,
                    "proved": best.proved,
                    "arrivals": source,
                }
            )
    each = pl.DataFrame(rows)
    keys = ("utility", "policy", "jobs", "servers", "arrivals")
    ratio = each.group_by(keys, maintain_order=True).agg(
        (pl.col("revenue") / pl.col("offline_bound")).mean().alias("ratio"),
        (pl.col("revenue") / pl.col("offline_bound")).min().alias("least"),
        (pl.col("ideal_revenue") / pl.col("offline_bound")).mean().alias("ideal_ratio"),
        pl.col("proved").mean().alias("proved"),
    )
    return {"ratio": ratio, "trials": each}


def measure_fig5(settings: Settings) -> Tables:
    """Return Astraea's ratio by jobs and servers."""
    if settings.quick:
        return measure(settings, (5, 15), (5, 15, 45), ("astraea",))
    return measure(settings, (5, 10, 15), (5, 15, 25, 35, 45), ("astraea",))


def measure_fig6(settings: Settings) -> Tables:
    """Return all policies' ratios by jobs, at fifteen servers."""
    return measure(settings, (5, 10, 15), (15,), POLICIES)


def draw_fig5(tables: Tables, figure: Figure) -> None:
    """Draw a line for each number of jobs over servers, one panel a kind of utility."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, kind in zip(panels, ("linear", "convex"), strict=True):
        table = tables["ratio"].filter(pl.col("utility") == kind)
        for at, count in enumerate(sorted(table["jobs"].unique().to_list())):
            mine = table.filter(pl.col("jobs") == count).sort("servers")
            colour = PALETTE[at]
            axes.plot(mine["servers"], mine["ratio"], "o-", color=colour, label=f"{count} jobs")
            axes.plot(mine["servers"], mine["ideal_ratio"], ":", color=colour)
        axes.axhline(0.6, color="#6B6B6B", lw=1, ls="--")
        axes.set(xlabel="servers", title=f"{kind} utilities")
    panels[0].annotate("the paper: above 0.6", (5, 0.62), color="#6B6B6B", va="bottom")
    panels[0].set_ylabel("revenue over offline bound")
    panels[0].set_ylim(bottom=0)
    panels[0].legend(loc="lower right", title="dotted: ideal clock")


def draw_fig6(tables: Tables, figure: Figure) -> None:
    """Draw groups of bars, one panel a kind of utility."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, kind in zip(panels, ("linear", "convex"), strict=True):
        table = tables["ratio"].filter(pl.col("utility") == kind)
        counts = sorted(table["jobs"].unique().to_list())
        for at, policy in enumerate(POLICIES):
            heights = table.filter(pl.col("policy") == policy).sort("jobs")["ratio"]
            xs = np.arange(len(counts)) + (at - 1.5) * 0.2
            bars = axes.bar(xs, heights, 0.19, color=COLOURS[policy], label=policy)
            axes.bar_label(bars, fmt="%.2f", fontsize=7)
        axes.set_xticks(range(len(counts)), [f"{count} jobs" for count in counts])
        axes.set_title(f"{kind} utilities")
        axes.grid(visible=False, axis="x")
    panels[0].set(ylabel="revenue over offline bound", ylim=(0, 1.25))
    panels[0].legend(ncols=2, loc="upper left", fontsize=9)
