"""Every benchmark can still be run: what it imports is there."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"

NEEDS = {"bench_servers": ("torch", "fsspec", "sklearn")}
"""What some need beyond what the tests install."""


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("bench_*.py")))
def test_a_benchmark_finds_what_it_measures(name: str) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    assert importlib.import_module(f"benchmarks.{name}").__doc__
