"""Fig. 3 and Fig. 6: total utility over the number of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.experiments.oasis.setting import (
    CLEARING,
    PRESETS,
    SCHEMES,
    THEORY,
    Scheme,
    cluster,
    run,
    workload,
)
from shadowprice.experiments.style import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import Settings, Tables
    from shadowprice.traces.generator import Preset

SCALES: Final = (0.2, 0.5, 1.0, 3.0, 5.0, 10.0)
"""Estimates of U / L as a share of the actual ratio, those of the paper's Fig. 6."""


def _size(settings: Settings) -> tuple[int, int, tuple[int, ...], range]:
    """Return servers of each kind, slots, numbers of jobs and seeds."""
    if settings.quick:
        return 20, 100, (50, 100, 150), range(settings.seed, settings.seed + 1)
    return 50, 300, (100, 200, 300, 400), range(settings.seed, settings.seed + 3)


def _row(
    scheme: Scheme, preset: Preset, servers: int, slots: int, jobs: int, seed: int
) -> dict[str, Any]:
    on = cluster(servers, servers, slots, seed)
    outcomes, _ = run(scheme, on, workload(on, preset, jobs, slots, seed), slots, seed)
    return {
        "preset": preset,
        "policy": scheme.key,
        "jobs": jobs,
        "seed": seed,
        "utility": sum(outcome.utility for outcome in outcomes),
        "finished": sum(outcome.completion is not None for outcome in outcomes),
    }


def measure_schemes(settings: Settings) -> Tables:
    """Run every scheme on both presets with growing numbers of jobs (Fig. 3)."""
    servers, slots, numbers, seeds = _size(settings)
    asked = [
        (scheme, preset, jobs, seed)
        for preset in PRESETS
        for jobs in numbers
        for seed in seeds
        for scheme in SCHEMES
    ]
    rows = []
    for at, (scheme, preset, jobs, seed) in enumerate(asked):
        settings.progress(at, len(asked), f"{jobs} jobs, {preset}, {scheme.key}")
        rows.append(_row(scheme, preset, servers, slots, jobs, seed))
    return {"utility": pl.DataFrame(rows)}


def draw_schemes(tables: Tables, figure: Figure) -> None:
    """Draw one panel a preset."""
    table = tables["utility"]
    panels = figure.subplots(1, len(PRESETS))
    for panel, (preset, title) in zip(panels, PRESETS.items(), strict=True):
        mine = table.filter(pl.col("preset") == preset)
        for scheme in SCHEMES:
            _curve(
                panel,
                mine.filter(pl.col("policy") == scheme.key),
                scheme.label,
                scheme.colour,
                "--" if scheme.dashed else "-",
            )
        panel.set(xlabel="jobs", ylabel="total utility", title=title.capitalize())
        panel.set_xticks(mine["jobs"].unique().sort().to_list())
        panel.set_ylim(bottom=0)
    panels[0].legend(fontsize=9)


def measure_scales(settings: Settings) -> Tables:
    """Run OASiS with U / L at 20 % to 1000 % of what it is, from either L (Fig. 6)."""
    servers, slots, numbers, seeds = _size(settings)
    scales = (0.2, 1.0, 10.0) if settings.quick else SCALES
    asked = [
        (base, scale, jobs, seed)
        for base in (CLEARING, THEORY)
        for jobs in numbers
        for seed in seeds
        for scale in scales
    ]
    rows = []
    for at, (base, scale, jobs, seed) in enumerate(asked):
        settings.progress(at, len(asked), f"{jobs} jobs, {base.key}, {scale:.0%}")
        parameters = {**base.parameters, "price_scale": scale}
        scheme = Scheme(base.key, base.label, base.policy, parameters)
        row = _row(scheme, "calibrated", servers, slots, jobs, seed)
        rows.append({**row, "scale": scale})
    return {"scales": pl.DataFrame(rows)}


def draw_scales(tables: Tables, figure: Figure) -> None:
    """Draw one panel for each L."""
    table = tables["scales"]
    panels = figure.subplots(1, 2)
    scales = table["scale"].unique().sort().to_list()
    for panel, base in zip(panels, (CLEARING, THEORY), strict=True):
        mine = table.filter(pl.col("policy") == base.key)
        for colour, scale in zip(PALETTE, scales, strict=False):
            _curve(panel, mine.filter(pl.col("scale") == scale), f"{scale:.0%}", colour, "-")
        panel.set(xlabel="jobs", ylabel="total utility", title=base.label)
        panel.set_xticks(mine["jobs"].unique().sort().to_list())
        panel.set_ylim(bottom=0)
    panels[0].legend(title="U/L estimated at", fontsize=9)


def _curve(panel: Axes, rows: pl.DataFrame, label: str, colour: str, line: str) -> None:
    """Draw the mean over seeds, and the range between the least and the largest."""
    over = (
        rows.group_by("jobs")
        .agg(
            pl.col("utility").mean().alias("mean"),
            pl.col("utility").min().alias("least"),
            pl.col("utility").max().alias("most"),
        )
        .sort("jobs")
    )
    jobs = over["jobs"].to_numpy()
    panel.plot(jobs, over["mean"].to_numpy(), line, marker="o", color=colour, label=label)
    panel.fill_between(
        jobs, over["least"].to_numpy(), over["most"].to_numpy(), color=colour, alpha=0.12, lw=0
    )
