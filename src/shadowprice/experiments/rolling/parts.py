"""Value of the parts of `rolling`, cost of restarts, and effect of misstated work."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.experiments.rolling.setting import (
    POLICY_VARIANTS,
    ROLLING,
    NamedWorkload,
    misstated,
    run,
    with_restart_cost,
    workloads,
)
from shadowprice.experiments.style import PALETTE
from shadowprice.policies.choice import PolicyChoice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables

PARTS: Final = (
    ROLLING,
    PolicyChoice("rolling", {"revision": False}, "plans do not move"),
    PolicyChoice("rolling", {"evidence": 1e6}, "promises know no limit"),
    PolicyChoice("rolling", {"prices": "given"}, "promises are free"),
    PolicyChoice("rolling", {"spare": False}, "what is left is not dealt out"),
    PolicyChoice("rolling", {"standby": False}, "no standby"),
    PolicyChoice("rolling", {"prices": "given", "price": 1e12}, "no promises"),
)
RESTARTS: Final = (30, 300)  # seconds that a job loses when it moves

FACTORS: Final[Mapping[str, float]] = {"stated right": 1.0, "up to 1.5": 1.5, "up to 2": 2.0}
"""Maximum factor between the work and its statement, either way."""

LEARNING: Final = ("rolling", "oasis", "rrh", "elasticflow", "srtf", "las", "drf")


def _representative_workloads(settings: ExperimentSettings) -> list[NamedWorkload]:
    """Return some of the workloads, because the effect of a part is similar on all."""
    names = {"ITP cluster03", "ITP cluster05", "Philly 103959", "generated: calibrated"}
    return [workload for workload in workloads(quick=settings.quick) if workload.name in names]


def measure_parts(settings: ExperimentSettings) -> Tables:
    """Run `rolling` without each of its parts, and with restart costs."""
    cases = [
        (workload, scheme, settings.seed, seconds)
        for workload in _representative_workloads(settings)
        for scheme, seconds in (
            *((part, 0) for part in PARTS),
            *((PolicyChoice("rolling", titled=f"restarts of {n} s"), n) for n in RESTARTS),
        )
    ]
    results = settings.each(
        _part, cases, lambda workload, scheme, *_: f"{workload.name}, {scheme.label}"
    )
    rows = [row for row in results if row is not None]
    return {"parts": pl.DataFrame(rows, infer_schema_length=None)}


def _part(
    workload: NamedWorkload, scheme: PolicyChoice, seed: int, restart: int
) -> dict[str, Any] | None:
    """Return a row, None if a restart would be longer than a slot."""
    scenario = workload.scenario(seed)
    if restart > scenario.cluster.slot_seconds:
        return None
    adjusted = with_restart_cost(scenario, restart) if restart else scenario
    return {"workload": workload.name, **run(adjusted, scheme)}


def measure_misstated(settings: ExperimentSettings) -> Tables:
    """Run policies on jobs with misstated work."""
    learning = [scheme for scheme in POLICY_VARIANTS if scheme.label in LEARNING]
    rows = settings.each(
        _run_misstated,
        product(_representative_workloads(settings), FACTORS, learning, [settings.seed]),
        lambda workload, name, scheme, _: f"{workload.name}, {name}, {scheme.label}",
    )
    return {"misstated": pl.DataFrame(rows, infer_schema_length=None)}


def _run_misstated(
    workload: NamedWorkload, name: str, scheme: PolicyChoice, seed: int
) -> dict[str, Any]:
    scenario = misstated(workload.scenario(seed), FACTORS[name])
    return {"workload": workload.name, "work": name, **run(scenario, scheme)}


def draw(tables: Tables, figure: Figure) -> None:
    """Draw bars, a panel per workload."""
    (table,) = tables.values()
    if "work" in table.columns:
        table = table.with_columns(pl.format("{}: {}", "policy", "work").alias("policy"))
    names = table["workload"].unique(maintain_order=True).to_list()
    panels = np.atleast_1d(figure.subplots(1, len(names), sharey=True))
    for panel, name, colour in zip(panels, names, PALETTE, strict=False):
        rows = table.filter(pl.col("workload") == name)
        panel.barh(rows["policy"].to_list(), rows["share"].to_numpy(), color=colour)
        panel.set(title=name, xlim=(0, 1), xlabel="of the value on offer")
        panel.tick_params(axis="y", labelsize=7)
    panels[0].invert_yaxis()
