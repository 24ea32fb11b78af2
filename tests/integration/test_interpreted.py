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


CLAIM = """
from shadowprice.core.policy import PolicyContext
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from tests.support.astraea_cases import shared_cluster, shared_job

on = shared_cluster(1, worker=4)
job = shared_job(on, "a", None)
policy = make_policy("astraea", PolicyContext(on, known_jobs=[job]), {"lambda": 1})
Simulation(on, [job], policy).run([])
print(policy.guarantee([job])["batches"])
"""


def test_astraea_s_guarantee_doesn_t_need_compiled_kernels() -> None:
    """Interpreted kernels return NumPy's integers, which have no `bit_length`."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CLAIM],
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
    # Two workers of one slot each, in the first round from slot 2 on: e = 3 or 4.
    assert done.stdout == "2\n"
