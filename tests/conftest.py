"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

from tests.testbeds import control_plane, testbed

__all__ = ["control_plane", "testbed", "traces"]


@pytest.fixture(scope="session")
def traces() -> Path:
    """The shared trace files, or a skip that says how to have them."""
    default = Path(__file__).parents[2] / "shared" / "traces"
    folder = Path(os.environ.get("SHADOWPRICE_TRACES", default))
    if not folder.is_dir():
        pytest.skip(f"no trace files at {folder}; set SHADOWPRICE_TRACES to their folder")
    return folder
