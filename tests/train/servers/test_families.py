"""The families of the papers' testbed learn, resized as well as at a fixed size.

One family and seed here; `make test-families` tries all six, with the seeds of the table in
`docs/training-servers.md`. It keeps what it has run (``runs/families.json``): cut off, it goes on.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("torch")
if importlib.util.find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

from tests.train.servers.families import FAMILIES, STEPS, Runs

pytestmark = pytest.mark.train

KEPT = os.environ.get("SHADOWPRICE_TEST_FAMILIES", "")
"""A file in which runs of all families are kept."""

ALL = bool(KEPT)
SEEDS = range(3 if ALL else 1)
OFF = 0.05
"""What may lie between means over seeds, if seeds themselves differ less: five images of 100."""


@pytest.mark.timeout(1800 if ALL else 600)
@pytest.mark.parametrize("family", FAMILIES if ALL else FAMILIES[:1])
def test_resized_it_learns_as_well_as_at_a_fixed_size(family: str) -> None:
    runs = Runs(Path(KEPT) if KEPT else None)
    right: dict[str, list[float]] = {"fixed": [], "resized": []}
    for way, found in right.items():
        for seed in SEEDS:
            losses, accuracy = runs.of(family, way, seed)
            assert fmean(losses[-STEPS:]) < 0.5 * fmean(losses[:STEPS]), (way, seed)
            assert accuracy > 0.6, (way, seed)  # guessing is 0.1
            found.append(accuracy)
    if ALL:
        spread = max(max(found) - min(found) for found in right.values())
        assert abs(fmean(right["resized"]) - fmean(right["fixed"])) <= max(spread, OFF), right
