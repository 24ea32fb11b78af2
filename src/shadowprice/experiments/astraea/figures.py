"""Figs. 1, 4 and 7 to 13, and Table 2: revenue, fairness, use over time, prices and running time.

The job log of the two clusters of Fig. 1 (Helios's Venus) isn't among the open trace files. Eight
virtual clusters of Helios's Earth have a public log of the GPUs in use in each minute.

Figures show two clocks: real revenue counts utility from a job's arrival, ideal revenue from the
beginning of the job's round, as the paper's Algorithm 3 does.
"""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path
from statistics import pvariance
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.amounts import MILLI
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.experiments.astraea.setting import (
    COLOURS,
    POLICIES,
    PRESETS,
    STATED,
    VARIANTS,
    Preset,
    RevenueObserver,
    draw_bars_by_jobs,
    initial_shares,
)
from shadowprice.experiments.figures import PALETTE, draw_curves
from shadowprice.experiments.framework import ExperimentSettings, Figure, Tables, grid
from shadowprice.traces.locate import ENVIRONMENT, traces_folder

UTILITIES: Final = ("linear", "convex")  # forms of utility, by the paper's section 5.1
USERS: Final = 14
SERVERS: Final = 100
JOBS: Final = 300
HORIZON: Final = 512
"""Maximum length of a round; a median job of the paper's ranges takes 250 slots on one server."""


LESS_THETA: Final = 0.4
"""Factor of a preset's theta in Fig. 13; with preset `FOUND`, theta is then 1/50 of its definition.
"""


def trials_of(settings: ExperimentSettings) -> range:
    """Return the trials that means average: three (the paper: five), or one if quick."""
    return range(1 if settings.quick else 3)


def _simulate(
    setting: Preset,
    policy: str,
    count: int,
    seed: int,
    servers: int,
    users: int,
    *,
    convex: bool = False,
    theta_scale: float = 1.0,
) -> tuple[RevenueObserver, str]:
    """Run a policy on a number of drawn jobs; return the result, and the source of arrivals."""
    cluster = setting.cluster(users, servers, HORIZON)
    jobs, source = setting.draw(cluster, count, seed, convex=convex)
    return setting.run(policy, cluster, jobs, theta_scale), source


def _worker_count(cluster: Cluster) -> int:
    return int(sum(tenant.share["worker"] for tenant in cluster.tenants)) // MILLI


def _means(table: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return means over trials, by key columns."""
    return table.drop("trial").group_by(keys, maintain_order=True).mean()


def _revenue(
    preset: str, utility: str, point: tuple[str, int, int, int], trial: int, policy: str, seed: int
) -> dict[str, Any]:
    axis, value, size, count = point
    outcome, source = _simulate(
        PRESETS[preset], policy, count, seed + trial, size, USERS, convex=utility == "convex"
    )
    return {
        "axis": axis,
        "value": value,
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
    trials = trials_of(settings)
    table = settings.table(
        _revenue,
        grid(preset=PRESETS, utility=UTILITIES, point=points, trial=trials, policy=POLICIES),
        "{preset}: {point[3]} jobs, {point[2]} servers, {policy}".format,
        seed=settings.seed,
    )
    keys = ("preset", "utility", "axis", "value", "policy", "arrivals")
    means = _means(table, *keys)
    reference = means.filter(policy="astraea").select(
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
        for column, (utility, axis) in enumerate(product(UTILITIES, ("jobs", "servers"))):
            axes = panels[row, column]
            table = tables["revenue"].filter(preset=preset, utility=utility, axis=axis)
            curves: dict[str, Any] = {"by": "policy", "colours": COLOURS, "scale": 1 / 1000}
            draw_curves(axes, table, "value", "revenue", marker="o", **curves)
            planned = table.filter(pl.col("policy").is_in(["astraea", "batchsche"]))
            draw_curves(axes, planned, "value", "ideal_revenue", ls=":", text="_", **curves)
            axes.set_ylim(bottom=0)
            axes.set_title(f"{utility}, {setting.title}", fontsize=9)
            axes.set_xlabel(axis)
        panels[row, 0].set_ylabel("total utility, thousands")
    panels[0, 0].legend(fontsize=8, title="dotted: ideal clock", title_fontsize=8)


def _per_job(preset: str, utility: str, users: int, trial: int, seed: int) -> dict[str, Any]:
    outcome, source = _simulate(
        PRESETS[preset], "astraea", JOBS, seed + trial, SERVERS, users, convex=utility == "convex"
    )
    return {
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
    table = settings.table(
        _per_job,
        grid(preset=PRESETS, utility=UTILITIES, users=counts, trial=trials_of(settings)),
        "{preset}: {users} users".format,
        seed=settings.seed,
    )
    means = _means(table, "preset", "utility", "users", "arrivals")
    paper = pl.DataFrame(
        {
            "users": counts,
            "paper_revenue_per_job": [599.64, 571.55, 611.28, 581.06],
            "paper_variance": [0.7053, 0.78126, 0.7979, 0.7388],
        }
    )
    return {"users": means.join(paper, on="users", maintain_order="left")}


def draw_table2(tables: Tables, figure: Figure) -> None:
    """Draw revenue per job and variance by form of utility, compared with the paper's values."""
    panels = figure.subplots(1, 4)
    paper = {"marker": "s", "ls": "--", "color": "#6B6B6B", "label": "Table 2"}
    titles = {"revenue_per_job": "Revenue per job", "variance": "Variance of the ratio"}
    ideal = {"revenue_per_job": "ideal_revenue_per_job", "variance": "variance_ideal"}
    for axes, (form, column) in zip(panels, product(UTILITIES, titles), strict=True):
        table = tables["users"].filter(utility=form)
        for preset, setting in PRESETS.items():
            rows, look = table.filter(preset=preset), {"color": setting.colour}
            axes.plot(rows["users"], rows[column], "o-", label=setting.title, **look)
            axes.plot(rows["users"], rows[ideal[column]], "o:", **look)
        axes.plot(rows["users"], rows[f"paper_{column}"], **paper)
        axes.set(xlabel="users", title=f"{titles[column]}, {form}", ylim=(0, None))
    panels[0].legend(fontsize=8, title="dotted: ideal clock", title_fontsize=8)


def measure_fig13(settings: ExperimentSettings) -> Tables:
    """Return the share of workers in use, slot by slot, and makespans."""
    rows, spans = [], []
    for index, (preset, setting) in enumerate(PRESETS.items()):
        settings.progress(index, len(PRESETS), preset)
        cluster = setting.cluster(USERS, SERVERS, HORIZON)
        total = _worker_count(cluster)
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
            # The makespan alone misleads, because a planner's last job may run alone for long.
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
    """Draw the share of workers in use over time, until every policy did 90 % of its work."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (preset, setting) in zip(panels, PRESETS.items(), strict=True):
        spans = tables["makespan"].filter(preset=preset)
        cut = 1.15 * int(spans["slots_to_90_percent"].max())  # type: ignore[arg-type]  # integers
        for policy in (*POLICIES, "astraea, theta x 0.4"):
            curve = tables["utilisation"].filter(pl.col("slot") < cut, preset=preset, policy=policy)
            line, colour = ":" if "," in policy else "-", COLOURS[policy.partition(",")[0]]
            style = {"color": colour, "ls": line, "label": policy, "lw": 1.3}
            axes.step(curve["slot"], curve["share"], where="post", **style)
        axes.set(xlabel="slot (hours)", title=setting.title, xlim=(0, cut), ylim=(0, 1.02))
    panels[0].set_ylabel("workers in use")
    panels[1].legend(loc="upper right")


def _run_variant(
    setting: str, policy: str, trial: int, count: int, servers: int, seed: int
) -> dict[str, Any]:
    preset = VARIANTS[setting]
    outcome, source = _simulate(preset, policy, count, seed + trial, servers, USERS)
    workers = _worker_count(preset.cluster(USERS, servers, HORIZON))
    peak = max(outcome.busy.values(), default=0) / workers
    return {"revenue": outcome.revenue, "peak": peak, "arrivals": source}


def measure_settings(settings: ExperimentSettings) -> Tables:
    """Return Fig. 4's ratios under variants of the preset `FOUND`, each with a change of a part."""
    # If quick, a third of jobs and servers: the load stays, and each user still owns a server.
    divisor = 3 if settings.quick and SERVERS >= 3 * USERS else 1
    count, servers = JOBS // divisor, SERVERS // divisor
    table = settings.table(
        _run_variant,
        grid(setting=VARIANTS, trial=trials_of(settings), policy=POLICIES),
        "{setting}: {policy}".format,
        count=count,
        servers=servers,
        seed=settings.seed,
    )
    trials = ("setting", "trial")
    revenue = table.pivot(on="policy", index=trials, values="revenue", maintain_order=True)
    reference = table.filter(policy="astraea").drop("policy", "revenue")
    rows = revenue.join(reference, on=trials, maintain_order="left").select(
        "setting",
        "trial",
        pl.lit(count).alias("jobs"),
        "astraea",
        *((pl.col("astraea") / pl.col(policy)).alias(f"over_{policy}") for policy in POLICIES[1:]),
        "peak",
        "arrivals",
    )
    return {"settings": _means(rows, "setting", "jobs", "arrivals")}


def draw_settings(tables: Tables, figure: Figure) -> None:
    """Draw a row of bars per setting: Astraea's revenue over other policies', and the paper's."""
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


# ------------------------------------------------------------------ fairness


def _ratios(preset: str, trial: int, policy: str, seed: int) -> list[dict[str, Any]]:
    outcome, source = _simulate(PRESETS[preset], policy, JOBS, seed + trial, SERVERS, USERS)
    shares = initial_shares(outcome.cluster)
    return [
        {"user": user, "ratio": ratio, "share": shares[user], "arrivals": source}
        for user, ratio in outcome.fairness().items()
    ]


def _variances(preset: str, jobs: int, trial: int, policy: str, seed: int) -> dict[str, Any]:
    outcome, source = _simulate(PRESETS[preset], policy, jobs, seed + trial, SERVERS, USERS)
    return {
        "variance": pvariance(outcome.fairness().values()),
        "variance_ideal": pvariance(outcome.fairness(ideal=True).values()),
        "arrivals": source,
    }


def measure_fig7(settings: ExperimentSettings) -> Tables:
    """Return each user's mean ratio, by policy."""
    frame = settings.table(
        _ratios,
        grid(preset=PRESETS, trial=trials_of(settings), policy=POLICIES),
        lambda preset, trial, policy, **_: f"{preset}: trial {trial + 1}, {policy}",
        seed=settings.seed,
    )
    means = _means(frame, "preset", "policy", "user", "arrivals")
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
        bars = tables["ratios"].filter(preset=preset, policy=policy)
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
    trials = trials_of(settings)
    table = settings.table(
        _variances,
        grid(preset=PRESETS, jobs=counts, trial=trials, policy=POLICIES),
        "{preset}: {jobs} jobs, {policy}".format,
        seed=settings.seed,
    )
    return {"variance": _means(table, "preset", "policy", "jobs", "arrivals")}


def draw_fig8(tables: Tables, figure: Figure) -> None:
    """Draw groups of bars by number of jobs, one panel per preset."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (preset, setting) in zip(panels, PRESETS.items(), strict=True):
        draw_bars_by_jobs(axes, tables["variance"].filter(preset=preset), "variance", "{}")
        axes.set(xlabel="jobs", title=setting.title)
    panels[0].set_ylabel("variance of the fairness ratio")
    panels[0].set_ylim(top=1.2 * panels[0].get_ylim()[1])
    panels[0].legend(loc="upper left", ncols=2)


# ------------------------------------------------------------------ prices and running time


def _times(settings: ExperimentSettings, points: list[tuple[int, int]]) -> pl.DataFrame:
    """Return mean run time and decision time per job, by preset and (jobs, servers)."""
    warm = STATED.cluster(USERS, 20, 64)
    STATED.run("astraea", warm, STATED.draw(warm, 20, settings.seed)[0])  # compiles the kernels
    rows = []
    cases = list(product(PRESETS, points))
    for done, (preset, (count, servers)) in enumerate(cases):
        settings.progress(done, len(cases), f"{preset}: {count} jobs, {servers} servers")
        for trial in trials_of(settings):
            seed = settings.seed + trial
            outcome, source = _simulate(PRESETS[preset], "astraea", count, seed, servers, USERS)
            rows.append(
                {
                    "preset": preset,
                    "jobs": count,
                    "servers": servers,
                    "trial": trial,
                    "seconds": outcome.seconds,
                    "deciding_ms_per_job": 1000 * outcome.deciding / count,
                    "arrivals": source,
                }
            )
    return _means(pl.DataFrame(rows), "preset", "jobs", "servers", "arrivals")


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
        table = tables["time"].filter(preset=preset).sort(axis)
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


def _run_with_scaled_theta(
    preset: str, jobs: int, scale: float, trial: int, seed: int
) -> dict[str, Any]:
    outcome, source = _simulate(
        PRESETS[preset], "astraea", jobs, seed + trial, SERVERS, USERS, theta_scale=scale
    )
    return {"revenue": outcome.revenue, "ideal_revenue": outcome.ideal, "arrivals": source}


def measure_fig11(settings: ExperimentSettings) -> Tables:
    """Return revenue with theta at percentages of its definition, for loads and presets."""
    scales = (
        (0.2, 0.8, 1.0, 2.0) if settings.quick else (0.05, 0.2, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 5.0)
    )
    counts = (100, 500) if settings.quick else (100, 300, 500)
    table = settings.table(
        _run_with_scaled_theta,
        grid(preset=PRESETS, jobs=counts, scale=scales, trial=trials_of(settings)),
        "{preset}: {jobs} jobs, {scale:.0%}".format,
        seed=settings.seed,
    )
    means = _means(table, "preset", "jobs", "scale", "arrivals")
    exact = means.filter(scale=1.0).select(
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
        table = tables["theta"].filter(preset=preset).sort("jobs")
        draw_curves(axes, table, "scale", "relative", "jobs", text="{} jobs", marker="o")
        draw_curves(axes, table, "scale", "ideal_relative", "jobs", text="_", ls=":")
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
        outcome, source = _simulate(setting, "astraea", JOBS, settings.seed, SERVERS, USERS)
        for name, commit in outcome.commits.items():
            loan, earned = name in outcome.borrowers, outcome.earned.get(name, 0.0)
            rows.append((preset, name, loan, commit.utility, commit.cost, earned, source))
    schema = ["preset", "job", "borrowed", "ideal_revenue", "cost", "revenue", "arrivals"]
    return {"jobs": pl.DataFrame(rows, schema=schema, orient="row")}


def draw_fig12(tables: Tables, figure: Figure) -> None:
    """Draw a dot per job: price over ideal revenue, below the diagonal."""
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (preset, setting) in zip(panels, PRESETS.items(), strict=True):
        table = tables["jobs"].filter(preset=preset)
        for loan, colour, label in (
            (False, COLOURS["astraea"], "own share: not paid"),
            (True, PALETTE[1], "borrowed: paid"),
        ):
            dots = table.filter(borrowed=loan)
            style = {"color": colour, "label": f"{label} ({len(dots)})", "alpha": 0.7}
            axes.plot(dots["ideal_revenue"], dots["cost"], ".", **style)
        axes.plot([0, 1000], [0, 1000], color="black", lw=1, ls="--")
        axes.set(xlabel="ideal revenue", title=setting.title, xlim=(0, 1000), ylim=(-15, 1000))
        axes.legend(loc="upper left")
    panels[0].set_ylabel("price of its places")


# ------------------------------------------------------------------ use of virtual clusters


FOLDER: Final = Path("helios") / "Earth_vcs"
FILE: Final = "cluster_sequence_vc.csv.gz"
UNDERUSED: Final = 0.5
"""Largest share of GPUs in use at which a virtual cluster counts as underused."""

MINUTES_DRAWN: Final = 3 * 24 * 60
MINUTES_PER_POINT: Final = 10
_MINUTES_PER_HOUR: Final = 60


def measure_fig1(_settings: ExperimentSettings) -> Tables:
    """Compare all pairs of virtual clusters, and return the use of the most unequal one."""
    clusters = read_use(traces_folder() / FOLDER)
    rows = []
    for full, other in permutations(clusters, 2):
        unequal = (
            (clusters[full]["use"].to_numpy() >= 1.0)
            & (clusters[full]["waiting"].to_numpy() > 0)
            & (clusters[other]["use"].to_numpy() <= UNDERUSED)
        )
        start, minutes = longest_stretch(unequal)
        rows.append(
            {
                "full": full,
                "full_gpus": clusters[full]["gpus"].max(),
                "underused": other,
                "underused_gpus": clusters[other]["gpus"].max(),
                "hours": float(unequal.sum()) / _MINUTES_PER_HOUR,
                "longest_hours": minutes / _MINUTES_PER_HOUR,
                "start_minute": start,
            }
        )
    # Among equally long stretches, prefer the larger underused cluster.
    pairs = pl.DataFrame(rows).sort(
        ["longest_hours", "underused_gpus", "full", "underused"],
        descending=[True, True, False, False],
    )
    chosen = pairs.row(0, named=True)
    first = max(0, chosen["start_minute"] - MINUTES_DRAWN // 6)
    use = pl.concat(
        clusters[name]
        .slice(first, MINUTES_DRAWN)
        .select(
            "time",
            pl.lit(name).alias("virtual_cluster"),
            (pl.int_range(pl.len()) / _MINUTES_PER_HOUR).alias("hour"),
            "use",
        )
        .gather_every(MINUTES_PER_POINT)
        for name in (chosen["full"], chosen["underused"])
    )
    return {"use": use, "pairs": pairs.drop("start_minute")}


def read_use(folder: Path) -> dict[str, pl.DataFrame]:
    """Return a table by minute for each virtual cluster: GPUs, share in use, GPUs requested."""
    paths = sorted(folder.glob(f"*/{FILE}"))
    if len(paths) < 2:
        hint = (
            "get analysis/2_cluster characterization/Earth_vcs of github.com/S-Lab-System-Group/"
            f"HeliosArtifact as {FOLDER} in the folder that {ENVIRONMENT} names"
        )
        raise InputError(Fault(str(folder), "there are no logs of virtual clusters", hint))
    running, idle = pl.col("running_gpu_num"), pl.col("idle_gpu_num")
    clusters = {
        path.parent.name: pl.read_csv(path)
        .select(
            "time",
            (running + idle).alias("gpus"),
            (running / (running + idle)).alias("use"),
            pl.col("pending_gpu_num").alias("waiting"),
        )
        .sort("time")
        for path in paths
    }
    # Only minutes that all logs have, so that rows of the tables correspond.
    common = pl.concat(table.select("time") for table in clusters.values())
    common = common.group_by("time").len().filter(pl.col("len") == len(clusters)).select("time")
    return {name: table.join(common, on="time", how="semi") for name, table in clusters.items()}


def longest_stretch(holds: NDArray[np.bool_]) -> tuple[int, int]:
    """Return start and length of the longest run of true values, or of the first such run."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(lengths[longest])


def draw_fig1(tables: Tables, figure: Figure) -> None:
    """Draw the use of the two virtual clusters over three days."""
    panel = figure.subplots()
    draw_curves(panel, tables["use"], "hour", "use", "virtual_cluster", scale=100)
    panel.set(xlabel=f"hours from {tables['use']['time'][0]}", ylabel="GPUs in use (%)")
    panel.set_ylim(0, 105)
    panel.legend(title="virtual cluster")
