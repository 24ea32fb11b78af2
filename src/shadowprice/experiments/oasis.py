"""OASiS's Figs. 3 to 8, and utility by length of a slot, which the paper doesn't vary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.cluster import BANDWIDTH, Cluster
from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec
from shadowprice.core.utility import Sigmoid
from shadowprice.experiments.figures import (
    PALETTE,
    PolicyVariant,
    draw_band,
    draw_box,
    draw_curves,
    samples_by_policy,
    write_above,
)
from shadowprice.experiments.framework import (
    Experiment,
    ExperimentSettings,
    Figure,
    Tables,
    grid,
)
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.significance import compare_with_first
from shadowprice.traces.arrivals import Pattern
from shadowprice.traces.generator import (
    TESTBED,
    GeneratorOptions,
    Preset,
    generate,
    oasis_testbed_cluster,
    paper_cluster,
)

# ------------------------------------------------------------------ setting


CLEARING: Final = PolicyVariant(
    "oasis", PolicyChoice("oasis", {"preset": "paper", "lower": "clearing"}, "OASiS (clearing L)")
)
GUARANTEED: Final = PolicyVariant(
    "oasis-guaranteed",
    PolicyChoice("oasis", {"preset": "paper", "lower": "guaranteed"}, "OASiS (guaranteed L)"),
    "-.",
)
THEORY: Final = PolicyVariant(
    "oasis-theory", PolicyChoice("oasis", {"preset": "paper"}, "OASiS (L as printed)"), "--"
)
OASIS: Final = (CLEARING, GUARANTEED, THEORY)
BASELINES: Final = (
    PolicyVariant("fifo", PolicyChoice("fifo", titled="FIFO")),
    PolicyVariant("drf", PolicyChoice("drf", titled="DRF")),
    PolicyVariant("rrh", PolicyChoice("rrh", titled="RRH")),
    # Dorm's integer program is large, because no two servers in use are equal. The settings limit
    # it to jobs at the head of the queue and to the root node's best solution. A window two or four
    # times as large changes the utility by a few percent.
    PolicyVariant(
        "dorm",
        PolicyChoice(
            "dorm", {"window": 4, "adjustable": 4, "node_limit": 1, "gap": 0.1}, titled="Dorm"
        ),
    ),
)
POLICY_VARIANTS: Final = (*OASIS, *BASELINES)


@dataclass(frozen=True, slots=True)
class WorkloadCase:
    """Source of jobs and their arrivals."""

    title: str
    preset: Preset
    slot: Fraction  # length of a slot in seconds
    arrivals: Pattern = "poisson"


CHUNK: Final = WorkloadCase("tau a chunk's, slots of 1 h", "chunk", Fraction(3600))
BURSTY: Final = WorkloadCase("the same, bursty arrivals", "chunk", Fraction(3600), "bursty")
PRINTED: Final = WorkloadCase("tau a mini-batch's, slots of 20 min", "paper", Fraction(1200))
CASES: Final[Mapping[str, WorkloadCase]] = {"chunk": CHUNK, "bursty": BURSTY, "printed": PRINTED}
"""``chunk``: the reading of the paper that reproduces its figures, in which tau is the time of a
chunk; ``bursty``: with arrivals as bursty as Philly's; ``printed``: the ranges as printed.
"""


@cache
def cluster(
    workers: int, parameter_servers: int, slots: int, seed: int, slot: Fraction = CHUNK.slot
) -> Cluster:
    """Return the servers of a seed, which are the same for every policy.

    Bandwidth lies within [20, 50] Gbps as in the paper, but is rounded to multiples of 10, so that
    there are few kinds of servers.
    """
    document = paper_cluster(
        workers=workers,
        parameter_servers=parameter_servers,
        slot_seconds=slot,
        horizon=slots,
        seed=seed,
    )
    for server in document["servers"]:
        bandwidth = int(server["capacity"][BANDWIDTH].removesuffix("Gbps"))
        server["capacity"][BANDWIDTH] = f"{round(bandwidth, -1)}Gbps"
    return ClusterSpec.model_validate(document).resolve("generated cluster")


def workload(
    on: Cluster, case: WorkloadCase, jobs: int, slots: int, seed: int, **changes: Any
) -> list[Job]:
    """Return the jobs of a seed, which arrive throughout the timespan."""
    options = GeneratorOptions(
        preset=case.preset,
        jobs=jobs,
        slots=slots,
        slot_seconds=on.slot_seconds,
        arrivals=case.arrivals,
        **changes,
    )
    return generate(options, seed=seed).to_jobs(on)


def merged(*workloads: Sequence[Job]) -> list[Job]:
    """Return jobs of several workloads by arrival, with unique names."""
    renamed = [
        replace(job, name=f"{index}-{job.name}")
        for index, jobs in enumerate(workloads)
        for job in jobs
    ]
    return sorted(renamed, key=lambda job: job.arrival)


# ------------------------------------------------------------------ total utility (Figs. 3 and 6)


SCALES: Final = (0.2, 0.5, 1.0, 3.0, 5.0, 10.0)
"""Factors by which the estimate of U / L differs from the true ratio, as in the paper's Fig. 6."""

READINGS: Final = {"L": "U exact, L wrong", "U": "L exact, U wrong"}
"""Constant that is wrong if the estimate of U / L is; the paper doesn't say which."""

RANGE_OVER_SEEDS: Final = {
    "mean": pl.col("utility").mean(),
    "low": pl.col("utility").min(),
    "high": pl.col("utility").max(),
}
BASES: Final = (CLEARING, GUARANTEED)
HOURS: Final = (1, 2, 4, 12)  # lengths of a slot; section III says "1 hour or longer"


def _size(settings: ExperimentSettings) -> tuple[int, int, tuple[int, ...], range]:
    """Return servers per role, slots, numbers of jobs and seeds."""
    if settings.quick:
        return 12, 100, (30, 60, 90), range(settings.seed, settings.seed + 1)
    return 50, 300, (100, 200, 300, 400), range(settings.seed, settings.seed + 3)


def _measure_row(
    variant: PolicyVariant,
    jobs: int,
    seed: int,
    servers: int,
    slots: int,
    case: str = "chunk",
    wrong: str = "L",
    scale: float | None = None,
    hours: int | None = None,
) -> dict[str, Any]:
    """Run a policy on a case; ``scale`` is the factor of the estimate of U / L, if any."""
    setting = CASES[case]
    if hours is not None:
        setting = replace(setting, slot=Fraction(hours * 3600))
    if scale is not None:
        estimate = {"price_scale": scale, "price_scale_absorbs": wrong}
        choice = replace(variant.choice, settings={**variant.choice.settings, **estimate})
        variant = replace(variant, choice=choice)
    on = cluster(servers, servers, slots, seed, setting.slot)
    table = variant.run(on, workload(on, setting, jobs, slots, seed), slots, seed).jobs
    finished = table["completion"].count()
    return {"policy": variant.key, "utility": table["utility"].sum(), "finished": finished}


def measure_policies(settings: ExperimentSettings) -> Tables:
    """Run every policy on every case with growing numbers of jobs (Fig. 3)."""
    servers, slots, numbers, seeds = _size(settings)
    table = settings.table(
        _measure_row,
        [
            case
            for case in grid(case=CASES, jobs=numbers, seed=seeds, variant=POLICY_VARIANTS)
            # Dorm solves a program at every decision, so it only runs with the first seed.
            if case["variant"].choice.name != "dorm" or case["seed"] == seeds[0]
        ],
        lambda case, jobs, variant, **_: f"{jobs} jobs, {CASES[case].title}, {variant.key}",
        servers=servers,
        slots=slots,
    )
    means = table.group_by("case", "jobs", "policy", maintain_order=True).agg(
        pl.col("utility", "finished").mean()
    )
    return {"utility": table, "means": means}


def draw_policies(tables: Tables, figure: Figure) -> None:
    """Draw one panel per case."""
    table = tables["utility"]
    panels = figure.subplots(1, len(CASES))
    for panel, (name, case) in zip(panels, CASES.items(), strict=True):
        rows = table.filter(case=name)
        for variant in POLICY_VARIANTS:
            mine = rows.filter(policy=variant.key)
            draw_band(panel, mine, "jobs", RANGE_OVER_SEEDS, marker="o", **variant.style)
        panel.set(xlabel="jobs", title=case.title[0].upper() + case.title[1:])
        panel.set_xticks(rows["jobs"].unique().sort().to_list())
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("total utility")
    panels[0].legend(fontsize=8)


def measure_scales(settings: ExperimentSettings) -> Tables:
    """Run OASiS with U / L underestimated and overestimated (Fig. 6), under both readings."""
    servers, slots, numbers, seeds = _size(settings)
    scales = (0.2, 1.0, 10.0) if settings.quick else SCALES
    table = settings.table(
        _measure_row,
        grid(variant=BASES, wrong=READINGS, scale=scales, jobs=numbers, seed=seeds),
        "{jobs} jobs, {variant.key}, {scale:.6g}".format,
        servers=servers,
        slots=slots,
    )
    means = table.group_by("policy", "wrong", "jobs", "scale", maintain_order=True).agg(
        pl.col("utility").mean()
    )
    return {"scales": table, "means": means}


def draw_scales(tables: Tables, figure: Figure) -> None:
    """Draw a column per reading of the paper, and a row per method of estimating L."""
    means = tables["means"]
    panels = figure.subplots(len(BASES), len(READINGS), sharex=True, sharey="row")
    for row, base in zip(panels, BASES, strict=True):
        for panel, (reading, title) in zip(row, READINGS.items(), strict=True):
            rows = means.filter(policy=base.key, wrong=reading)
            curves = rows.sort("scale")
            draw_curves(panel, curves, "jobs", "utility", "scale", text="{:.0%}", marker="o")
            panel.set_title(f"{base.label}: {title}")
            panel.set_xticks(rows["jobs"].unique().sort().to_list())
            panel.set_ylim(bottom=0)
        row[0].set_ylabel("total utility")
    for panel in panels[-1]:
        panel.set_xlabel("jobs")
    panels[0][0].legend(ncols=2, fontsize=9, title="U/L estimated at")


def measure_slots(settings: ExperimentSettings) -> Tables:
    """Run Fig. 3's policies and Fig. 6's estimates of U / L in slots of 1 to 12 hours.

    Dorm is left out, because it solves a program at every decision.
    """
    servers, slots, numbers, seeds = _size(settings)
    variants = [variant for variant in POLICY_VARIANTS if variant.choice.name != "dorm"]
    few, many = numbers[0], numbers[-1]
    wrong = [scale for scale in ((0.2, 10.0) if settings.quick else SCALES) if scale != 1.0]
    table = settings.table(
        _measure_row,
        [
            *grid(hours=HOURS, scale=[None], variant=variants, jobs=(few, many), seed=seeds),
            *grid(hours=HOURS, scale=wrong, variant=BASES, jobs=[many], seed=seeds),
        ],
        "{jobs} jobs, slots of {hours} h, {variant.key}".format,
        servers=servers,
        slots=slots,
    ).with_columns(pl.col("scale").fill_null(1.0))
    means = table.group_by("hours", "policy", "scale", "jobs", maintain_order=True).agg(
        pl.col("utility", "finished").mean()
    )
    return {"slots": table, "means": means}


def draw_slots(tables: Tables, figure: Figure) -> None:
    """Draw utility by the length of a slot: Fig. 3's policies, then Fig. 6's estimates."""
    positions = pl.col("hours").replace_strict(HOURS, range(len(HOURS)))
    means = tables["means"].with_columns(position=positions)
    exact = means.filter(scale=1.0)
    few, many = exact["jobs"].unique().sort().to_list()
    panels = figure.subplots(1, 2 + len(BASES))
    axes = ("position", "utility")
    for panel, jobs in zip(panels, (few, many), strict=False):
        for variant in POLICY_VARIANTS:
            rows = exact.filter(policy=variant.key, jobs=jobs)
            draw_curves(panel, rows, *axes, "policy", marker="o", **variant.style)
        panel.set_title(f"{jobs} jobs")
    panels[0].legend(fontsize=8, loc="upper left")
    for panel, base in zip(panels[2:], BASES, strict=True):
        rows = means.filter(policy=base.key, jobs=many).sort("scale")
        draw_curves(panel, rows, *axes, "scale", text="{:.0%}", marker="o")
        panel.set_title(f"{base.label}, {many} jobs")
    for panel in panels:
        panel.set_xticks(range(len(HOURS)), HOURS)
        panel.set_xlabel("length of a slot in hours")
        panel.set_ylim(bottom=0)  # after all curves, because setting a limit ends autoscaling
    panels[0].set_ylim(top=1.5 * panels[0].get_ylim()[1])  # room for the legend
    panels[2].legend(fontsize=8, title="U/L estimated at", loc="lower left")
    panels[0].set_ylabel("total utility")


# ------------------------------------------------------------------ completion time (Fig. 4)


LATENESS_SLOTS: Final = 100
CLASSES: Final = ("time-sensitive", "time-critical")


def _lateness_rows(
    variant: PolicyVariant, seed: int, each: int, servers: int
) -> list[dict[str, Any]]:
    slots = LATENESS_SLOTS
    on = cluster(servers, servers, slots, seed)
    jobs = merged(
        workload(on, CHUNK, each, slots, 2 * seed, insensitive=0.0, sensitive=1.0),
        workload(on, CHUNK, each, slots, 2 * seed + 1, insensitive=0.0, sensitive=0.0),
    )
    table = variant.run(on, jobs, slots, seed).jobs
    columns = ("job", "class", "late", "utility")
    return table.select(pl.lit(variant.key).alias("policy"), *columns).to_dicts()


def measure_lateness(settings: ExperimentSettings) -> Tables:
    """Run 100 time-sensitive and 100 time-critical jobs (30 of each when quick) in 100 slots."""
    jobs_per_class, servers, runs = (30, 15, 1) if settings.quick else (100, 50, 3)
    table = settings.table(
        _lateness_rows,
        grid(seed=range(settings.seed, settings.seed + runs), variant=POLICY_VARIANTS),
        "seed {seed}, {variant.key}".format,
        dtypes={"late": pl.Float64},
        each=jobs_per_class,
        servers=servers,
    )
    summary = (
        table.group_by("policy", "class", maintain_order=True)
        .agg(
            pl.len().alias("jobs"),
            pl.col("late").is_not_null().sum().alias("finished"),
            (pl.col("late") <= 0).sum().alias("on_time"),
            pl.col("late").mean().alias("mean_late"),
            pl.col("late").median().alias("median_late"),
            pl.col("late").std().alias("deviation"),
            pl.col("utility").sum().alias("utility"),
        )
        .sort("class", maintain_order=True)
    )
    return {"completion": table, "summary": summary}


def draw_lateness(tables: Tables, figure: Figure) -> None:
    """Draw boxes of the completed jobs, with whiskers at 5 and 95 %, and their share."""
    table = tables["completion"]
    panels = figure.subplots(1, 2, sharey=True)
    for panel, kind in zip(panels, CLASSES, strict=True):
        for index, variant in enumerate(POLICY_VARIANTS):
            jobs = table.filter(pl.col("class") == kind, policy=variant.key)
            late = jobs["late"].drop_nulls().to_numpy()
            if len(late):
                face, edge = variant.fill, variant.colour
                parts = draw_box(panel, index, jobs["late"], facecolor=face, edgecolor=edge)
                for line in (*parts["whiskers"], *parts["caps"]):
                    line.set_color(edge)
            share = len(late) / max(len(jobs), 1)
            met = float(np.mean(late <= 0)) * share if len(late) else 0.0
            write_above(panel, index, f"{share:.0%} done\n{met:.0%} on time", 7.5)
        panel.axhline(0, color=PALETTE[6], lw=1)
        _name_policies(panel, 8)
        panel.set(title=f"{kind.capitalize()} jobs")
        panel.margins(y=0.12)
    low, high = panels[0].get_ylim()
    panels[0].set_ylim(low, high + 0.1 * (high - low))
    panels[0].set_ylabel("completion minus target (slots)")


# ------------------------------------------------------------------ testbed (Figs. 7 and 8)


TRIALS: Final = 20
EARLIER_TARGETS: Final = (4, 6)
PAPER_TARGETS: Final = 15
"""Maximum targets in slots; the paper draws targets from [1, 15]."""


def build_testbed_inputs(seed: int) -> tuple[Cluster, list[Job]]:
    """Return the cluster and the jobs of one trial."""
    on = ClusterSpec.model_validate(oasis_testbed_cluster()).resolve("testbed")
    return on, generate(TESTBED, seed=seed).to_jobs(on)


def with_targets_up_to(jobs: Sequence[Job], latest: int) -> list[Job]:
    """Return jobs whose targets are mapped linearly from [1, 15] to [1, ``latest``]."""
    changed = []
    for job in jobs:
        assert isinstance(job.utility, Sigmoid)
        target = 1 + (job.utility.target - 1) * (latest - 1) / (PAPER_TARGETS - 1)
        changed.append(replace(job, utility=replace(job.utility, target=target)))
    return changed


def _testbed_rows(
    variant: PolicyVariant, trial: int, latest_target: int, first_seed: int
) -> list[dict[str, Any]]:
    seed = first_seed + trial
    on, jobs = build_testbed_inputs(seed)
    if latest_target != PAPER_TARGETS:
        jobs = with_targets_up_to(jobs, latest_target)
    table = variant.run(on, jobs, TESTBED.slots, seed).jobs
    columns = ("job", "class", "completion", "late", "utility")
    return table.select(pl.lit(variant.key).alias("policy"), *columns).to_dicts()


def measure_testbed(settings: ExperimentSettings) -> Tables:
    """Run every policy on the testbed's jobs, newly drawn for each trial.

    The table ``differences`` compares the first policy with each other policy, trial by trial: mean
    difference in utility, 95 % interval, and p of a permutation test after Holm's correction.
    """
    trials = _trials(settings)
    jobs_table = _run_trials(settings, (PAPER_TARGETS,))
    trial_table = jobs_table.group_by("policy", "trial", maintain_order=True).agg(
        pl.col("utility").sum()
    )
    summary = (
        jobs_table.group_by("policy", maintain_order=True)
        .agg(
            (pl.col("utility").sum() / trials).alias("utility"),
            pl.col("completion").is_not_null().mean().alias("completed"),
            pl.col("late").mean().alias("mean_late"),
            pl.col("late").median().alias("median_late"),
            pl.col("late").std().alias("deviation"),
        )
        .join(
            trial_table.group_by("policy").agg(
                (pl.col("utility").std() / trials**0.5).alias("standard_error")
            ),
            on="policy",
            maintain_order="left",
        )
    )
    return {
        "jobs": jobs_table,
        "trials": trial_table,
        "summary": summary,
        "differences": _differences(trial_table),
    }


def measure_targets(settings: ExperimentSettings) -> Tables:
    """Run `measure_testbed`, and the same jobs with earlier targets: table ``targets``."""
    tables = measure_testbed(settings)
    earlier = _run_trials(settings, EARLIER_TARGETS)
    jobs = pl.concat([earlier, tables["jobs"]])
    by_range = jobs.group_by("latest_target", "policy", maintain_order=True).agg(
        (pl.col("utility").sum() / _trials(settings)).alias("utility"),
        pl.col("completion").is_not_null().mean().alias("completed"),
        pl.col("late").mean().alias("mean_late"),
        pl.col("late").std().alias("deviation"),
    )
    return {**tables, "targets": by_range}


def _trials(settings: ExperimentSettings) -> int:
    return 3 if settings.quick else TRIALS


def _run_trials(settings: ExperimentSettings, latest: Sequence[int]) -> pl.DataFrame:
    """Return one row for each job of every trial, policy and range of targets."""
    return settings.table(
        _testbed_rows,
        grid(latest_target=latest, trial=range(_trials(settings)), variant=POLICY_VARIANTS),
        lambda trial, variant, latest_target, **_: (
            f"trial {trial + 1}, {variant.key}, targets up to {latest_target}"
        ),
        dtypes={"late": pl.Float64, "completion": pl.Int64},
        first_seed=settings.seed,
    )


def _differences(trials: pl.DataFrame) -> pl.DataFrame:
    """Return the paired differences in utility between the first policy and each other policy."""
    pairs = compare_with_first(samples_by_policy(trials, "utility", "trial"))
    return pl.DataFrame(
        [
            {
                "policy": other,
                "behind": -pair.difference.mean,
                "error": pair.difference.high - pair.difference.mean,
                "p": pair.p,
                "adjusted_p": pair.adjusted,
            }
            for other, pair in pairs.items()
        ]
    )


def draw_testbed_utility(tables: Tables, figure: Figure) -> None:
    """Draw the mean total utility of each policy, with its standard error (Fig. 7)."""
    panel = figure.subplots()
    summary = {row["policy"]: row for row in tables["summary"].iter_rows(named=True)}
    for index, variant in enumerate(POLICY_VARIANTS):
        row = summary[variant.key]
        style: dict[str, Any] = {"color": variant.fill, "edgecolor": variant.colour, "capsize": 3}
        bar = panel.bar(index, row["utility"], 0.65, yerr=row["standard_error"], **style)
        panel.bar_label(bar, fmt="%.0f", padding=3, fontsize=9)
    _name_policies(panel, 9)
    panel.grid(visible=False, axis="x")
    panel.set_ylabel("total utility of 12 jobs")
    panel.margins(y=0.12)


def draw_testbed_lateness(tables: Tables, figure: Figure) -> None:
    """Draw completion minus target of completed jobs, with whiskers at 5 and 95 % (Fig. 8)."""
    panel = figure.subplots()
    for index, variant in enumerate(POLICY_VARIANTS):
        jobs = tables["jobs"].filter(policy=variant.key)
        done = jobs.filter(pl.col("completion").is_not_null())
        draw_box(panel, index, done["late"], facecolor=variant.fill, edgecolor=variant.colour)
        write_above(panel, index, f"{len(done) / len(jobs):.0%} done")
    panel.axhline(0, color="#6B6B6B", lw=1)
    _name_policies(panel, 9)
    panel.grid(visible=False, axis="x")
    panel.set_ylabel("completion minus target (slots)")
    panel.margins(y=0.12)


def _name_policies(panel: Any, size: int) -> None:
    panel.set_xticks(range(len(POLICY_VARIANTS)), [variant.tick for variant in POLICY_VARIANTS])
    panel.tick_params(axis="x", labelsize=size)


# ------------------------------------------------------------------ performance ratio (Fig. 5)


RATIO_SLOTS: Final = 10
RATIO_JOBS: Final = 10
DRAWN: Final = 4000  # drawn jobs, of which `RATIO_JOBS` are chosen
MAX_SLOTS: Final = 6
"""Maximum slots that a chosen job takes alone: with T = 10, it can complete if it arrives by 4."""

RATIO_SERVERS: Final = (3, 6, 9, 12)
SECONDS: Final = 60.0
QUICK_SECONDS: Final = 5.0  # limits of the search for an optimum, in processor time
OFFSET: Final = 0.25  # horizontal distance of the points of two ranges of priorities, in servers
LEAST_VALUES: Final = (1.0, 25.0, 50.0, 75.0)  # minimum priorities; the maximum is always 100


def measure_ratio(settings: ExperimentSettings) -> Tables:
    """Solve problem (1) for 10 jobs in 10 slots, and run OASiS on the same jobs."""
    servers = RATIO_SERVERS[:2] if settings.quick else RATIO_SERVERS
    values = (LEAST_VALUES[0], LEAST_VALUES[-1]) if settings.quick else LEAST_VALUES
    seeds = range(settings.seed, settings.seed + (1 if settings.quick else 3))
    table = settings.table(
        _ratio_row,
        grid(least_value=values, servers=servers, seed=seeds),
        "{servers} servers, values from {least_value:g}".format,
        limit=QUICK_SECONDS if settings.quick else SECONDS,
    )
    ratios = ratios_of_instances(table)
    return {"ratio": table, "ratios": ratios, "summary": summarize(ratios)}


def _ratio_row(least_value: float, servers: int, seed: int, limit: float) -> dict[str, Any]:
    optimum = PolicyVariant(
        "optimum",
        PolicyChoice("optimum", {"time_limit": limit, "clock": "processor"}, "offline optimum"),
    )
    on = cluster(servers - servers // 2, servers // 2, RATIO_SLOTS, seed)
    jobs = draw_jobs(on, (least_value, 100.0), seed)
    runs = {variant.key: variant.run(on, jobs, RATIO_SLOTS, seed) for variant in (optimum, *OASIS)}
    row: dict[str, Any] = {key: run.jobs["utility"].sum() for key, run in runs.items()}
    proof = runs[optimum.key].info["parameters"]
    # If the search reached its time limit, an online schedule may be the best known.
    best = max(row.values())
    return row | {
        "bound": proof["bound"], "proved": proof["proved_optimal"], "best_known": best
    }  # fmt: skip


def ratios_of_instances(table: pl.DataFrame) -> pl.DataFrame:
    """Return the ratios of each instance under each L; infinite if OASiS earns nothing."""
    return pl.concat(
        table.select(
            pl.lit(variant.key).alias("policy"),
            "servers",
            "least_value",
            "seed",
            "proved",
            (pl.col("best_known") / pl.col(variant.key)).alias("ratio"),
            (pl.col("bound") / pl.col(variant.key)).alias("bound_ratio"),
        )
        for variant in OASIS
    )


def summarize(ratios: pl.DataFrame) -> pl.DataFrame:
    """Return quartiles over all instances, each the value of the nearest instance."""
    quartiles = {"lower": 0.25, "median": 0.5, "upper": 0.75}
    return ratios.group_by("policy", maintain_order=True).agg(
        pl.len().alias("instances"),
        pl.col("proved").sum(),
        *(
            pl.col(column).quantile(share, "nearest").alias(f"{column}_{name}")
            for column in ("ratio", "bound_ratio")
            for name, share in quartiles.items()
        ),
    )


def draw_jobs(on: Cluster, value: tuple[float, float], seed: int) -> list[Job]:
    """Choose 10 of many drawn jobs, among those that take at most `MAX_SLOTS` slots alone."""
    drawn = workload(on, CHUNK, DRAWN, RATIO_SLOTS, seed, value=value, arrival_share=0.5)
    fitting = [job for job in drawn if _slots_alone(on, job) <= MAX_SLOTS]
    chosen = np.random.default_rng(seed).choice(len(fitting), RATIO_JOBS, replace=False)
    return [fitting[index] for index in sorted(chosen.tolist())]


def _slots_alone(on: Cluster, job: Job) -> float:
    """Return the number of slots that a job takes if it has all servers to itself."""
    fits = job.worker_counts <= _fit_count(on, on.hosts_workers, job.worker)
    if job.ps is not None:
        fits &= job.ps_counts <= _fit_count(on, on.hosts_ps, job.ps)
    gains = job.gains[fits]
    return math.ceil(job.required / int(gains.max())) if len(gains) else math.inf


def _fit_count(on: Cluster, hosts: NDArray[np.bool_], demand: NDArray[np.int64]) -> int:
    """Return how many processes of a demand fit on the empty servers."""
    requested = demand > 0
    return int((on.capacity[hosts][:, requested] // demand[requested]).min(axis=1).sum())


def draw_ratio(tables: Tables, figure: Figure) -> None:
    """Draw one panel per L: a point per instance, and the median of each range of priorities.

    A point is the utility of the best known schedule over OASiS's. If the optimum isn't proved, a
    line connects the point with the ratio of the upper bound. Instances in which OASiS earns
    nothing aren't drawn.
    """
    table = tables["ratios"]
    values = table["least_value"].unique().sort().to_list()
    panels = figure.subplots(1, len(OASIS), sharey=True)
    for panel, variant in zip(panels, OASIS, strict=True):
        for index, (minimum_value, colour) in enumerate(zip(values, PALETTE, strict=False)):
            mine = table.filter(policy=variant.key, least_value=minimum_value)
            medians = mine.group_by("servers").agg(pl.col("ratio").median()).sort("servers")
            label = f"[{minimum_value:g}, 100]"
            panel.plot(medians["servers"], medians["ratio"], color=colour, label=label)
            shift = OFFSET * (index - (len(values) - 1) / 2)
            drawn = mine.filter(pl.col("ratio").is_finite())
            position = drawn["servers"] + shift
            panel.scatter(position, drawn["ratio"], s=12, color=colour)
            panel.vlines(position, drawn["ratio"], drawn["bound_ratio"], color=colour, lw=1)
        panel.set(xlabel="servers in total", title=variant.label)
        panel.set_xticks(table["servers"].unique().sort().to_list())
        for limit in (1.1, 1.5):  # the range that the paper reports
            panel.axhline(limit, color=PALETTE[6], lw=1, ls=":")
    panels[0].set_ylabel("offline optimum / OASiS")
    panels[0].set_ylim(bottom=1.0)
    panels[0].legend(title="priority in", fontsize=9)


SOURCE = "Bao, Peng, Wu, Li (INFOCOM 2018)"

EXPERIMENTS = (
    Experiment(
        name="oasis-fig3",
        title="Total utility over the number of jobs, under five schedulers",
        source=f"{SOURCE}, Fig. 3",
        reported="OASiS the highest throughout, the more so the more jobs there are (T = 300, "
        "50 + 50 servers, 100 to 400 jobs).",
        measure=measure_policies,
        draw=draw_policies,
        size=(13.5, 4.4),
    ),
    Experiment(
        name="oasis-fig4",
        title="Actual minus target completion time",
        source=f"{SOURCE}, Fig. 4",
        reported="OASiS the closest to zero for both kinds of jobs, with the smallest variance "
        "(100 time-sensitive and 100 time-critical jobs, T = 100).",
        measure=measure_lateness,
        draw=draw_lateness,
        size=(11.0, 4.6),
    ),
    Experiment(
        name="oasis-fig5",
        title="Performance ratio: the offline optimum over what OASiS earns",
        source=f"{SOURCE}, Fig. 5",
        reported="Around 1.1 to 1.5, with no clear trend in servers or in the range of priorities "
        "(10 jobs, T = 10).",
        measure=measure_ratio,
        draw=draw_ratio,
        size=(13.5, 4.4),
    ),
    Experiment(
        name="oasis-fig6",
        title="Total utility with U/L estimated at 20 % to 1000 % of its value",
        source=f"{SOURCE}, Fig. 6",
        reported="Underestimates earn more than overestimates when resources are scarce (T = 300).",
        measure=measure_scales,
        draw=draw_scales,
        size=(11.0, 7.0),
    ),
    Experiment(
        name="oasis-fig7",
        title="Total utility on the testbed, simulated",
        source=f"{SOURCE}, Fig. 7",
        reported="As in Fig. 3, OASiS the highest, by less than in a large system (9 servers, 12 "
        "jobs, T = 10).",
        measure=measure_testbed,
        draw=draw_testbed_utility,
        size=(9.0, 4.4),
    ),
    Experiment(
        name="oasis-fig8",
        title="Actual minus target completion time on the testbed, simulated",
        source=f"{SOURCE}, Fig. 8",
        reported="As in Fig. 4, OASiS the closest to zero (9 servers, 12 jobs, T = 10).",
        measure=measure_targets,
        draw=draw_testbed_lateness,
        size=(9.0, 4.4),
    ),
    Experiment(
        name="oasis-slots",
        title="Total utility in slots of 1 to 12 hours",
        source=f"{SOURCE}, Figs. 3 and 6",
        reported='A slot "can be 1 hour or longer"; the axes of Figs. 3 and 6 go to 8,000.',
        measure=measure_slots,
        draw=draw_slots,
        size=(15.0, 4.4),
    ),
)
