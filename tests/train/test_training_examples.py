"""The examples really train, for a few steps."""

from __future__ import annotations

import io
import json
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from shadowprice import jobs
from tests.train.generations import Job

pytestmark = pytest.mark.train

EXAMPLES = Path(__file__).parents[2] / "examples" / "training"


def test_digits_are_learnt_over_a_move(tmp_path: Path) -> None:
    job = Job(tmp_path, str(EXAMPLES / "digits.py"), words=("--epochs", "6", "--width", "16"))
    try:
        generation = job.start(2)
        job.until((tmp_path / "progress.json").exists)
        generation.signal(signal.SIGTERM)
        assert set(generation.ended()) <= {143, 0}, generation.logs()
        job.run(1)
        said = job.began[-1].log()
    finally:
        job.end()
    result = re.search(r"done: loss ([\d.]+), ([\d.]+)% right", said)
    assert result, said
    assert float(result[2]) > 90.0


def test_a_gpt_learns_to_write(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        str(EXAMPLES / "gpt.py"),
        words=("--steps", "30", "--width", "48", "--layers", "1"),
    )
    try:
        job.run(2)
        said = job.began[-1].log()
    finally:
        job.end()
    result = re.search(r"done: loss ([\d.]+); guessing is ([\d.]+)", said)
    assert result, said
    assert float(result[1]) < 0.95 * float(result[2])


def test_a_loop_in_ray_trains_form_continues_with_another_number_of_workers(tmp_path: Path) -> None:
    moved, alone = (Job(tmp_path / name, "paced_loop.py") for name in ("moved", "alone"))
    try:
        generation = moved.start(3)
        moved.until((moved.folder / "progress.json").exists)
        generation.signal(signal.SIGTERM)
        assert generation.ended() == [143] * 3, generation.logs()
        first = jobs.load(moved.checkpoints)
        assert first is not None
        assert 0 < first.step < 60
        moved.run(2)
        assert "done: step 60" in moved.began[-1].log()
        alone.run(1)
    finally:
        moved.end()
        alone.end()
    assert json.loads((moved.folder / "progress.json").read_bytes())["minibatches"] == 60
    learnt = []
    for one in (moved, alone):
        result = jobs.load(one.checkpoints)
        assert result is not None
        assert result.step == 60
        learnt.append(torch.load(io.BytesIO(result.data), weights_only=True)["model"])
    # 3 workers can't share 32 samples evenly, and their means have equal weights. The last steps
    # correct that.
    for name, value in learnt[1].items():
        torch.testing.assert_close(learnt[0][name], value, rtol=0.01, atol=0.02)
