"""The families of the papers' testbed learn, resized as well as at a fixed size.

The train suite runs one family with one seed, and a step of each family. `make test SUITE=families`
runs all six, with the seeds of the table in `docs/training-servers.md`. It stores its results in
``runs/families.json``, and continues from them after an interruption.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

from tests.train.servers import generations
from tests.train.servers.families import FAMILIES, STEPS, Runs, learn, run

pytestmark = pytest.mark.train

KEPT = os.environ.get("SHADOWPRICE_TEST_FAMILIES", "")
"""A file that stores runs of all families."""

ALL = bool(KEPT)
SEEDS = range(3)
OFF = 0.05
"""Maximum difference between means over seeds, if seeds themselves differ less:

five images of 100.
"""


@pytest.mark.extended
@pytest.mark.skipif(ALL, reason="that of one seed is one of those of all")
def test_resized_it_learns(tmp_path: Path) -> None:
    losses, accuracy = run(tmp_path / "job", FAMILIES[0], "resized", seed=0, epochs=10)
    assert fmean(losses[-STEPS:]) < 0.5 * fmean(losses[:STEPS])
    assert accuracy > 0.6  # guessing is 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_a_step(tmp_path: Path, family: str) -> None:
    words = ["--family", family, "--divide", "8", "--images", "4", "--minibatch", "4"]
    words += ["--data", str(tmp_path / "images")]
    begun = generations.Generation(tmp_path, learn, 1, 1, words=words)
    assert set(begun.ended().values()) == {0}, begun.said()
    said = (tmp_path / "worker-0.log").read_text()
    assert f"done: 1 mini-batches of {family}, " in said, begun.said()
    assert json.loads((tmp_path / "images" / "index.json").read_text())["chunks"][0][1] == 4


@pytest.mark.skipif(not ALL, reason="takes half an hour; runs in make test SUITE=families")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", FAMILIES)
def test_resized_it_learns_as_well_as_at_a_fixed_size(family: str) -> None:
    runs = Runs(Path(KEPT))
    right: dict[str, list[float]] = {"fixed": [], "resized": []}
    for way, found in right.items():
        for seed in SEEDS:
            losses, accuracy = runs.of(family, way, seed)
            assert fmean(losses[-STEPS:]) < 0.5 * fmean(losses[:STEPS]), (way, seed)
            assert accuracy > 0.6, (way, seed)
            found.append(accuracy)
    spread = max(max(found) - min(found) for found in right.values())
    assert abs(fmean(right["resized"]) - fmean(right["fixed"])) <= max(spread, OFF), right
