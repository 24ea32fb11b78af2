"""CSD's experiments in small: their tables support the claims of the figures."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from shadowprice.core.errors import InputError, MissingExtraError
from shadowprice.experiments import framework
from shadowprice.experiments.cloning import figures
from shadowprice.experiments.framework import ExperimentSettings, find_experiment, run_experiment
from shadowprice.traces.locate import ENVIRONMENT, traces_folder

QUICK = ExperimentSettings(quick=True)


def tables(name: str, folder: Path) -> dict[str, pl.DataFrame]:
    figure = run_experiment(find_experiment(name), folder, QUICK)
    assert figure.stat().st_size > 10_000
    return {path.stem: pl.read_csv(path) for path in folder.glob("*.csv")}


def test_copies_fall_with_deadline_and_epsilon(tmp_path: Path) -> None:
    table = tables("cloning-deadline", tmp_path)["deadline"]
    for rows in table.partition_by("epsilon"):
        assert rows["continuous_copies"].is_sorted(descending=True)
        assert rows["whole_cost"].is_sorted(descending=True)
        assert (rows["whole_cost"] >= rows["continuous_cost"] - 1e-9).all()
        assert (rows["miss_probability"] <= rows["epsilon"] * (1 + 1e-9)).all()
    for rows in table.sort("epsilon").partition_by("deadline_in_means"):
        assert rows["continuous_cost"].is_sorted(descending=True)


def test_copies_pay_for_themselves_below_order_two(tmp_path: Path) -> None:
    table = tables("cloning-tail", tmp_path)["tail"].filter(pl.col("deadline") == "no deadline")
    for row in table.iter_rows(named=True):
        assert row["continuous_copies"] == pytest.approx(max(1.0, 2.0 / row["order"]), rel=1e-6)
        assert (row["continuous_cost"] < 1.0 - 1e-9) == (row["order"] < 2.0)


def test_relaxed_constraint_misses_more_than_it_may(tmp_path: Path) -> None:
    result = tables("cloning-relaxed", tmp_path)
    assert (result["continuous"]["excess"] > 0).all()
    whole = result["whole"]
    assert 0 < whole["misses_too_often"].sum() < len(whole) / 4
    assert (whole["saved"] >= -1e-9).all()
    assert (whole.filter(~pl.col("misses_too_often"))["excess"] <= 1e-9).all()


def test_theorem_1_costs_more_the_more_means_differ(tmp_path: Path) -> None:
    table = tables("cloning-theorem", tmp_path)["theorem"]
    rows = table.group_by("spread").agg(pl.col("continuous").median()).sort("spread")
    assert rows["continuous"][0] == pytest.approx(0.0, abs=1e-9)
    assert rows["continuous"].is_sorted()
    assert (table["whole"] >= -1e-9).all()


@pytest.mark.extended
def test_copies_by_saving_serve_at_every_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(figures, "MACHINES", 40)
    monkeypatch.setattr(figures, "LOADS", (0.0, 0.2, 0.0, 0.0, 1.2))
    table = tables("cloning-load", tmp_path)["load"]
    for rows in table.partition_by("jobs", "load"):
        flow = dict(rows.select("rule", "mean_flowtime").iter_rows())
        time = dict(rows.select("rule", "machine_time").iter_rows())
        assert flow["saving"] < flow["none"]
        assert time["saving"] < time["full"]
        if rows["load"][0] > 1:
            assert flow["saving"] < flow["full"]


@pytest.mark.traces
def test_recorded_worker_times_become_jobs() -> None:
    if not (traces_folder() / figures.FOLDER).exists():
        pytest.skip(f"the recordings are absent; {ENVIRONMENT} names their folder")
    for file in figures.TRACES.values():
        times = figures.worker_times(file)
        assert times.shape[1] == 10
        assert len(times) > 200
        assert times.min() > 0
        assert times.max() <= 1000


def test_absent_recordings_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    with pytest.raises(InputError, match="mini-batch-time"):
        run_experiment(find_experiment("cloning-workers"), tmp_path / "out", QUICK)


def test_without_matplotlib_nothing_is_measured_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framework, "find_spec", lambda name: None if name == "matplotlib" else name)
    with pytest.raises(MissingExtraError, match=r"pip install 'shadowprice\[figures\]'"):
        run_experiment(find_experiment("cloning-workers"), tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()
