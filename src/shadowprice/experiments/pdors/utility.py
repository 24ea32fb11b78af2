"""Figs. 3.11 and 3.12: utility of co-location."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.experiments.pdors.setting import (
    EXACT,
    LITERAL,
    OASIS,
    PDORS,
    SLOT,
    cluster,
    run,
    workload,
)
from shadowprice.experiments.style import PALETTE, POLICY_COLOURS
from shadowprice.experiments.variants import PolicyVariant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

COLOURS: Final = {
    "pdors": POLICY_COLOURS["pdors"],
    "pdors-exact": PALETTE[4],
    "pdors-literal": PALETTE[3],
    "oasis": POLICY_COLOURS["oasis"],
}
MARKERS: Final = {"pdors": "o", "pdors-exact": "x", "pdors-literal": "s", "oasis": "^"}
LABELS: Final = {at.key: at.label for at in (PDORS, EXACT, LITERAL, OASIS)}

JOBS: Final = (5, 10, 15, 20, 25, 30)
SLOT_SECONDS: Final = (20, 60, 120, 300, 600, 1200)
RATIOS: Final = (1, 2, 5, 10, 15, 20, 30, 40, 50, 60)


def _row(
    variant: PolicyVariant, machines: int, slots: int, jobs: int, ratio: float, slot: int, seed: int
) -> dict[str, object]:
    on = cluster(machines, slots, Fraction(slot), seed)
    outcome = run(variant, on, workload(on, jobs, slots, ratio=ratio, seed=seed), slots, seed)
    return {
        "policy": variant.key,
        "jobs": jobs,
        "ratio": ratio,
        "slot_seconds": slot,
        "seed": seed,
        "utility": outcome.utility,
        "finished": outcome.finished,
        "colocated": outcome.colocated,
        "alpha": outcome.guarantee["alpha"],
        "ratio_proved": outcome.guarantee["ratio"],
        "optimum_at_most": outcome.guarantee["optimum_at_most"],
    }


def _label(
    variant: PolicyVariant, _machines: int, _slots: int, jobs: int, ratio: float, *_: object
) -> str:
    return f"{jobs} jobs, ratio {ratio:g}, {variant.key}"


def measure_jobs(settings: ExperimentSettings) -> Tables:
    """Run 30 machines over 100 slots with 5 to 30 jobs, and 15 jobs at several slot lengths."""
    seeds = range(settings.seed, settings.seed + (4 if settings.quick else 30))
    minute = int(SLOT)
    cases = [
        ("utility", variant, jobs, minute, seed)
        for jobs in JOBS
        for seed in seeds
        for variant in (PDORS, EXACT, LITERAL, OASIS)
    ]
    cases += [
        ("slot_lengths", variant, 15, slot, seed)
        for slot in SLOT_SECONDS
        for seed in seeds
        for variant in (PDORS, LITERAL, OASIS)
    ]
    tables: dict[str, list[dict[str, object]]] = {"utility": [], "slot_lengths": []}
    results = settings.each(
        _row,
        [(variant, 30, 100, jobs, 40.0, slot, seed) for _, variant, jobs, slot, seed in cases],
        _label,
    )
    for (table, *_), row in zip(cases, results, strict=True):
        tables[table].append(row)
    frames = {name: pl.DataFrame(rows) for name, rows in tables.items()}
    return {**frames, "theorem": _theorem(frames["utility"])}


def _theorem(table: pl.DataFrame) -> pl.DataFrame:
    """Return the proved ratio, and the largest possible one, by number of jobs."""
    return table.group_by("policy", "jobs", maintain_order=True).agg(
        pl.col("alpha", "ratio_proved").mean(),
        (pl.col("optimum_at_most").sum() / pl.col("utility").sum()).alias("ratio_at_most"),
        (pl.col("optimum_at_most") / pl.col("utility")).max().alias("ratio_at_most_worst"),
    )


def draw_jobs(tables: Tables, figure: Figure) -> None:
    """Draw utility over jobs, and PD-ORS's over OASiS's by the length of a slot."""
    left, right = figure.subplots(1, 2)
    _curves(left, tables["utility"], "jobs", (PDORS, EXACT, LITERAL, OASIS))
    left.set(xlabel="jobs", ylabel="total utility", title="30 machines, 100 slots of a minute")
    left.set_ylim(bottom=0)
    left.legend()
    lengths = tables["slot_lengths"]
    base = (
        lengths.filter(pl.col("policy") == "oasis")
        .group_by("slot_seconds")
        .agg(pl.col("utility").sum().alias("base"))
    )
    for key in ("pdors", "pdors-literal"):
        rows = (
            lengths.filter(pl.col("policy") == key)
            .group_by("slot_seconds")
            .agg(pl.col("utility").sum())
            .join(base, on="slot_seconds")
            .sort("slot_seconds")
        )
        relative = (rows["utility"] / rows["base"]).to_numpy()
        right.plot(
            rows["slot_seconds"].to_numpy(),
            relative,
            marker=MARKERS[key],
            color=COLOURS[key],
            label=LABELS[key],
        )
        for x, y in zip(rows["slot_seconds"], relative, strict=True):
            if key == "pdors":
                right.annotate(
                    f"{y:.1f}", (x, y), textcoords="offset points", xytext=(5, 5), fontsize=9
                )
    right.axhline(7, color=PALETTE[6], linestyle="--", linewidth=1)
    right.text(1300, 7.3, "thesis: more than 7", ha="right", fontsize=9, color=PALETTE[6])
    right.set_xscale("log")
    right.set_xticks(SLOT_SECONDS, [str(seconds) for seconds in SLOT_SECONDS])
    right.minorticks_off()
    right.set(
        xlabel="length of a slot in seconds (the thesis names none)",
        ylabel="utility over OASiS's",
        title="15 jobs",
    )
    right.set_ylim(0, None)
    right.margins(x=0.08, y=0.12)
    right.legend()


def measure_ratios(settings: ExperimentSettings) -> Tables:
    """Run 20 machines over 50 slots with 20 jobs at ratios of 1 to 60."""
    seeds = range(settings.seed, settings.seed + (6 if settings.quick else 40))
    combinations = [
        (variant, ratio, seed)
        for ratio in RATIOS
        for seed in seeds
        for variant in (PDORS, LITERAL, OASIS)
    ]
    cases = [
        (variant, 20, 50, 20, float(ratio), int(SLOT), seed)
        for variant, ratio, seed in combinations
    ]
    return {"utility": pl.DataFrame(settings.each(_row, cases, _label))}


def draw_ratios(tables: Tables, figure: Figure) -> None:
    """Draw utility, and the share of co-located slots, over the ratio."""
    left, right = figure.subplots(1, 2)
    table = tables["utility"]
    _curves(left, table, "ratio", (PDORS, LITERAL, OASIS))
    left.set(
        xlabel="internal over external bandwidth",
        ylabel="total utility",
        title="20 jobs, 20 machines, 50 slots of a minute",
    )
    left.set_ylim(bottom=0)
    left.legend()
    _curves(right, table, "ratio", (PDORS, LITERAL), value="colocated")
    right.set(
        xlabel="internal over external bandwidth",
        ylabel="share of running slots on one machine",
        title="Co-location",
    )
    right.set_ylim(-0.02, 1.05)


def _curves(
    axes: Axes,
    table: pl.DataFrame,
    over: str,
    variants: Sequence[PolicyVariant],
    value: str = "utility",
) -> None:
    """Draw means over seeds with their standard errors."""
    for variant in variants:
        key = variant.key
        statistics = (
            table.filter(pl.col("policy") == key)
            .with_columns(pl.col(value).fill_nan(None))
            .group_by(over)
            .agg(
                pl.col(value).mean().alias("mean"),
                (pl.col(value).std() / pl.len().sqrt()).alias("error"),
            )
            .sort(over)
        )
        x, mean, error = (statistics[name].to_numpy() for name in (over, "mean", "error"))
        style: dict[str, Any] = {"color": COLOURS[key], "marker": MARKERS[key]}
        if key == "pdors-exact":
            style["linestyle"] = ":"
        axes.plot(x, mean, label=variant.label, **style)
        band = np.nan_to_num(error)
        axes.fill_between(x, mean - band, mean + band, color=COLOURS[key], alpha=0.15, linewidth=0)
