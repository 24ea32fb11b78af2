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

WIDE: Final = (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6)
"""Estimates that are off by orders of magnitude."""


def _size(settings: Settings) -> tuple[int, int, tuple[int, ...], range]:
    """Return servers of each kind, slots, numbers of jobs and seeds."""
    if settings.quick:
        return 12, 100, (30, 60, 90), range(settings.seed, settings.seed + 1)
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
        if scheme.policy != "dorm" or seed == seeds[0]  # a program a decision takes its time
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
    """Run OASiS with U / L estimated too low and too high (Fig. 6).

    The paper's estimates go with every number of jobs; estimates off by orders of magnitude with
    the largest, from either L.
    """
    servers, slots, numbers, seeds = _size(settings)
    scales = (0.2, 1.0, 10.0) if settings.quick else SCALES
    asked = [
        ("scales", CLEARING, scale, jobs, seed)
        for jobs in numbers
        for seed in seeds
        for scale in scales
    ]
    asked += [
        ("wide", base, scale, numbers[-1], seed)
        for base in (CLEARING, THEORY)
        for seed in seeds
        for scale in WIDE
    ]
    tables: dict[str, list[dict[str, Any]]] = {"scales": [], "wide": []}
    for at, (table, base, scale, jobs, seed) in enumerate(asked):
        settings.progress(at, len(asked), f"{jobs} jobs, {base.key}, {scale:.6g}")
        parameters = {**base.parameters, "price_scale": scale}
        scheme = Scheme(base.key, base.label, base.policy, parameters)
        row = _row(scheme, "calibrated", servers, slots, jobs, seed)
        tables[table].append({**row, "scale": scale})
    return {name: pl.DataFrame(rows) for name, rows in tables.items()}


def draw_scales(tables: Tables, figure: Figure) -> None:
    """Draw what the paper's estimates change, and what far wronger ones do."""
    left, right = figure.subplots(1, 2)
    mean = tables["scales"].group_by("jobs", "scale").agg(pl.col("utility").mean()).sort("jobs")
    exact = mean.filter(pl.col("scale") == 1.0)["utility"].to_numpy()
    for colour, scale in zip(PALETTE, mean["scale"].unique().sort(), strict=False):
        mine = mean.filter(pl.col("scale") == scale)
        left.plot(
            mine["jobs"].to_numpy(),
            100.0 * (mine["utility"].to_numpy() / exact - 1.0),
            marker="o",
            color=colour,
            label=f"{scale:.0%}",
        )
    left.set(xlabel="jobs", ylabel="change of total utility (%)", title="U/L estimated at")
    left.set_xticks(mean["jobs"].unique().sort().to_list())
    left.legend(ncols=2, fontsize=9)
    wide = tables["wide"]
    for base in (CLEARING, THEORY):
        _curve(
            right,
            wide.filter(pl.col("policy") == base.key),
            base.label,
            base.colour,
            "--" if base.dashed else "-",
            over="scale",
        )
    jobs = int(wide["jobs"][0])
    right.set(xlabel="estimate of U/L over its value", ylabel="total utility", title=f"{jobs} jobs")
    right.set_xscale("log")
    right.set_ylim(bottom=0)
    right.legend(fontsize=9)


def _curve(
    panel: Axes, rows: pl.DataFrame, label: str, colour: str, line: str, *, over: str = "jobs"
) -> None:
    """Draw the mean over seeds, and the range between the least and the largest."""
    found = (
        rows.group_by(over)
        .agg(
            pl.col("utility").mean().alias("mean"),
            pl.col("utility").min().alias("least"),
            pl.col("utility").max().alias("most"),
        )
        .sort(over)
    )
    x = found[over].to_numpy()
    panel.plot(x, found["mean"].to_numpy(), line, marker="o", color=colour, label=label)
    panel.fill_between(
        x, found["least"].to_numpy(), found["most"].to_numpy(), color=colour, alpha=0.12, lw=0
    )
