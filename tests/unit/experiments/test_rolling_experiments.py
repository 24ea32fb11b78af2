"""The experiments on `rolling` that need no traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shadowprice.core.schedule import Placement
from shadowprice.experiments import rolling
from shadowprice.experiments.framework import ExperimentSettings, experiments
from tests.support.workloads import make_cluster, make_job

QUICK = ExperimentSettings(quick=True)


@pytest.fixture(autouse=True)
def without_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Generated workloads only, and few of them."""
    monkeypatch.setenv("SHADOWPRICE_TRACES", str(tmp_path))
    (one,) = rolling.workloads(quick=True)
    small = replace(one, jobs=16, slots=40)
    monkeypatch.setattr(rolling, "workloads", lambda *, quick: [small])


def test_every_experiment_is_declared() -> None:
    named = {name for name in experiments() if name.startswith("rolling-")}
    assert named == {"rolling-traces", "rolling-parts", "rolling-misstated", "rolling-gap"}


def test_every_policy_earns_a_part_of_the_value_on_offer() -> None:
    tables = rolling.measure_traces(QUICK)
    assert tables["shares"].columns == [
        "workload",
        *(scheme.label for scheme in rolling.POLICY_VARIANTS),
    ]
    assert tables["runs"]["share"].is_between(0, 1).all()
    assert (tables["runs"]["jobs"] == 16).all()


def test_parts_and_restarts_are_runs_of_rolling() -> None:
    table = rolling.measure_parts(QUICK)["parts"]
    wanted = [*(scheme.label for scheme in rolling.PARTS), "restarts of 30 s", "restarts of 300 s"]
    assert table["policy"].to_list() == wanted
    assert table["share"].is_between(0, 1).all()


def test_misstated_work_is_within_the_factor_and_each_jobs_own() -> None:
    cluster = make_cluster(1, 0)
    slow = rolling.MisstatedWork(2.0, seed=1)
    here = Placement((0,), (4,), (0,))
    gains = []
    for index in range(40):
        single_job = make_job(cluster, f"job-{index}", ps_amounts=None, minibatches=1000)
        gains.append(slow.progress(single_job, here, 0) / single_job.gain(4, colocated=True))
        assert slow.progress(single_job, here, 7) == slow.progress(single_job, here, 0)
    assert 0.45 <= min(gains) < 0.7
    assert 1.5 < max(gains) <= 2.0
    table = rolling.measure_misstated(QUICK)["misstated"]
    assert table["work"].unique(maintain_order=True).to_list() == list(rolling.FACTORS)


@pytest.mark.extended
def test_nothing_earns_more_than_the_bound() -> None:
    table = rolling.measure_gap(QUICK)["gap"]
    assert table["policy"][0] == "the bound"
    assert (table["of the bound"] <= 1.0 + 1e-9).all()
    assert table["of the bound"].min() > 0
