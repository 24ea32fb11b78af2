"""Fig. 4, Table 2 and Fig. 13: revenue by jobs, servers and users, and use over time."""

from __future__ import annotations

from itertools import product
from statistics import pvariance
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.core.amounts import MILLI
from shadowprice.experiments.astraea.presets import PRESETS, VARIANTS
from shadowprice.experiments.astraea.runs import COLOURS, POLICIES, RevenueObserver
from shadowprice.experiments.framework import ExperimentSettings, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USERS: Final = 14
SERVERS: Final = 100
JOBS: Final = 300
HORIZON: Final = 512
"""Maximum length of a round; a median job of the paper's ranges takes 250 slots on one server."""


LESS_THETA: Final = 0.4
"""Factor of a preset's theta in Fig. 13; with preset `FOUND` a fiftieth of its definition."""


def trials_of(settings: ExperimentSettings) -> int:
    """Return the number of trials in a mean: three (the paper: five), or one if quick."""
    return 1 if settings.quick else 3


def _revenue(
    preset: str,
    convex: bool,
    point: tuple[str, int, int, int],
    trial: int,
    policy: str,
    seed: int,
) -> dict[str, Any]:
    axis, value, size, count = point
    setting = PRESETS[preset]
    cluster = setting.cluster(USERS, size, HORIZON)
    jobs, source = setting.draw(cluster, count, seed + trial, convex=convex)
    outcome = setting.run(policy, cluster, jobs)
    return {
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


def measure_fig4(settings: ExperimentSettings) -> Tables:
    """Return total revenue by policy, over jobs and over servers, for both kinds of utility."""
    jobs = (50, 150) if settings.quick else (100, 300, 500)
    servers = (60, 140) if settings.quick else (60, 100, 140)
    points = [("jobs", count, SERVERS, count) for count in jobs]
    points += [("servers", size, size, max(jobs) if settings.quick else JOBS) for size in servers]
    rows = settings.each(
        _revenue,
        product(
            PRESETS,
            (False, True),
            points,
            range(trials_of(settings)),
            POLICIES,
            [settings.seed],
        ),
        lambda preset, _convex, point, _trial, policy, _seed: (
            f"{preset}: {point[3]} jobs, {point[2]} servers, {policy}"
        ),
    )
    frame = pl.DataFrame(rows)
    keys = ("preset", "utility", "axis", "value", "policy", "arrivals")
    means = frame.group_by(keys, maintain_order=True).agg(
        pl.col("revenue", "ideal_revenue", "makespan").mean()
    )
    reference = means.filter(pl.col("policy") == "astraea").select(
        *keys[:4], real="revenue", ideal="ideal_revenue"
    )
    advantage = (
        means.join(reference, on=keys[:4])
        .group_by("preset", "utility", "policy", maintain_order=True)
        .agg(
            (pl.col("real") / pl.col("revenue")).mean().alias("astraea_over_it"),
            (pl.col("ideal") / pl.col("ideal_revenue")).mean().alias("astraea_over_it_ideal"),
        )
    )
    return {"revenue": means, "advantage": advantage}


def draw_fig4(tables: Tables, figure: Figure) -> None:
    """Draw eight panels: presets by rows; kinds of utility and axes by columns."""
    panels = figure.subplots(len(PRESETS), 4)
    for row, (preset, setting) in enumerate(PRESETS.items()):
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
                curve = table.filter(pl.col("policy") == policy).sort("value")
                values = curve["revenue"] / 1000
                axes.plot(curve["value"], values, "o-", color=COLOURS[policy], label=policy)
                if policy in {"astraea", "batchsche"}:
                    ideal = curve["ideal_revenue"] / 1000
                    axes.plot(curve["value"], ideal, ":", color=COLOURS[policy])
            axes.set_ylim(bottom=0)
            axes.set_title(f"{utility}, {setting.title}", fontsize=9)
            axes.set_xlabel(axis)
        panels[row, 0].set_ylabel("total utility, thousands")
    panels[0, 0].legend(fontsize=8, title="dotted: ideal clock", title_fontsize=8)


def _per_job(preset: str, convex: bool, users: int, trial: int, seed: int) -> dict[str, Any]:
    setting = PRESETS[preset]
    cluster = setting.cluster(users, SERVERS, HORIZON)
    jobs, source = setting.draw(cluster, JOBS, seed + trial, convex=convex)
    outcome = setting.run("astraea", cluster, jobs)
    return {
        "preset": preset,
        "utility": "convex" if convex else "linear",
        "users": users,
        "revenue_per_job": outcome.revenue / JOBS,
        "ideal_revenue_per_job": outcome.ideal / JOBS,
        "variance": pvariance(outcome.fairness().values()),
        "variance_ideal": pvariance(outcome.fairness(ideal=True).values()),
        "arrivals": source,
    }


def measure_table2(settings: ExperimentSettings) -> Tables:
    """Return revenue per job and variance of the fairness ratio by number of users.

    The paper doesn't say which form of utility and which clock Table 2 has.
    """
    counts = (5, 8, 11, 14)
    rows = settings.each(
        _per_job,
        product(PRESETS, (False, True), counts, range(trials_of(settings)), [settings.seed]),
        lambda preset, _convex, users, _trial, _seed: f"{preset}: {users} users",
    )
    keys = ("preset", "utility", "users", "arrivals")
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
    """Draw revenue per job by form of utility, and variance, beside the paper's."""
    panels = figure.subplots(1, 4)
    grey = "#6B6B6B"
    for form, (left, right) in zip(("linear", "convex"), (panels[:2], panels[2:]), strict=True):
        for preset, setting in PRESETS.items():
            table = tables["users"].filter(
                (pl.col("preset") == preset) & (pl.col("utility") == form)
            )
            colour, label = setting.colour, setting.title
            left.plot(table["users"], table["revenue_per_job"], "o-", color=colour, label=label)
            left.plot(table["users"], table["ideal_revenue_per_job"], "o:", color=colour)
            right.plot(table["users"], table["variance"], "o-", color=colour, label=label)
            right.plot(table["users"], table["variance_ideal"], "o:", color=colour)
        left.plot(
            table["users"], table["paper_revenue_per_job"], "s--", color=grey, label="Table 2"
        )
        right.plot(table["users"], table["paper_variance"], "s--", color=grey, label="Table 2")
        left.set(xlabel="users", title=f"Revenue per job, {form}", ylim=(0, None))
        right.set(xlabel="users", title=f"Variance of the ratio, {form}", ylim=(0, None))
    panels[0].legend(fontsize=8, title="dotted: ideal clock", title_fontsize=8)


def measure_fig13(settings: ExperimentSettings) -> Tables:
    """Return the share of workers in use, slot by slot, and makespans."""
    rows, spans = [], []
    for index, (preset, setting) in enumerate(PRESETS.items()):
        settings.progress(index, len(PRESETS), preset)
        cluster = setting.cluster(USERS, SERVERS, HORIZON)
        total = int(sum(tenant.share["worker"] for tenant in cluster.tenants)) // MILLI
        jobs, source = setting.draw(cluster, JOBS, settings.seed)
        outcomes: dict[str, RevenueObserver] = {
            name: setting.run(name, cluster, jobs) for name in POLICIES
        }
        outcomes["astraea, theta x 0.4"] = setting.run(
            "astraea", cluster, jobs, theta_scale=LESS_THETA
        )
        for policy, outcome in outcomes.items():
            busy = outcome.busy
            last = outcome.makespan
            size = max(1, last // 400)
            use = np.array([busy.get(slot, 0) / total for slot in range(last)])
            for start in range(0, last, size):
                share = float(use[start : start + size].mean())
                rows.append((preset, policy, start, share))
            # Until 90 % of all worker-slots, because a planner's last job may run alone for long.
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
    """Draw the share of workers in use over time, until the slowest policy is at 90 %."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (preset, setting) in zip(panels, PRESETS.items(), strict=True):
        spans = tables["makespan"].filter(pl.col("preset") == preset)
        cut = 1.15 * int(spans["slots_to_90_percent"].max())  # type: ignore[arg-type]  # integers
        for policy in (*POLICIES, "astraea, theta x 0.4"):
            curve = tables["utilisation"].filter(
                (pl.col("preset") == preset) & (pl.col("policy") == policy) & (pl.col("slot") < cut)
            )
            axes.step(
                curve["slot"],
                curve["share"],
                where="post",
                color=COLOURS[policy.partition(",")[0]],
                ls=":" if "," in policy else "-",
                label=policy,
                lw=1.3,
            )
        axes.set(xlabel="slot (hours)", title=setting.title, xlim=(0, cut), ylim=(0, 1.02))
    panels[0].set_ylabel("workers in use")
    panels[1].legend(loc="upper right")


def _run_variant(
    name: str, policy: str, trial: int, count: int, servers: int, seed: int
) -> tuple[float, int, str]:
    setting = VARIANTS[name]
    cluster = setting.cluster(USERS, servers, HORIZON)
    jobs, source = setting.draw(cluster, count, seed + trial)
    outcome = setting.run(policy, cluster, jobs)
    return outcome.revenue, max(outcome.busy.values(), default=0), source


def measure_settings(settings: ExperimentSettings) -> Tables:
    """Return the effect of each part of preset `FOUND` on Fig. 4's ratios."""
    # A third of jobs and servers keeps the load, if every user still has enough servers.
    part = 3 if settings.quick and SERVERS >= 3 * USERS else 1
    count, servers = JOBS // part, SERVERS // part
    cases = list(product(VARIANTS, range(trials_of(settings))))
    results = settings.each(
        _run_variant,
        [
            (name, policy, trial, count, servers, settings.seed)
            for name, trial in cases
            for policy in POLICIES
        ],
        lambda name, policy, *_: f"{name}: {policy}",
    )
    rows = []
    for index, (name, _) in enumerate(cases):
        by_policy = results[index * len(POLICIES) : (index + 1) * len(POLICIES)]
        (reference, peak, source), *others = by_policy
        cluster = VARIANTS[name].cluster(USERS, servers, HORIZON)
        rows.append(
            {
                "setting": name,
                "jobs": count,
                "astraea": reference,
                **{
                    f"over_{policy}": reference / revenue
                    for policy, (revenue, _, _) in zip(POLICIES[1:], others, strict=True)
                },
                "peak": peak
                * MILLI
                / int(sum(tenant.share["worker"] for tenant in cluster.tenants)),
                "arrivals": source,
            }
        )
    keys = ("setting", "jobs", "arrivals")
    return {"settings": pl.DataFrame(rows).group_by(keys, maintain_order=True).mean()}


def draw_settings(tables: Tables, figure: Figure) -> None:
    """Draw Astraea's revenue over each other policy's, a row per setting, beside the paper's."""
    axes = figure.subplots()
    table = tables["settings"]
    rows = np.arange(len(table))
    reported = {"batchsche": 1.58, "gandiva_fair": 1.24, "hived": 1.35}
    for index, policy in enumerate(POLICIES[1:]):
        values = table[f"over_{policy}"].to_numpy()
        axes.barh(
            rows + (index - 1) * 0.26,
            values,
            0.25,
            color=COLOURS[policy],
            label=f"over {policy} (paper: {reported[policy]})",
        )
        axes.axvline(reported[policy], color=COLOURS[policy], lw=1, ls="--")
    axes.axvline(1.0, color="black", lw=1)
    axes.set_yticks(rows, table["setting"].to_list(), fontsize=9)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    count = table["jobs"][0]
    axes.set_xlabel(f"Astraea's revenue over theirs, {count} jobs, linear utilities")
    axes.legend(fontsize=9)
