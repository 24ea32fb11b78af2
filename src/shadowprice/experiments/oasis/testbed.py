"""Figs. 7 and 8: the testbed's servers and jobs, under a driver.

The workload is separate from the driver. `declared` gives the cluster and the jobs that
``shadowprice generate --preset testbed`` writes to files, and `measure` passes them to any driver.
Here the driver is the simulator; on a real cluster only the driver differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.core.specs import ClusterSpec
from shadowprice.core.utility import Sigmoid
from shadowprice.experiments.oasis.setting import POLICY_VARIANTS, JobResult, run
from shadowprice.experiments.panels import draw_box, write_above
from shadowprice.experiments.variants import PolicyVariant, samples_by_policy
from shadowprice.results.significance import compare_with_first
from shadowprice.traces.generator import GeneratorOptions, generate
from shadowprice.traces.testbed import JOBS, SLOT, SLOTS, oasis_testbed_cluster

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.core.cluster import Cluster
    from shadowprice.core.job import Job
    from shadowprice.experiments.framework import ExperimentSettings, Tables

Drive = Callable[[PolicyVariant, "Cluster", Sequence["Job"], int, int], Sequence[JobResult]]
"""Takes a policy, the cluster, its jobs, the slots and a seed; returns every job's result."""

TRIALS: Final = 20
LATEST_TARGETS: Final = (4, 6, 15)
"""Ends of the ranges of targets, [1, end] slots; the paper draws from [1, 15]."""
_DRAWN: Final = LATEST_TARGETS[-1]


def declared(seed: int) -> tuple[Cluster, list[Job]]:
    """Return the cluster and the jobs of one trial."""
    on = ClusterSpec.model_validate(oasis_testbed_cluster()).resolve("testbed")
    options = GeneratorOptions(preset="testbed", jobs=JOBS, slots=SLOTS, slot_seconds=SLOT)
    return on, generate(options, seed=seed).to_jobs(on)


def simulated(
    variant: PolicyVariant, on: Cluster, jobs: Sequence[Job], slots: int, seed: int
) -> Sequence[JobResult]:
    """Run a policy in the simulator."""
    return run(variant, on, jobs, slots, seed)[0]


def with_targets_up_to(jobs: Sequence[Job], latest: int) -> list[Job]:
    """Return jobs whose targets are mapped from [1, 15] to [1, ``latest``], in the same order."""
    changed = []
    for job in jobs:
        assert isinstance(job.utility, Sigmoid)
        target = 1 + (job.utility.target - 1) * (latest - 1) / (_DRAWN - 1)
        changed.append(replace(job, utility=replace(job.utility, target=target)))
    return changed


def _rows(
    drive: Drive, variant: PolicyVariant, trial: int, seed: int, latest: int = _DRAWN
) -> list[dict[str, Any]]:
    on, jobs = declared(seed)
    if latest != _DRAWN:
        jobs = with_targets_up_to(jobs, latest)
    return [
        {
            "policy": variant.key,
            "latest_target": latest,
            "trial": trial,
            "job": outcome.job.name,
            "class": outcome.job.labels["class"],
            "completion": outcome.completion,
            "late": outcome.late,
            "utility": outcome.utility,
        }
        for outcome in drive(variant, on, jobs, SLOTS, seed)
    ]


def measure(settings: ExperimentSettings, drive: Drive = simulated) -> Tables:
    """Run every policy on the testbed's jobs, newly drawn for each trial; ``drive`` runs them.

    The table ``differences`` has the utility of the first policy less that of each other one, by
    trial: mean, 95 % interval, and p of a permutation test after Holm's correction.
    """
    trials = _trials(settings)
    jobs_table = _run_trials(settings, drive, (_DRAWN,))
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


def measure_targets(settings: ExperimentSettings, drive: Drive = simulated) -> Tables:
    """Run `measure`, and the same jobs with earlier targets: table ``targets``."""
    tables = measure(settings, drive)
    earlier = _run_trials(settings, drive, LATEST_TARGETS[:-1])
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


def _run_trials(settings: ExperimentSettings, drive: Drive, latest: Sequence[int]) -> pl.DataFrame:
    """Return one row for each job of every trial, policy and range of targets."""
    results = settings.each(
        _rows,
        [
            (drive, variant, trial, settings.seed + trial, end)
            for end in latest
            for trial in range(_trials(settings))
            for variant in POLICY_VARIANTS
        ],
        lambda _drive, variant, trial, _seed, end: (
            f"trial {trial + 1}, {variant.key}, targets up to {end}"
        ),
    )
    rows = [row for rows in results for row in rows]
    return pl.DataFrame(rows, schema_overrides={"late": pl.Float64, "completion": pl.Int64})


def _differences(trials: pl.DataFrame) -> pl.DataFrame:
    """Return the paired differences of each policy's utility to that of the first one."""
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


def draw_utility(tables: Tables, figure: Figure) -> None:
    """Draw the mean total utility of each policy, with its standard error (Fig. 7)."""
    panel = figure.subplots()
    summary = {row["policy"]: row for row in tables["summary"].iter_rows(named=True)}
    for index, variant in enumerate(POLICY_VARIANTS):
        row = summary[variant.key]
        bar = panel.bar(
            index,
            row["utility"],
            0.65,
            yerr=row["standard_error"],
            color=variant.fill,
            edgecolor=variant.colour,
            capsize=3,
        )
        panel.bar_label(bar, fmt="%.0f", padding=3, fontsize=9)
    _name(panel)
    panel.set_ylabel("total utility of 12 jobs")
    panel.margins(y=0.12)


def draw_lateness(tables: Tables, figure: Figure) -> None:
    """Draw completion minus target of completed jobs, with whiskers at 5 and 95 % (Fig. 8)."""
    panel = figure.subplots()
    for index, variant in enumerate(POLICY_VARIANTS):
        jobs = tables["jobs"].filter(pl.col("policy") == variant.key)
        done = jobs.filter(pl.col("completion").is_not_null())
        draw_box(panel, index, done["late"], facecolor=variant.fill, edgecolor=variant.colour)
        write_above(panel, index, f"{len(done) / len(jobs):.0%} done")
    panel.axhline(0, color="#6B6B6B", lw=1)
    _name(panel)
    panel.set_ylabel("completion minus target (slots)")
    panel.margins(y=0.12)


def _name(panel: Any) -> None:
    panel.set_xticks(range(len(POLICY_VARIANTS)), [variant.tick for variant in POLICY_VARIANTS])
    panel.tick_params(axis="x", labelsize=9)
    panel.grid(visible=False, axis="x")
