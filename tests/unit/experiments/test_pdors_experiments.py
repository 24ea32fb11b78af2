"""PD-ORS's experiments in small: their tables support the claims of the figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shadowprice.experiments import pdors
from shadowprice.experiments.framework import ExperimentSettings, find_experiment, run_experiment
from shadowprice.kernels.slots.coupled_lp import solve_slots_lp
from shadowprice.kernels.slots.polygons import Slot
from tests.oracles.slot_cases import random_slot


def test_co_location_earns_more_the_faster_the_links_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pdors, "RATIOS", (1, 40))
    figure = run_experiment(
        find_experiment("pdors-fig3.12"), tmp_path, ExperimentSettings(quick=True)
    )
    assert figure.stat().st_size > 10_000
    table = pl.read_csv(tmp_path / "utility.csv")
    earned = {
        (ratio, policy): value
        for ratio, policy, value in table.group_by("ratio", "policy")
        .agg(pl.col("utility").sum())
        .iter_rows()
    }
    assert earned[40.0, "pdors"] > 5 * earned[1.0, "pdors"]
    # With links of one speed the readings of (3.4) agree, and OASiS never co-locates.
    assert earned[1.0, "pdors-literal"] == earned[1.0, "pdors"]
    assert earned[40.0, "oasis"] == earned[1.0, "oasis"]
    assert earned[40.0, "pdors-literal"] < earned[40.0, "pdors"] / 4


@pytest.mark.extended
def test_pdors_earns_more_than_oasis_on_the_same_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pdors, "JOBS", (10, 15))
    monkeypatch.setattr(pdors, "SLOT_SECONDS", (60, 1200))
    run_experiment(find_experiment("pdors-fig3.11"), tmp_path, ExperimentSettings(quick=True))
    table = pl.read_csv(tmp_path / "utility.csv")
    earned = dict(table.group_by("policy").agg(pl.col("utility").sum()).iter_rows())
    assert earned["pdors"] > 5 * earned["oasis"]
    assert earned["pdors-exact"] == pytest.approx(earned["pdors"], rel=0.05)


@pytest.mark.extended
def test_rounding_succeeds_more_rarely_at_large_gains_and_never_beats_the_optimum(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (
        ("PROBE_MACHINES", 10),
        ("PROBE_SLOTS", 40),
        ("PROBE_JOBS", 40),
        ("SURPLUS", (1e-6, 4.4)),
    ):
        monkeypatch.setattr(pdors, name, value)
    monkeypatch.setattr(pdors, "SOLUTION_SURPLUS", (0.006,))
    monkeypatch.setattr(pdors, "SOLUTION_SEEDS", 1)
    for name in ("pdors-fig3.13", "pdors-fig3.14"):
        run_experiment(find_experiment(name), tmp_path / name, ExperimentSettings(quick=True))
    table = pl.read_csv(tmp_path / "pdors-fig3.13" / "rounding.csv")
    assert table.equals(pl.read_csv(tmp_path / "pdors-fig3.14" / "rounding.csv"))
    small, large = table.sort("surplus").iter_rows(named=True)
    assert small["placements"] == large["placements"] > 100
    assert small["share_rounded"] > large["share_rounded"]
    for row in (small, large):
        assert row["over_optimum"] >= 1 - 1e-9
        assert row["over_relaxation"] >= row["over_optimum"] - 1e-9
        assert row["mean_rounds"] <= row["mean_tries"] <= 1000
    solutions = pl.read_csv(tmp_path / "pdors-fig3.13" / "solutions.csv")
    by_solution = {row["solution"]: row for row in solutions.iter_rows(named=True)}
    assert by_solution["vertex"]["placements"] == by_solution["interior"]["placements"] > 100
    # A vertex has at most two machines between corners.
    assert by_solution["vertex"]["fractional"] < by_solution["interior"]["fractional"]
    for row in by_solution.values():
        assert row["rounds_per_job"] <= row["tries_per_job"]
        assert row["tries_per_job"] > row["mean_tries"]


def test_an_interior_solution_is_optimal_and_treats_equal_machines_alike() -> None:
    rng = np.random.default_rng(3)
    solved = 0
    for _ in range(60):
        slot = random_slot(rng)
        machines = Slot(*slot.place)
        points = np.zeros((0, 0, 0))
        cost, _, _ = solve_slots_lp(machines, slot.workers, slot.servers, False, points)
        found = pdors.solve_interior(machines, slot.workers, slot.servers)
        usable = np.isfinite(slot.price_worker) & np.isfinite(slot.price_server)
        price_w, price_s = slot.price_worker[usable], slot.price_server[usable]
        top = max(price_w.max(initial=0.0), price_s.max(initial=0.0))
        for pair in np.flatnonzero(np.isfinite(cost)):
            assert not found[pair][:, ~usable].any()
            w, s = found[pair][:, usable]
            assert w.sum() >= slot.workers[pair] * (1 - 1e-6)
            assert s.sum() >= slot.servers[pair] * (1 - 1e-6) - 1e-6
            paid = price_w @ w + price_s @ s
            assert paid == pytest.approx(cost[pair], rel=1e-5, abs=1e-5 * top)
            solved += 1
    assert solved > 50

    alike = Slot(np.ones(4), np.ones(4), np.full((4, 1), 30), np.array([2]), np.array([1]))
    (found,) = pdors.solve_interior(alike, np.array([6]), np.array([2]))
    assert found == pytest.approx(np.repeat([[1.5], [0.5]], 4, axis=1), rel=1e-4)
