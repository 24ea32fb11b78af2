"""Every benchmark can still be run: what it imports is there."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("bench_*.py")))
def test_a_benchmark_finds_what_it_measures(name: str) -> None:
    assert importlib.import_module(f"benchmarks.{name}").__doc__
