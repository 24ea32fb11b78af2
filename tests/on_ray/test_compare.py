"""``shadowprice compare --on``: the same runs as on one machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from shadowprice.cli.main import main
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.ray


def test_a_comparison_is_that_of_one_machine(
    ray_cluster: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[2] / "examples"
    words = ["compare", "-c", str(root / "cluster.yaml"), "-j", str(root / "jobs.yaml"), "-q"]
    # Files of this machine go to the nodes with the runs.
    policy = tmp_path / "policy.py"
    shutil.copy(root / "policy.py", policy)
    words += ["-p", f"fifo,drf,{policy}:FirstFit", "--seeds", "2"]
    for name, more in (("here", []), ("there", ["--on", ray_cluster.address])):
        assert main([*words, *more, "--out", str(tmp_path / name)]) == 0
    assert not (tmp_path / "there.runs").exists()
    for label in ("fifo", "drf", "policy.FirstFit"):
        here, there = (tmp_path / name / label for name in ("here", "there"))
        files = {path.name for path in here.iterdir()}
        assert files == {path.name for path in there.iterdir()}
        for name in files - {"run.json", "report.html"}:  # these tell how long it took
            assert (here / name).read_bytes() == (there / name).read_bytes(), name
        told = [json.loads((one / "run.json").read_text()) for one in (here, there)]
        assert told[0]["summary"] == told[1]["summary"]
