"""`experiment testbed --executor ray`: jobs of the papers' testbed train on nine nodes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from shadowprice.experiments.framework import ExperimentSettings, find_experiment, run_experiment
from shadowprice.experiments.live import ExecutorTarget
from shadowprice.experiments.testbed import measure
from shadowprice.policies.choice import PolicyChoice
from tests.support.ray_cluster import RayCluster

pytestmark = [pytest.mark.ray, pytest.mark.train, pytest.mark.long]

WORKERS = {"num_cpus": 2, "num_gpus": 1, "memory": 20 * 10**9}
NODES = {
    **{f"gpu-{number}": WORKERS for number in range(4)},
    **{f"cpu-{number}": {"num_cpus": 2, "memory": 20 * 10**9} for number in range(3)},
    **{f"ps-{number}": {"num_cpus": 1, "memory": 8 * 10**9} for number in range(2)},
}
"""All nine nodes: `fifo` draws worker counts that don't fit on fewer, and nothing starts."""


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_jobs_train_on_the_nodes_and_are_set_beside_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    small = measure.ExperimentScale(seconds=30, slots=2, jobs=1, policies=(PolicyChoice("drf"),))
    monkeypatch.setattr(measure, "QUICK", small)
    monkeypatch.setattr(measure, "PROBE_JOBS", 1)
    cluster = RayCluster(NODES)
    try:
        executor_settings = (f"node_dir={tmp_path / 'nodes'}", "memory=off")
        settings = ExperimentSettings(
            quick=True, target=ExecutorTarget("ray", cluster.address, executor_settings)
        )
        run_experiment(find_experiment("testbed"), tmp_path / "out", settings)
    finally:
        cluster.shutdown()
    found = {path.stem: pl.read_csv(path) for path in (tmp_path / "out").glob("*.csv")}
    assert found["starts"]["executor"].to_list() == ["ray"]
    assert found["starts"]["start"][0] > 0.0
    assert found["jobs"]["failures"].sum() == 0
    assert found["progress"]["measured"].max() > 0.0
