"""Fig. 4, Table 2 and Fig. 13: total revenue, by jobs, servers and users, and use over time."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.experiments.astraea.runs import COLOURS, POLICIES, Outcome, run, variance
from shadowprice.experiments.astraea.workload import (
    PAPER,
    SHORT,
    WORKERS_A_SERVER,
    draw_jobs,
    shared_cluster,
)
from shadowprice.experiments.framework import Settings, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USERS: Final = 14
SERVERS: Final = 100
JOBS: Final = 300
HORIZON: Final = 512
"""Longest round; a median job of the paper's ranges takes 250 slots on one server."""

PRESETS: Final = {"paper": PAPER, "short": SHORT}


def trials_of(settings: Settings) -> int:
    """Return how many trials a mean is of: three (the paper: five), one if quick."""
    return 1 if settings.quick else 3


def measure_fig4(settings: Settings) -> Tables:
    """Return total revenue by policy, over jobs and over servers, for both kinds of utility."""
    jobs = (50, 150) if settings.quick else (100, 300, 500)
    servers = (60, 140) if settings.quick else (60, 100, 140)
    points = [("jobs", count, SERVERS, count) for count in jobs]
    points += [("servers", size, size, max(jobs) if settings.quick else JOBS) for size in servers]
    cases = list(product(PRESETS, (False, True), points, range(trials_of(settings))))
    rows: list[dict[str, Any]] = []
    for done, (preset, convex, (axis, value, size, count), trial) in enumerate(cases):
        settings.progress(done, len(cases), f"{preset}: {count} jobs, {size} servers")
        cluster = shared_cluster(USERS, size, HORIZON)
        seed = settings.seed + trial
        drawn, source = draw_jobs(cluster, count, seed, ranges=PRESETS[preset], convex=convex)
        for policy in POLICIES:
            outcome = run(policy, cluster, drawn)
            rows.append(
                {
                    "preset": preset,
                    "utility": "convex" if convex else "linear",
                    "axis": axis,
                    "value": value,
                    "policy": policy,
                    "trial": trial,
                    "revenue": outcome.revenue,
                    "ideal_revenue": outcome.ideal,
                    "makespan": outcome.makespan,
                    "arrivals": source,
                }
            )
    each = pl.DataFrame(rows)
    keys = ("preset", "utility", "axis", "value", "policy", "arrivals")
    means = each.group_by(keys, maintain_order=True).agg(
        pl.col("revenue", "ideal_revenue", "makespan").mean()
    )
    base = means.filter(pl.col("policy") == "astraea").select(
        *keys[:4], real="revenue", ideal="ideal_revenue"
    )
    advantage = (
        means.join(base, on=keys[:4])
        .group_by("preset", "utility", "policy", maintain_order=True)
        .agg(
            (pl.col("real") / pl.col("revenue")).mean().alias("astraea_over_it"),
            (pl.col("ideal") / pl.col("ideal_revenue")).mean().alias("astraea_over_it_ideal"),
        )
    )
    return {"revenue": means, "advantage": advantage}


def draw_fig4(tables: Tables, figure: Figure) -> None:
    """Draw eight panels: presets by rows; kinds of utility and axes by columns."""
    panels = figure.subplots(2, 4)
    rows = {"paper": "the paper's ranges", "short": "a sixteenth of the work"}
    for row, preset in enumerate(rows):
        for column, (utility, axis) in enumerate(
            product(("linear", "convex"), ("jobs", "servers"))
        ):
            axes = panels[row, column]
            table = tables["revenue"].filter(
                (pl.col("preset") == preset)
                & (pl.col("utility") == utility)
                & (pl.col("axis") == axis)
            )
            for policy in POLICIES:
                mine = table.filter(pl.col("policy") == policy).sort("value")
                values = mine["revenue"] / 1000
                axes.plot(mine["value"], values, "o-", color=COLOURS[policy], label=policy)
                if policy in {"astraea", "batchsche"}:
                    ideal = mine["ideal_revenue"] / 1000
                    axes.plot(mine["value"], ideal, ":", color=COLOURS[policy])
            axes.set_ylim(bottom=0)
            axes.set_title(f"{utility}, {rows[preset]}", fontsize=9)
            axes.set_xlabel(axis)
        panels[row, 0].set_ylabel("total utility, thousands")
    panels[0, 0].legend(fontsize=8, title="dotted: ideal clock", title_fontsize=8)


def measure_table2(settings: Settings) -> Tables:
    """Return revenue per job and variance of the fairness ratio by number of users."""
    counts = (5, 8, 11, 14)
    cases = list(product(PRESETS, counts, range(trials_of(settings))))
    rows = []
    for done, (preset, users, trial) in enumerate(cases):
        settings.progress(done, len(cases), f"{preset}: {users} users")
        cluster = shared_cluster(users, SERVERS, HORIZON)
        drawn, source = draw_jobs(cluster, JOBS, settings.seed + trial, ranges=PRESETS[preset])
        outcome = run("astraea", cluster, drawn)
        rows.append(
            {
                "preset": preset,
                "users": users,
                "revenue_per_job": outcome.revenue / JOBS,
                "ideal_revenue_per_job": outcome.ideal / JOBS,
                "variance": variance(list(outcome.fairness().values())),
                "variance_ideal": variance(list(outcome.fairness(ideal=True).values())),
                "arrivals": source,
            }
        )
    keys = ("preset", "users", "arrivals")
    table = pl.DataFrame(rows).group_by(keys, maintain_order=True).mean()
    paper = pl.DataFrame(
        {
            "users": counts,
            "paper_revenue_per_job": [599.64, 571.55, 611.28, 581.06],
            "paper_variance": [0.7053, 0.78126, 0.7979, 0.7388],
        }
    )
    return {"users": table.join(paper, on="users", maintain_order="left")}


def draw_table2(tables: Tables, figure: Figure) -> None:
    """Draw revenue per job and variance beside the paper's."""
    left, right = figure.subplots(1, 2)
    for preset, colour in (("paper", "#009E73"), ("short", "#0072B2")):
        table = tables["users"].filter(pl.col("preset") == preset)
        label = "the paper's ranges" if preset == "paper" else "a sixteenth of the work"
        left.plot(table["users"], table["revenue_per_job"], "o-", color=colour, label=label)
        left.plot(table["users"], table["ideal_revenue_per_job"], "o:", color=colour)
        right.plot(table["users"], table["variance"], "o-", color=colour, label=label)
    table = tables["users"].filter(pl.col("preset") == "paper")
    grey = "#6B6B6B"
    left.plot(table["users"], table["paper_revenue_per_job"], "s--", color=grey, label="Table 2")
    right.plot(table["users"], table["paper_variance"], "s--", color=grey, label="Table 2")
    left.set(xlabel="users", title="Revenue per job (dotted: ideal clock)", ylim=(0, None))
    right.set(xlabel="users", title="Variance of the fairness ratio", ylim=(0, None))
    left.legend(fontsize=9)


def measure_fig13(settings: Settings) -> Tables:
    """Return the share of workers in use, slot by slot, and makespans."""
    rows, spans = [], []
    cluster = shared_cluster(USERS, SERVERS, HORIZON)
    total = SERVERS * WORKERS_A_SERVER
    for at, preset in enumerate(PRESETS):
        settings.progress(at, len(PRESETS), preset)
        drawn, source = draw_jobs(cluster, JOBS, settings.seed, ranges=PRESETS[preset])
        outcomes: dict[str, Outcome] = {name: run(name, cluster, drawn) for name in POLICIES}
        for policy, outcome in outcomes.items():
            busy = outcome.busy
            last = outcome.makespan
            size = max(1, last // 400)
            use = np.array([busy.get(slot, 0) / total for slot in range(last)])
            for start in range(0, last, size):
                share = float(use[start : start + size].mean())
                rows.append((preset, policy, start, share))
            # When 90 % of all worker-slots are over: the last job of a planner may run alone.
            done = np.cumsum(use) / max(use.sum(), 1e-9)
            spans.append(
                {
                    "preset": preset,
                    "policy": policy,
                    "makespan": last,
                    "slots_to_90_percent": int(np.searchsorted(done, 0.9)) + 1,
                    "worker_slots": round(use.sum() * total),
                    "peak": float(use.max(initial=0.0)),
                    "finished": len(outcome.earned),
                    "arrivals": source,
                }
            )
    schema = ["preset", "policy", "slot", "share"]
    return {
        "utilisation": pl.DataFrame(rows, schema=schema, orient="row"),
        "makespan": pl.DataFrame(spans),
    }


def draw_fig13(tables: Tables, figure: Figure) -> None:
    """Draw the share of workers in use over time, cut where the slowest is at 90 %."""
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"paper": "the paper's ranges", "short": "a sixteenth of the work"}
    for axes, (preset, title) in zip(panels, titles.items(), strict=True):
        spans = tables["makespan"].filter(pl.col("preset") == preset)
        cut = 1.15 * int(spans["slots_to_90_percent"].max())  # type: ignore[arg-type]  # integers
        for policy in POLICIES:
            mine = tables["utilisation"].filter(
                (pl.col("preset") == preset) & (pl.col("policy") == policy) & (pl.col("slot") < cut)
            )
            axes.step(
                mine["slot"],
                mine["share"],
                where="post",
                color=COLOURS[policy],
                label=policy,
                lw=1.3,
            )
        axes.set(xlabel="slot (hours)", title=title, xlim=(0, cut), ylim=(0, 1.02))
    panels[0].set_ylabel("workers in use")
    panels[1].legend(loc="upper right")
