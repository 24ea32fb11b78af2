"""The papers' testbed on nine real nodes:

pods train, and results are compared with the simulator.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import yaml
from tools.testbed import BASE, Testbed, missing
from tools.testbed.audit import Audit
from tools.testbed.papers import nodes, pod

from shadowprice.experiments.framework import ExperimentSettings, find_experiment, run_experiment
from shadowprice.experiments.live import ExecutorTarget
from shadowprice.experiments.testbed import measure
from shadowprice.policies.choice import PolicyChoice


@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_pods_train_on_nine_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    reason = missing()
    if reason:
        pytest.skip(reason)
    small = measure.ExperimentScale(seconds=35, slots=2, jobs=2, policies=(PolicyChoice("drf"),))
    monkeypatch.setattr(measure, "QUICK", small)
    capacity = nodes(1)
    assert len(capacity) == 9
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod()))
    (tmp_path / "jobs").mkdir()
    settings = (f"image={BASE}", f"pod={tmp_path / 'pod.yaml'}", f"shared={tmp_path / 'jobs'}")
    with Testbed({name: {} for name in capacity}, capacity=capacity) as bed:
        target = ExecutorTarget("kubernetes", str(bed.kubeconfig), settings, f"{bed.gateway}:0")
        out = tmp_path / "out"
        run_experiment(
            find_experiment("testbed"), out, ExperimentSettings(quick=True, target=target)
        )
        assert bed.ask("GET", "/api/v1/namespaces/default/pods")["items"] == []
        assert Audit.read(bed.audit).faults() == []
    jobs = pl.read_csv(out / "jobs.csv")
    assert len(jobs) == 2
    assert jobs["failures"].sum() == 0
    assert pl.read_csv(out / "progress.csv")["measured"].max() > 0.0
