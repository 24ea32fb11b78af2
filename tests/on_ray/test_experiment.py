"""`experiment elastic-training --executor ray`: real jobs on nodes, beside the simulator."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from shadowprice.experiments.elastic import measure
from shadowprice.experiments.framework import ExperimentSettings, find_experiment, run_experiment
from shadowprice.experiments.live import ExecutorTarget
from shadowprice.policies.choice import PolicyChoice
from tests.support.ray_cluster import RayCluster

pytestmark = [pytest.mark.ray, pytest.mark.long]


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_jobs_train_on_the_nodes_and_are_set_beside_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tuple(
        measure.WorkloadJob(name, tenant, after, 10, {"kind": "constant", "value": 5})
        for name, tenant, after in (("one", "vision", 0.0), ("two", "language", 4.0))
    )
    monkeypatch.setattr(measure, "WORKLOAD", small)
    monkeypatch.setattr(measure, "POLICIES", (PolicyChoice("drf"),))
    monkeypatch.setattr(measure, "WORKER_COUNTS", (1, 2))
    cluster = RayCluster({name: {"num_cpus": 2} for name in measure.SERVERS})
    try:
        target = ExecutorTarget("ray", cluster.address, (f"node_dir={tmp_path / 'nodes'}",))
        out = tmp_path / "out"
        chosen = find_experiment("elastic-training")
        run_experiment(chosen, out, ExperimentSettings(quick=True, target=target))
    finally:
        cluster.shutdown()
    found = {path.stem: pl.read_csv(path) for path in out.glob("*.csv")}
    assert found["starts"]["executor"].to_list() == ["ray"]
    # Starting an actor and then a process takes longer than a slot of the default length.
    assert found["starts"]["slot"][0] >= measure.MIN_STARTS_PER_SLOT * found["starts"]["restart"][0]
    assert found["jobs"]["state"].to_list() == ["finished"] * 2
    assert found["jobs"]["failures"].to_list() == [0, 0]
    assert found["progress"].group_by("job").agg(pl.col("measured").max())[
        "measured"
    ].to_list() == [1.0, 1.0]
