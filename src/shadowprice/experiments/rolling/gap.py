"""The bound, the best schedule found, and what policies earn of it with and without its prices."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from shadowprice.certificate.certify import certify
from shadowprice.experiments.rolling.setting import (
    FORESEEING,
    ROLLING,
    SCHEMES,
    Scheme,
    Workload,
    run,
)
from shadowprice.experiments.style import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import Settings, Tables
    from shadowprice.simulator.scenario import Scenario

WAITING: Final = Scheme("rolling, no promises", "rolling", {"prices": "given", "price": 1e12})
FREE: Final = Scheme("rolling, promises free", "rolling", {"prices": "given"})


def measure(settings: Settings) -> Tables:
    """Bound generated workloads, and run policies at the prices that prove the bound."""
    jobs, slots, seconds = (40, 60, 5.0) if settings.quick else (200, 150, 60.0)
    seeds = range(settings.seed, settings.seed + (1 if settings.quick else 3))
    found = settings.each(
        _rows,
        [(jobs, slots, seed, seconds) for seed in seeds],
        lambda jobs, _slots, seed, _seconds: f"{jobs} jobs, seed {seed}",
    )
    rows = [row for rows in found for row in rows]
    table = pl.DataFrame(rows, infer_schema_length=None)
    means = table.group_by("policy", maintain_order=True).agg(pl.col("of the bound").mean())
    return {"gap": table, "means": means}


def _rows(jobs: int, slots: int, seed: int, seconds: float) -> list[dict[str, Any]]:
    workload = Workload("generated: calibrated", jobs=jobs, slots=slots)
    return [{"seed": seed, **row} for row in _of_bound(workload.scenario(seed), seconds)]


def _of_bound(scenario: Scenario, seconds: float) -> list[dict[str, Any]]:
    """Return what of the bound is earned by whom."""
    found = certify(scenario.cluster, scenario.jobs, gap=0.01, seconds=seconds, seed=scenario.seed)
    earned = {"the bound": found.bound, "best schedule found, all jobs known": found.best}
    with TemporaryDirectory() as folder:
        prices = Path(folder) / "prices.json"
        prices.write_text(json.dumps(found.prices.document(scenario.cluster)), encoding="utf-8")
        fixed = Scheme("oasis at the bound's prices", "oasis", {"prices": f"fixed:{prices}"})
        online = next(scheme for scheme in SCHEMES if scheme.key == "oasis")
        for scheme in (fixed, FORESEEING, online, ROLLING, WAITING, FREE):
            earned[scheme.key] = float(run(scenario, scheme)["utility"])
    return [
        {"policy": name, "utility": value, "of the bound": value / max(1e-12, found.bound)}
        for name, value in earned.items()
    ]


def draw(tables: Tables, figure: Figure) -> None:
    """Draw the means."""
    means = tables["means"]
    panel = figure.subplots()
    panel.barh(means["policy"].to_list(), means["of the bound"].to_numpy(), color=PALETTE[0])
    for at, share in enumerate(means["of the bound"]):
        panel.text(share + 0.005, at, f"{share:.1%}", va="center")
    panel.invert_yaxis()
    panel.set(xlabel="of the bound", xlim=(0, 1.12))
