"""OASiS's experiments in miniature: their measurements and figures."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from shadowprice.cli.main import main
from shadowprice.core.utility import Sigmoid
from shadowprice.experiments import oasis
from shadowprice.experiments.figures import STYLE
from shadowprice.experiments.framework import ExperimentSettings, Tables, experiments
from shadowprice.inputs.files import read_cluster, read_jobs
from shadowprice.traces.generator import TESTBED_FAMILIES
from tests.support.examples import sample

QUICK = ExperimentSettings(quick=True)
ALL = oasis.POLICY_VARIANTS
FEW = (oasis.CLEARING, oasis.THEORY)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two schemes on a few servers and jobs."""
    monkeypatch.setattr(oasis, "POLICY_VARIANTS", FEW)
    monkeypatch.setattr(oasis, "_size", lambda _: (4, 20, (5, 10), range(1)))
    monkeypatch.setattr(oasis, "LATENESS_SLOTS", 30)


def drawn(name: str, tables: Tables) -> int:
    """Draw an experiment's figure; return how many panels it has."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 4), layout="constrained")
        FigureCanvasAgg(figure)
        experiments()[name].draw(tables, figure)
        figure.canvas.draw()
    return len(figure.axes)


def test_every_figure_is_declared_with_what_the_paper_reports() -> None:
    declared = [
        experiment for name, experiment in experiments().items() if name.startswith("oasis-")
    ]
    figures = [f"oasis-fig{index}" for index in range(3, 9)]
    assert [one.name for one in declared] == [*figures, "oasis-slots"]
    assert all(one.reported.endswith(".") and "INFOCOM" in one.source for one in declared)


def test_schemes_are_the_five_of_the_paper_with_three_lower_prices() -> None:
    assert [variant.key for variant in ALL] == [
        "oasis", "oasis-guaranteed", "oasis-theory", "fifo", "drf", "rrh", "dorm",
    ]  # fmt: skip
    assert [variant.choice.settings for variant in ALL[:3]] == [
        {"preset": "paper", "lower": "clearing"},
        {"preset": "paper", "lower": "guaranteed"},
        {"preset": "paper"},
    ]


def test_total_utility_is_what_the_jobs_earned() -> None:
    tables = oasis.measure_policies(QUICK)
    table = tables["utility"]
    assert len(table) == 3 * 2 * 2  # cases, numbers of jobs, schemes
    on = oasis.cluster(4, 4, 20, 0)
    jobs = oasis.workload(on, oasis.CHUNK, 10, 20, 0)
    outcomes = FEW[0].run(on, jobs, 20, 0).jobs
    row = table.filter(case="chunk", jobs=10, policy="oasis")
    earned = 0.0
    for job, outcome in zip(jobs, outcomes.iter_rows(named=True), strict=True):
        assert outcome["job"] == job.name
        if outcome["completion"] is not None:
            curve = job.utility
            assert isinstance(curve, Sigmoid)
            took = outcome["completion"] - job.arrival
            earned += curve.value / (1.0 + math.exp(curve.decay * (took - curve.target)))
            assert outcome["late"] == took - curve.target
    assert row["utility"].item() == pytest.approx(earned)
    assert row["finished"].item() == outcomes["completion"].count()
    assert drawn("oasis-fig3", tables) == 3


def test_a_wrong_ratio_is_tried_under_both_readings() -> None:
    tables = oasis.measure_scales(QUICK)
    table = tables["scales"]
    assert len(table) == 2 * 2 * 3 * 2  # bases, readings, estimates, numbers of jobs
    assert sorted(table["scale"].unique()) == [0.2, 1.0, 10.0]
    exact = table.filter(pl.col("scale") == 1.0)
    # With the right ratio it makes no difference which constant would be wrong.
    for _, both in exact.group_by("policy", "jobs"):
        assert both["wrong"].n_unique() == 2
        assert both["utility"].n_unique() == 1
    assert drawn("oasis-fig6", tables) == 4


def test_slots_of_an_hour_are_those_of_figures_3_and_6() -> None:
    tables = oasis.measure_slots(QUICK)
    table = tables["slots"]
    # Two policies at two numbers of jobs, and two estimates under two L at the larger number
    assert len(table) == len(oasis.HOURS) * (2 * 2 + 2 * 2)
    hour = table.filter(pl.col("hours") == 1)
    shared = ("policy", "jobs", "seed", "utility", "finished")
    fig3 = oasis.measure_policies(QUICK)["utility"].filter(pl.col("case") == "chunk")
    assert (
        hour.filter(pl.col("scale") == 1.0)
        .select(shared)
        .sort(shared)
        .equals(fig3.select(shared).sort(shared))
    )
    fig6 = oasis.measure_scales(QUICK)["scales"].filter(
        (pl.col("wrong") == "L") & (pl.col("jobs") == 10) & (pl.col("scale") != 1.0)
    )
    assert (
        hour.filter(pl.col("scale") != 1.0)
        .select("scale", *shared)
        .sort("scale", *shared)
        .equals(fig6.select("scale", *shared).sort("scale", *shared))
    )
    # Computing takes the same share of any slot, transfers a smaller share of a longer one.
    assert table.filter(pl.col("scale") == 1.0)["utility"].n_unique() > len(fig3)
    assert drawn("oasis-slots", tables) == 4


def test_lateness_counts_the_jobs_that_completed() -> None:
    tables = oasis.measure_lateness(QUICK)
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
    monkeypatch.setattr(oasis, "RATIO_SERVERS", (2,))
    monkeypatch.setattr(oasis, "RATIO_JOBS", 3)
    monkeypatch.setattr(oasis, "MAX_SLOTS", 2)
    tables = oasis.measure_ratio(QUICK)
    for row in tables["ratio"].iter_rows(named=True):
        assert row["best_known"] <= row["bound"] * (1 + 1e-6)
        assert max(row["oasis"], row["oasis-theory"]) <= row["best_known"]
        assert row["best_known"] > 0
        assert row["proved"]
    assert drawn("oasis-fig5", tables) == 3


def test_ratios_are_of_instances_and_not_of_sums() -> None:
    earned = {variant.key: [4.0, 50.0, 0.0] for variant in oasis.OASIS}
    table = pl.DataFrame(
        {
            "servers": [3, 3, 6],
            "least_value": [1.0] * 3,
            "seed": [0, 1, 0],
            "best_known": [8.0, 100.0, 5.0],
            "bound": [8.0, 150.0, 5.0],
            "proved": [True, False, True],
            **earned,
        }
    )
    ratios = oasis.ratios_of_instances(table)
    summary = oasis.summarize(ratios)
    assert summary["policy"].to_list() == list(earned)
    for row in summary.iter_rows(named=True):
        mine = ratios.filter(pl.col("policy") == row["policy"])
        assert mine["ratio"].to_list() == [2.0, 2.0, math.inf]
        assert mine["bound_ratio"].to_list() == [2.0, 3.0, math.inf]
        assert (row["instances"], row["proved"]) == (3, 2)
        assert (row["ratio_median"], row["bound_ratio_median"]) == (2.0, 3.0)


def test_the_testbed_is_what_its_files_say(tmp_path: Path) -> None:
    """The experiment runs the workload that `generate --preset testbed` writes for any driver."""
    call = ["generate", "--preset", "testbed", "--jobs", "12", "--slots", "10", "--seed", "3"]
    assert main([*call, "--out", str(tmp_path)]) == 0
    on, jobs = oasis.build_testbed_inputs(3)
    written = read_cluster(tmp_path / "cluster.yaml")
    assert written.names == on.names
    assert (written.capacity == on.capacity).all()
    assert written.slot_seconds == on.slot_seconds
    read = read_jobs(tmp_path / "jobs.jsonl", written)
    assert [one.record() for one in read] == [job.record() for job in jobs]


def test_every_policy_runs_the_jobs_of_each_trial_of_the_testbed() -> None:
    simulated = oasis.measure_testbed(QUICK)
    runs = simulated["jobs"].group_by("policy", "trial", maintain_order=True).len()
    assert runs.rows() == [(one.key, trial, 12) for trial in range(3) for one in FEW]
    assert (simulated["summary"]["completed"] > 0).all()
    for name in ("oasis-fig7", "oasis-fig8"):
        assert drawn(name, simulated) == 1


def test_differences_on_the_testbed_are_paired_by_trial() -> None:
    tables = oasis.measure_targets(QUICK)
    trials = {
        policy: rows.sort("trial")["utility"]
        for (policy,), rows in tables["trials"].group_by("policy", maintain_order=True)
    }
    first, *others = trials
    assert tables["differences"]["policy"].to_list() == others
    for row in tables["differences"].iter_rows(named=True):
        differences = (trials[first] - trials[row["policy"]]).to_list()
        mean = sum(differences) / len(differences)
        assert row["behind"] == pytest.approx(mean)
        assert row["p"] <= row["adjusted_p"] <= 1
        if mean:
            error = math.sqrt(sum((x - mean) ** 2 for x in differences) / 2 / 3)
            assert row["error"] == pytest.approx(4.302652729911275 * error)  # Student's, 2 degrees

    latest = tables["targets"]
    assert set(latest["latest_target"]) == {4, 6, 15}
    _, jobs = oasis.build_testbed_inputs(0)
    ends = [oasis.with_targets_up_to(jobs, end) for end in (4, 15)]
    for early, late, drawn_job in zip(*ends, jobs, strict=True):
        assert 1 <= early.utility.target <= 4
        assert late.utility.target == pytest.approx(drawn_job.utility.target)


def test_jobs_of_the_testbed_take_forty_minutes_to_two_hours_on_a_worker() -> None:
    for seed in sample(range(20)):
        _, jobs = oasis.build_testbed_inputs(seed)
        assert len(jobs) == 12
        assert sorted({job.labels["family"] for job in jobs}) == sorted(TESTBED_FAMILIES)
        assert max(job.arrival for job in jobs) <= 8
        for job in jobs:
            minutes = job.epochs * job.chunks * job.minibatches * job.step_seconds / 60
            assert 40 - 1e-6 <= minutes <= 120 + 1e-6
            assert 4 <= job.epochs <= 30
            assert job.ps_bandwidth >= job.worker_bandwidth
