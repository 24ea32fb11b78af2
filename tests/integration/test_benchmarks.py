"""Every benchmark can be imported and run."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.py")))
def test_benchmarks_run(name: str) -> None:
    try:
        benchmark = importlib.import_module(f"benchmarks.{name}")
    except SystemExit as ended:  # it names the missing extra that it needs
        if "pip install 'shadowprice[" not in str(ended.code):
            raise
        pytest.skip(str(ended.code))
    assert benchmark.__doc__
