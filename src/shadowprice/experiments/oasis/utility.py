"""Total utility by policy (Fig. 3), by error of the estimate of U / L (Fig. 6), and by slot length.

The paper doesn't vary the slot length.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.experiments.oasis.setting import (
    CASES,
    CHUNK,
    CLEARING,
    GUARANTEED,
    POLICY_VARIANTS,
    WorkloadCase,
    cluster,
    run,
    workload,
)
from shadowprice.experiments.style import PALETTE
from shadowprice.experiments.variants import PolicyVariant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

SCALES: Final = (0.2, 0.5, 1.0, 3.0, 5.0, 10.0)
"""Estimates of U / L relative to the actual ratio, as in the paper's Fig. 6."""

READINGS: Final = {"L": "U exact, L wrong", "U": "L exact, U wrong"}
"""Which constant a wrong estimate of U / L makes wrong; the paper does not say."""

BASES: Final = (CLEARING, GUARANTEED)

HOURS: Final = (1, 2, 4, 12)  # lengths of a slot; section III says "1 hour or longer"


def _size(settings: ExperimentSettings) -> tuple[int, int, tuple[int, ...], range]:
    """Return servers of each kind, slots, numbers of jobs and seeds."""
    if settings.quick:
        return 12, 100, (30, 60, 90), range(settings.seed, settings.seed + 1)
    return 50, 300, (100, 200, 300, 400), range(settings.seed, settings.seed + 3)


def _measure_row(
    variant: PolicyVariant, case: WorkloadCase, servers: int, slots: int, jobs: int, seed: int
) -> dict[str, Any]:
    on = cluster(servers, servers, slots, seed, case.slot)
    outcomes, _ = run(variant, on, workload(on, case, jobs, slots, seed), slots, seed)
    return {
        "policy": variant.key,
        "jobs": jobs,
        "seed": seed,
        "utility": sum(outcome.utility for outcome in outcomes),
        "finished": sum(outcome.completion is not None for outcome in outcomes),
    }


def _label(
    variant: PolicyVariant, case: WorkloadCase, _servers: int, _slots: int, jobs: int, _seed: int
) -> str:
    return f"{jobs} jobs, {case.title}, {variant.key}"


def _with_estimate(base: PolicyVariant, scale: float, reading: str) -> PolicyVariant:
    """Return OASiS with U / L estimated at a multiple of its value."""
    wrong = {"price_scale": scale, "price_scale_absorbs": reading}
    return replace(base, choice=replace(base.choice, settings={**base.choice.settings, **wrong}))


def measure_policies(settings: ExperimentSettings) -> Tables:
    """Run every policy on every case with growing numbers of jobs (Fig. 3)."""
    servers, slots, numbers, seeds = _size(settings)
    cases = [
        (variant, name, jobs, seed)
        for name, jobs, seed, variant in product(CASES, numbers, seeds, POLICY_VARIANTS)
        if variant.choice.name != "dorm" or seed == seeds[0]  # Dorm solves a program per decision
    ]
    results = settings.each(
        _measure_row,
        [(variant, CASES[name], servers, slots, jobs, seed) for variant, name, jobs, seed in cases],
        _label,
    )
    table = pl.DataFrame(
        [{"case": name, **row} for (_, name, *_), row in zip(cases, results, strict=True)]
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
        rows = table.filter(pl.col("case") == name)
        for variant in POLICY_VARIANTS:
            _curve(panel, rows.filter(pl.col("policy") == variant.key), variant)
        panel.set(xlabel="jobs", title=case.title[0].upper() + case.title[1:])
        panel.set_xticks(rows["jobs"].unique().sort().to_list())
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("total utility")
    panels[0].legend(fontsize=8)


def measure_scales(settings: ExperimentSettings) -> Tables:
    """Run OASiS with U / L underestimated and overestimated (Fig. 6), under both readings."""
    servers, slots, numbers, seeds = _size(settings)
    scales = (0.2, 1.0, 10.0) if settings.quick else SCALES
    combinations = list(product(BASES, READINGS, scales, numbers, seeds))
    cases = []
    for base, reading, scale, jobs, seed in combinations:
        cases.append((_with_estimate(base, scale, reading), CHUNK, servers, slots, jobs, seed))
    results = settings.each(
        _measure_row,
        cases,
        lambda variant, _case, _servers, _slots, jobs, _seed: (
            f"{jobs} jobs, {variant.key}, {variant.choice.settings['price_scale']:.6g}"
        ),
    )
    table = pl.DataFrame(
        [
            {"wrong": reading, "scale": scale, **row}
            for (_, reading, scale, _, _), row in zip(combinations, results, strict=True)
        ]
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
            rows = means.filter((pl.col("policy") == base.key) & (pl.col("wrong") == reading))
            for colour, scale in zip(PALETTE, rows["scale"].unique().sort(), strict=False):
                curve = rows.filter(pl.col("scale") == scale).sort("jobs")
                panel.plot(
                    curve["jobs"].to_numpy(),
                    curve["utility"].to_numpy(),
                    marker="o",
                    color=colour,
                    label=f"{scale:.0%}",
                )
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
    numbers = (numbers[0], numbers[-1])
    variants = [(variant, 1.0) for variant in POLICY_VARIANTS if variant.choice.name != "dorm"] + [
        (_with_estimate(base, scale, "L"), scale)
        for base in BASES
        for scale in ((0.2, 10.0) if settings.quick else SCALES)
        if scale != 1.0
    ]
    cases = [
        (hours, scale, variant, jobs, seed)
        for hours, (variant, scale), jobs, seed in product(HOURS, variants, numbers, seeds)
        if scale == 1.0 or jobs == numbers[-1]
    ]
    results = settings.each(
        _measure_row,
        [
            (variant, _chunk_case(hours), servers, slots, jobs, seed)
            for hours, _, variant, jobs, seed in cases
        ],
        _label,
    )
    table = pl.DataFrame(
        [
            {"hours": hours, "scale": scale, **row}
            for (hours, scale, *_), row in zip(cases, results, strict=True)
        ]
    )
    means = table.group_by("hours", "policy", "scale", "jobs", maintain_order=True).agg(
        pl.col("utility", "finished").mean()
    )
    return {"slots": table, "means": means}


def _chunk_case(hours: int) -> WorkloadCase:
    """Return the jobs of `CHUNK` in slots of another length."""
    return replace(CHUNK, title=f"slots of {hours} h", slot=Fraction(hours * 3600))


def draw_slots(tables: Tables, figure: Figure) -> None:
    """Draw utility by the length of a slot: Fig. 3's policies, then Fig. 6's estimates."""
    means = tables["means"]
    exact = means.filter(pl.col("scale") == 1.0)
    few, many = exact["jobs"].unique().sort().to_list()
    panels = figure.subplots(1, 2 + len(BASES))
    for panel, jobs in zip(panels, (few, many), strict=False):
        for variant in POLICY_VARIANTS:
            rows = exact.filter((pl.col("policy") == variant.key) & (pl.col("jobs") == jobs)).sort(
                "hours"
            )
            if len(rows):
                _by_hours(panel, rows, variant.line, color=variant.colour, label=variant.label)
        panel.set_title(f"{jobs} jobs")
    panels[0].legend(fontsize=8, loc="upper left")
    for panel, base in zip(panels[2:], BASES, strict=True):
        rows = means.filter((pl.col("policy") == base.key) & (pl.col("jobs") == many))
        for colour, scale in zip(PALETTE, rows["scale"].unique().sort(), strict=False):
            curve = rows.filter(pl.col("scale") == scale).sort("hours")
            _by_hours(panel, curve, "-", color=colour, label=f"{scale:.0%}")
        panel.set_title(f"{base.label}, {many} jobs")
    for panel in panels:  # after all curves, because a limit ends the scaling to their data
        panel.set_ylim(bottom=0)
    panels[0].set_ylim(top=1.5 * panels[0].get_ylim()[1])  # room for the legend
    panels[2].legend(fontsize=8, title="U/L estimated at", loc="lower left")
    panels[0].set_ylabel("total utility")


def _by_hours(panel: Axes, rows: pl.DataFrame, line: str, **style: Any) -> None:
    x = [HOURS.index(hours) for hours in rows["hours"]]
    panel.plot(x, rows["utility"].to_numpy(), line, marker="o", **style)
    panel.set_xticks(range(len(HOURS)), [str(hours) for hours in HOURS])
    panel.set_xlabel("length of a slot in hours")


def _curve(panel: Axes, rows: pl.DataFrame, variant: PolicyVariant) -> None:
    """Draw the mean over seeds, and the range from the minimum to the maximum."""
    statistics = (
        rows.group_by("jobs")
        .agg(
            pl.col("utility").mean().alias("mean"),
            pl.col("utility").min().alias("least"),
            pl.col("utility").max().alias("most"),
        )
        .sort("jobs")
    )
    x = statistics["jobs"].to_numpy()
    panel.plot(
        x,
        statistics["mean"].to_numpy(),
        variant.line,
        marker="o",
        color=variant.colour,
        label=variant.label,
    )
    minimum, maximum = statistics["least"].to_numpy(), statistics["most"].to_numpy()
    panel.fill_between(x, minimum, maximum, color=variant.colour, alpha=0.12, lw=0)
