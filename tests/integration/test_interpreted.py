"""Compiled kernels decide as the same code does interpreted; every file of kernels takes part."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shadowprice.kernels
from tests.support.kernel_runs import results
from tests.support.waiting import WAIT_LIMIT_SECONDS

KERNELS = Path(shadowprice.kernels.__file__).parent


@pytest.mark.extended
def test_interpreted_kernels_decide_as_compiled_ones() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.kernel_runs"],
        cwd=root,
        env={
            **os.environ,
            "NUMBA_DISABLE_JIT": "1",
            "PYTHONPATH": f"{root}{os.pathsep}{KERNELS.parents[1]}",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    interpreted = json.loads(done.stdout)
    files = {
        path.relative_to(KERNELS).as_posix()
        for path in KERNELS.rglob("*.py")
        if re.search(
            r"^@(kernel|inlined|allocation_free)$", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert set(interpreted["files"]) == files, "add a run to `tests.support.kernel_runs`"
    assert interpreted["results"] == json.loads(json.dumps(results()))
