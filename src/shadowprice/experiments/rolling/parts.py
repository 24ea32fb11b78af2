"""What the parts of `rolling` bring, what restarts cost, and what wrong statements of work do."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from shadowprice.experiments.rolling.setting import (
    ROLLING,
    SCHEMES,
    Scheme,
    Workload,
    misstated,
    restarting,
    run,
    workloads,
)
from shadowprice.experiments.style import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import Settings, Tables

PARTS: Final = (
    ROLLING,
    Scheme("plans do not move", "rolling", {"revision": False}),
    Scheme("promises are free", "rolling", {"prices": "given"}),
    Scheme("what is left is not dealt out", "rolling", {"spare": False}),
    Scheme("no standby", "rolling", {"standby": False}),
    Scheme("no promises", "rolling", {"prices": "given", "price": 1e12}),
)
RESTARTS: Final = (30, 300)
"""Seconds that a job loses when it moves."""

FACTORS: Final[Mapping[str, float]] = {"stated right": 1.0, "up to 1.5": 1.5, "up to 2": 2.0}
"""How far the work may be from what was stated, either way."""

LEARNING: Final = ("rolling", "oasis", "rrh", "elasticflow", "srtf", "las", "drf")


def _few(settings: Settings) -> list[Workload]:
    """Return some of the workloads: parts of one are much the same on all."""
    some = {"ITP cluster03", "ITP cluster05", "Philly 103959", "generated: calibrated"}
    return [one for one in workloads(quick=settings.quick) if one.name in some]


def measure_parts(settings: Settings) -> Tables:
    """Run `rolling` without its parts, one at a time, and with restarts."""
    asked = _few(settings)
    rows = []
    for at, workload in enumerate(asked):
        settings.progress(at, len(asked), workload.name)
        scenario = workload.scenario(settings.seed)
        rows += [{"workload": workload.name, **run(scenario, scheme)} for scheme in PARTS]
        for seconds in RESTARTS:
            if seconds > scenario.cluster.slot_seconds:
                continue
            again = restarting(scenario, seconds)
            scheme = Scheme(f"restarts of {seconds} s", "rolling")
            rows.append({"workload": workload.name, **run(again, scheme)})
    return {"parts": pl.DataFrame(rows, infer_schema_length=None)}


def measure_misstated(settings: Settings) -> Tables:
    """Run policies on jobs whose work is not what they state."""
    asked = list(product(_few(settings), FACTORS.items()))
    rows = []
    for at, (workload, (name, factor)) in enumerate(asked):
        settings.progress(at, len(asked), f"{workload.name}, {name}")
        scenario = misstated(workload.scenario(settings.seed), factor)
        rows += [
            {"workload": workload.name, "work": name, **run(scenario, scheme)}
            for scheme in SCHEMES
            if scheme.key in LEARNING
        ]
    return {"misstated": pl.DataFrame(rows, infer_schema_length=None)}


def draw(tables: Tables, figure: Figure) -> None:
    """Draw bars: a panel a workload."""
    (table,) = tables.values()
    if "work" in table.columns:
        table = table.with_columns(pl.format("{}: {}", "policy", "work").alias("policy"))
    names = table["workload"].unique(maintain_order=True).to_list()
    panels = np.atleast_1d(figure.subplots(1, len(names), sharey=True))
    for panel, name, colour in zip(panels, names, PALETTE, strict=False):
        mine = table.filter(pl.col("workload") == name)
        panel.barh(mine["policy"].to_list(), mine["share"].to_numpy(), color=colour)
        panel.set(title=name, xlim=(0, 1), xlabel="of the value on offer")
        panel.tick_params(axis="y", labelsize=7)
    panels[0].invert_yaxis()
