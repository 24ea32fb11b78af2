"""OASiS's experiments in miniature: what they measure, and that it can be drawn."""

from __future__ import annotations

import math

import matplotlib as mpl
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shadowprice.core.utility import Sigmoid
from shadowprice.experiments.framework import Settings, Tables, experiments
from shadowprice.experiments.oasis import ratio, setting, timeliness, utility
from shadowprice.experiments.style import STYLE

QUICK = Settings(quick=True)
FEW = setting.SCHEMES[:2]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two schemes on a few servers and jobs."""
    for module in (utility, timeliness):
        monkeypatch.setattr(module, "SCHEMES", FEW)
    monkeypatch.setattr(utility, "_size", lambda _: (4, 20, (5, 10), range(1)))
    monkeypatch.setattr(timeliness, "SLOTS", 30)


def drawn(name: str, tables: Tables) -> int:
    """Draw an experiment's figure; return how many panels it has."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 4), layout="constrained")
        FigureCanvasAgg(figure)
        experiments()[name].draw(tables, figure)
        figure.canvas.draw()
    return len(figure.axes)


def test_every_figure_is_declared_with_what_the_paper_reports() -> None:
    declared = [one for name, one in experiments().items() if name.startswith("oasis-")]
    assert [one.name for one in declared] == [f"oasis-fig{at}" for at in (3, 4, 5, 6)]
    assert all(one.reported.endswith(".") and "INFOCOM" in one.source for one in declared)


def test_schemes_are_the_five_of_the_paper_with_both_lower_prices() -> None:
    assert [one.key for one in setting.SCHEMES] == [
        "oasis", "oasis-theory", "fifo", "drf", "rrh", "dorm",
    ]  # fmt: skip
    assert [one.parameters for one in setting.SCHEMES[:2]] == [
        {"preset": "paper", "lower": "clearing"},
        {"preset": "paper"},
    ]


def test_total_utility_is_what_the_jobs_earned() -> None:
    tables = utility.measure_schemes(QUICK)
    table = tables["utility"]
    assert len(table) == 2 * 2 * 2  # presets, numbers of jobs, schemes
    on = setting.cluster(4, 4, 20, 0)
    jobs = setting.workload(on, "calibrated", 10, 20, 0)
    outcomes, _ = setting.run(FEW[0], on, jobs, 20, 0)
    row = table.filter(
        (pl.col("preset") == "calibrated") & (pl.col("jobs") == 10) & (pl.col("policy") == "oasis")
    )
    earned = 0.0
    for outcome in outcomes:
        if outcome.completion is not None:
            curve = outcome.job.utility
            assert isinstance(curve, Sigmoid)
            took = outcome.completion - outcome.job.arrival
            earned += curve.value / (1.0 + math.exp(curve.decay * (took - curve.target)))
            assert outcome.late == took - curve.target
    assert row["utility"].item() == pytest.approx(earned)
    assert row["finished"].item() == sum(outcome.completion is not None for outcome in outcomes)
    assert drawn("oasis-fig3", tables) == 2


def test_scaled_prices_run_from_either_lower_price() -> None:
    tables = utility.measure_scales(QUICK)
    table, wide = tables["scales"], tables["wide"]
    assert len(table) == 2 * 3
    assert sorted(table["scale"].unique()) == [0.2, 1.0, 10.0]
    assert len(wide) == 2 * len(utility.WIDE)
    assert set(wide["policy"]) == {"oasis", "oasis-theory"}
    assert set(wide["jobs"]) == {10}
    assert drawn("oasis-fig6", tables) == 2


def test_lateness_counts_the_jobs_that_completed() -> None:
    tables = timeliness.measure(QUICK)
    table, summary = tables["completion"], tables["summary"]
    assert len(table) == 2 * 60
    assert summary["jobs"].to_list() == [30] * 4
    for row in summary.iter_rows(named=True):
        mine = table.filter(
            (pl.col("policy") == row["policy"]) & (pl.col("class") == row["class"])
        )["late"].drop_nulls()
        assert row["finished"] == len(mine)
        assert row["on_time"] == int((mine <= 0).sum())
    assert drawn("oasis-fig4", tables) == 2


def test_the_optimum_bounds_what_oasis_earns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratio, "SERVERS", (2,))
    monkeypatch.setattr(ratio, "JOBS", 3)
    monkeypatch.setattr(ratio, "LONGEST", 2)
    tables = ratio.measure(QUICK)
    for row in tables["ratio"].iter_rows(named=True):
        assert row["best_known"] <= row["bound"] * (1 + 1e-6)
        assert max(row["oasis"], row["oasis-theory"]) <= row["best_known"]
        assert row["best_known"] > 0
    assert drawn("oasis-fig5", tables) == 2
