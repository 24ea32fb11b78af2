"""``shadowprice profile`` on a job that trains with torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from shadowprice.cli.main import main

pytest.importorskip("torch")
pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]


def test_a_torch_job_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "jobs.yaml"
    words = [
        "profile", "--workers", "1,2", "--precision", "0.2", "--time", "5min",
        "--out", str(out), "-o", "json",
        "--env", f"PYTHONPATH={ROOT / 'src'}", "--env", "OMP_NUM_THREADS=1",
        "--", sys.executable, str(ROOT / "tests" / "support" / "torch_job.py"),
    ]  # fmt: skip
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert [point["workers"] for point in result["points"]] == [1, 2]
    assert result["metrics"]["gradient_bytes"] == 4 * (64 * 256 + 256 + 256 * 8 + 8)
    # It computes for no longer than a step takes.
    alone = result["points"][0]
    assert result["metrics"]["minibatch_time"] > 0.0
    assert alone["metrics"]["minibatch_time"] < 1.2 * alone["step_time"]
    assert all(point["memory"]["worker"] > 50 << 20 for point in result["points"])
    assert "throughput: {1: " in out.read_text()
