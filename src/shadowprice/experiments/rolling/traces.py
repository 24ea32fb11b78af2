"""Every policy on every workload."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from shadowprice.experiments.rolling.setting import (
    FULL_SETTING,
    POLICY_VARIANTS,
    NamedWorkload,
    run,
    workloads,
)
from shadowprice.experiments.style import PALETTE
from shadowprice.policies.choice import PolicyChoice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables


def _row(workload: NamedWorkload, scheme: PolicyChoice, seed: int) -> dict[str, Any]:
    return {"workload": workload.name, **run(workload.scenario(seed), scheme)}


def measure(settings: ExperimentSettings) -> Tables:
    """Run every policy on every workload."""
    schemes = POLICY_VARIANTS if settings.quick else FULL_SETTING
    cases = product(workloads(quick=settings.quick), schemes, [settings.seed])
    rows = settings.each(
        _row, cases, lambda workload, scheme, _: f"{workload.name}, {scheme.label}"
    )
    table = pl.DataFrame(rows, infer_schema_length=None)
    return {"runs": table, "shares": shares(table)}


def shares(table: pl.DataFrame) -> pl.DataFrame:
    """Return the share of the value on offer, a row per workload and a column per policy."""
    return table.pivot(on="policy", index="workload", values="share", maintain_order=True)


def draw(tables: Tables, figure: Figure) -> None:
    """Draw a group of points per workload."""
    table = tables["runs"]
    panel = figure.subplots()
    names = table["workload"].unique(maintain_order=True).to_list()
    for index, policy in enumerate(table["policy"].unique(maintain_order=True)):
        points = table.filter(pl.col("policy") == policy)
        rows = [names.index(name) for name in points["workload"]]
        panel.plot(
            points["share"].to_numpy(),
            np.array(rows),
            "D" if policy == "rolling" else "o",
            color=PALETTE[index % len(PALETTE)],
            fillstyle="full" if index < len(PALETTE) else "none",
            markersize=9 if policy == "rolling" else 5,
            label=policy,
        )
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set(xlabel="earned of the value on offer", xlim=(0, 1.02))
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
