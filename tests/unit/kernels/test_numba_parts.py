"""Private parts of numba are used in known versions only; without them nothing is decided anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numba
import pytest

from shadowprice.kernels import numba_parts
from tests.support.waiting import WAIT_LIMIT_SECONDS

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled"),
]

ROOT = Path(__file__).parents[3]
RUN = textwrap.dedent(
    """
    import sys
    import numba
    numba.__version__ = sys.argv[1]
    from shadowprice.kernels import jit, numba_parts
    from shadowprice.kernels.stopwatch import preparing
    from tests.support.recorded_decisions import differences, known, recorded
    found = differences(recorded("fifo"), known("fifo"), "fifo")
    refined = {hasattr(compiled, "inner") for compiled in jit.kernels.values()}
    private = "shadowprice.kernels.inlining" in sys.modules
    print(numba_parts.are_known(), refined, private, preparing.seconds > 0.0, found)
    """
)


def run(version: str, cache: Path, plain: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-B", "-c", RUN, version],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache), numba_parts.PLAIN: plain},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("version", "plain", "told"),
    [
        (numba.__version__, "1", "False {False} False True []\n"),
        ("0.999.0", "", "False {False} False True []\n"),
        (numba.__version__, "0", "True {True} True True []\n"),
    ],
    ids=["asked for", "unknown version", "known version"],
)
def test_either_way_decides_what_was_recorded(
    version: str, plain: str, told: str, tmp_path: Path
) -> None:
    assert run(version, tmp_path, plain) == told


def test_versions_are_known_by_their_first_two_numbers() -> None:
    for known in ("0.68.1", "0.68.0rc1", "0.68.0+local"):
        assert numba_parts.is_known(known)
    for unknown in ("0.69.0", "0.6.8", "1.68.0", "0.680.0", "68", "unheard of"):
        assert not numba_parts.is_known(unknown)


def test_the_version_that_is_installed_for_tests_is_known() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.search(r"^numba==(\S+)$", text, re.MULTILINE)
    assert found is not None
    assert numba_parts.is_known(found[1])
