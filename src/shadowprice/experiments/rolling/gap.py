"""Policies compared with the certificate: its bound, its best schedule, and its prices."""

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
    OASIS_CLAIRVOYANT,
    POLICY_VARIANTS,
    ROLLING,
    NamedWorkload,
    run,
)
from shadowprice.experiments.style import PALETTE
from shadowprice.policies.choice import PolicyChoice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import ExperimentSettings, Tables
    from shadowprice.policies.pricing.posted import PostedPrices
    from shadowprice.simulator.scenario import Scenario

# No job is worth this price, so nothing is promised.
NO_PROMISES: Final = PolicyChoice(
    "rolling", {"prices": "given", "price": 1e12}, "rolling, no promises"
)
FREE_PROMISES: Final = PolicyChoice("rolling", {"prices": "given"}, "rolling, promises free")

PROMISED_JOBS_ONLY: Final = {"standby": False, "spare": False}
"""Settings of `rolling` without best-effort jobs and without work conservation."""


def measure(settings: ExperimentSettings) -> Tables:
    """Compute upper bounds of generated workloads, and run policies at the prices of the bounds."""
    jobs, slots, seconds = (40, 60, 5.0) if settings.quick else (200, 150, 60.0)
    seeds = range(settings.seed, settings.seed + (1 if settings.quick else 3))
    results = settings.each(
        _rows,
        [(jobs, slots, seed, seconds) for seed in seeds],
        lambda jobs, _slots, seed, _seconds: f"{jobs} jobs, seed {seed}",
    )
    rows = [row for rows in results for row in rows]
    table = pl.DataFrame(rows, infer_schema_length=None)
    means = table.group_by("policy", maintain_order=True).agg(pl.col("of the bound").mean())
    return {"gap": table, "means": means}


def _rows(jobs: int, slots: int, seed: int, seconds: float) -> list[dict[str, Any]]:
    workload = NamedWorkload("generated: calibrated", jobs=jobs, slots=slots)
    return [{"seed": seed, **row} for row in _share_of_bound(workload.scenario(seed), seconds)]


def _share_of_bound(scenario: Scenario, seconds: float) -> list[dict[str, Any]]:
    """Return the utility of each policy as a share of the bound."""
    certificate = certify(
        scenario.cluster, scenario.jobs, gap=0.01, seconds=seconds, seed=scenario.seed
    )
    earned = {
        "the bound": certificate.bound,
        "best schedule found, all jobs known": certificate.best,
    }
    with TemporaryDirectory() as folder:
        prices = Path(folder) / "prices.json"
        prices.write_text(
            json.dumps(certificate.prices.document(scenario.cluster)), encoding="utf-8"
        )
        fixed = PolicyChoice("oasis", {"prices": f"fixed:{prices}"}, "oasis at the bound's prices")
        online = next(scheme for scheme in POLICY_VARIANTS if scheme.label == "oasis")
        uniform, price = _one_price(certificate.prices)
        constant = Path(folder) / "constant.json"
        constant.write_text(json.dumps(uniform.document(scenario.cluster)), encoding="utf-8")
        schemes = (
            fixed,
            OASIS_CLAIRVOYANT,
            online,
            *_uniform_price_policies(price, constant),
            ROLLING,
            NO_PROMISES,
            FREE_PROMISES,
        )
        for scheme in schemes:
            earned[scheme.label] = float(run(scenario, scheme)["utility"])
    return [
        {"policy": name, "utility": value, "of the bound": value / max(1e-12, certificate.bound)}
        for name, value in earned.items()
    ]


def _one_price(prices: PostedPrices) -> tuple[PostedPrices, float]:
    """Return the certificate's mean price: as posted prices for `oasis`, as a number for `rolling`.

    `rolling` applies a given price to every resource that servers limit. For `oasis`, only the
    limits on whole resources have this price, so that both policies charge every plan the same.
    """
    is_resource = np.zeros(prices.prices.shape[1:], np.bool_)
    for index, pool in enumerate(prices.limits):
        is_resource[index, : len(pool)] = [limit.parts == 0 for limit in pool]
    price = float(prices.prices.sum(axis=(1, 2)).mean()) / max(1, int(is_resource.sum()))
    return replace(prices, prices=np.where(is_resource, price, np.zeros_like(prices.prices))), price


def _uniform_price_policies(price: float, file: Path) -> tuple[PolicyChoice, ...]:
    """Return policies with one uniform price, which differ in how they treat plans."""
    uniform = {"prices": "given", "price": price}
    return (
        PolicyChoice("oasis", {"prices": f"fixed:{file}"}, "oasis at one price"),
        PolicyChoice(
            "rolling",
            {**uniform, **PROMISED_JOBS_ONLY, "revision": False},
            "rolling at that price, plans never revised",
        ),
        PolicyChoice(
            "rolling", {**uniform, **PROMISED_JOBS_ONLY}, "rolling at that price, plans revised"
        ),
        PolicyChoice(
            "rolling", {**uniform, "standby": False}, "the same, what plans leave is dealt out"
        ),
        PolicyChoice("rolling", uniform, "the same, and jobs without a promise wait"),
    )


def draw(tables: Tables, figure: Figure) -> None:
    """Draw the means."""
    means = tables["means"]
    panel = figure.subplots()
    panel.barh(means["policy"].to_list(), means["of the bound"].to_numpy(), color=PALETTE[0])
    for index, share in enumerate(means["of the bound"]):
        panel.text(share + 0.005, index, f"{share:.1%}", va="center")
    panel.invert_yaxis()
    panel.set(xlabel="of the bound", xlim=(0, 1.12))
