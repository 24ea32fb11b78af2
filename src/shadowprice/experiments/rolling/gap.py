"""The bound, the best schedule found, and what policies earn of it with and without its prices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from shadowprice.certificate.certify import certify
from shadowprice.experiments.rolling.setting import (
    FORESEEING,
    ROLLING,
    SCHEMES,
    Workload,
    run,
)
from shadowprice.experiments.style import PALETTE
from shadowprice.policies.choice import PolicyChoice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import Settings, Tables
    from shadowprice.policies.pricing.posted import PostedPrices
    from shadowprice.simulator.scenario import Scenario

WAITING: Final = PolicyChoice("rolling", {"prices": "given", "price": 1e12}, "rolling, no promises")
FREE: Final = PolicyChoice("rolling", {"prices": "given"}, "rolling, promises free")

ALONE: Final = {"standby": False, "spare": False}
"""Settings with which `rolling` gives nothing to jobs without a promise, nor beyond plans."""


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
        fixed = PolicyChoice("oasis", {"prices": f"fixed:{prices}"}, "oasis at the bound's prices")
        online = next(scheme for scheme in SCHEMES if scheme.label == "oasis")
        one, price = _one_price(found.prices)
        constant = Path(folder) / "constant.json"
        constant.write_text(json.dumps(one.document(scenario.cluster)), encoding="utf-8")
        schemes = (fixed, FORESEEING, online, *_at_one(price, constant), ROLLING, WAITING, FREE)
        for scheme in schemes:
            earned[scheme.label] = float(run(scenario, scheme)["utility"])
    return [
        {"policy": name, "utility": value, "of the bound": value / max(1e-12, found.bound)}
        for name, value in earned.items()
    ]


def _one_price(prices: PostedPrices) -> tuple[PostedPrices, float]:
    """Return one price for every resource in every slot, the bound's mean, as both ask it.

    `rolling` asks a given price of every resource that servers limit; only the limits that are
    resources themselves are priced for `oasis`, so that both ask the same of every plan.
    """
    plain = np.zeros(prices.prices.shape[1:], np.bool_)
    for at, pool in enumerate(prices.limits):
        plain[at, : len(pool)] = [limit.parts == 0 for limit in pool]
    price = float(prices.prices.sum(axis=(1, 2)).mean()) / max(1, int(plain.sum()))
    return replace(prices, prices=np.where(plain, price, np.zeros_like(prices.prices))), price


def _at_one(price: float, file: Path) -> tuple[PolicyChoice, ...]:
    """Return policies that decide at the same price, and differ in what they do with plans."""
    given = {"prices": "given", "price": price}
    return (
        PolicyChoice("oasis", {"prices": f"fixed:{file}"}, "oasis at one price"),
        PolicyChoice(
            "rolling",
            {**given, **ALONE, "revision": False},
            "rolling at that price, plans never revised",
        ),
        PolicyChoice("rolling", {**given, **ALONE}, "rolling at that price, plans revised"),
        PolicyChoice(
            "rolling", {**given, "standby": False}, "the same, what plans leave is dealt out"
        ),
        PolicyChoice("rolling", given, "the same, and jobs without a promise wait"),
    )


def draw(tables: Tables, figure: Figure) -> None:
    """Draw the means."""
    means = tables["means"]
    panel = figure.subplots()
    panel.barh(means["policy"].to_list(), means["of the bound"].to_numpy(), color=PALETTE[0])
    for at, share in enumerate(means["of the bound"]):
        panel.text(share + 0.005, at, f"{share:.1%}", va="center")
    panel.invert_yaxis()
    panel.set(xlabel="of the bound", xlim=(0, 1.12))
