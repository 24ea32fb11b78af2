"""The examples train for real, for a few steps."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from tests.train.generations import Job

pytestmark = pytest.mark.train

EXAMPLES = Path(__file__).parents[2] / "examples" / "training"


def test_digits_are_learnt_over_a_move(tmp_path: Path) -> None:
    job = Job(tmp_path, str(EXAMPLES / "digits.py"), words=("--epochs", "6", "--width", "16"))
    try:
        generation = job.start(2)
        job.until((tmp_path / "progress.json").exists)
        generation.signal(signal.SIGTERM)
        assert set(generation.wait()) <= {143, 0}, generation.logs()
        job.run(1)
        said = job.began[-1].log()
    finally:
        job.end()
    found = re.search(r"done: loss ([\d.]+), ([\d.]+)% right", said)
    assert found, said
    assert float(found[2]) > 90.0


def test_a_gpt_learns_to_write(tmp_path: Path) -> None:
    job = Job(tmp_path, str(EXAMPLES / "gpt.py"), words=("--steps", "40", "--width", "48"))
    try:
        job.run(2)
        said = job.began[-1].log()
    finally:
        job.end()
    found = re.search(r"done: loss ([\d.]+); guessing is ([\d.]+)", said)
    assert found, said
    assert float(found[1]) < 0.95 * float(found[2])
