"""No test waits for ever, in any attempt or phase."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_LIMIT_SECONDS

ROOT = Path(__file__).parents[2]

WAITING = """
import time

import pytest

TRIES = []


@pytest.fixture
def busy():
    yield
    if {where!r} == "teardown" and len(TRIES) == 1:
        time.sleep(600)


@pytest.mark.processes
@pytest.mark.timeout(3)
def test_fails_and_waits(busy):
    TRIES.append(1)
    if {where!r} == "second try" and len(TRIES) == 2:
        time.sleep(600)
    raise AssertionError("the first failure")
"""


@pytest.mark.parametrize("where", ["second try", "teardown"])
def test_what_comes_after_a_failure_has_a_limit_too(tmp_path: Path, where: str) -> None:
    pytest.importorskip("pytest_rerunfailures")
    (tmp_path / "test_waits.py").write_text(WAITING.format(where=where))
    words = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
    words += ["--rootdir", str(ROOT), "-p", "tests.conftest", str(tmp_path)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_LIMIT_SECONDS, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout (>3.0s)" in done.stdout
    assert "the first failure" in done.stdout
