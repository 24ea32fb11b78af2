"""Fig. 4: actual minus target completion time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from shadowprice.experiments.oasis.setting import (
    CHUNK,
    POLICY_VARIANTS,
    cluster,
    merged,
    run,
    workload,
)
from shadowprice.experiments.panels import draw_box, write_above
from shadowprice.experiments.style import PALETTE
from shadowprice.experiments.variants import PolicyVariant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

SLOTS: Final = 100
CLASSES: Final = ("time-sensitive", "time-critical")


def _rows(variant: PolicyVariant, each: int, servers: int, seed: int) -> list[dict[str, object]]:
    on = cluster(servers, servers, SLOTS, seed)
    jobs = merged(
        workload(on, CHUNK, each, SLOTS, 2 * seed, insensitive=0.0, sensitive=1.0),
        workload(on, CHUNK, each, SLOTS, 2 * seed + 1, insensitive=0.0, sensitive=0.0),
    )
    return [
        {
            "policy": variant.key,
            "seed": seed,
            "job": outcome.job.name,
            "class": outcome.job.labels["class"],
            "late": outcome.late,
            "utility": outcome.utility,
        }
        for outcome in run(variant, on, jobs, SLOTS, seed)[0]
    ]


def measure(settings: ExperimentSettings) -> Tables:
    """Run 100 time-sensitive and 100 time-critical jobs (30 of each when quick) in 100 slots."""
    jobs_per_class, servers, runs = (30, 15, 1) if settings.quick else (100, 50, 3)
    results = settings.each(
        _rows,
        [
            (variant, jobs_per_class, servers, settings.seed + index)
            for index in range(runs)
            for variant in POLICY_VARIANTS
        ],
        lambda variant, _each, _servers, seed: f"seed {seed}, {variant.key}",
    )
    rows = [row for rows in results for row in rows]
    table = pl.DataFrame(rows, schema_overrides={"late": pl.Float64})
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


def draw(tables: Tables, figure: Figure) -> None:
    """Draw boxes of the completed jobs, with whiskers at 5 and 95 %, and their share."""
    table = tables["completion"]
    panels = figure.subplots(1, 2, sharey=True)
    for panel, kind in zip(panels, CLASSES, strict=True):
        for index, variant in enumerate(POLICY_VARIANTS):
            jobs = table.filter((pl.col("class") == kind) & (pl.col("policy") == variant.key))
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
        panel.set_xticks(range(len(POLICY_VARIANTS)), [variant.tick for variant in POLICY_VARIANTS])
        panel.tick_params(axis="x", labelsize=8)
        panel.set(title=f"{kind.capitalize()} jobs")
        panel.margins(y=0.12)
    low, high = panels[0].get_ylim()
    panels[0].set_ylim(low, high + 0.1 * (high - low))
    panels[0].set_ylabel("completion minus target (slots)")
