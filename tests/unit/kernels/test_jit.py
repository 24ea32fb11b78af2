"""Kernels on disk: none outlives the code that it calls, and none waits for the compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shadowprice.kernels import numba_parts
from tests.support.waiting import WAIT_LIMIT_SECONDS

CALLER = """
from shadowprice.kernels.jit import kernel
from shadowprice.kernels.inner.between import passed

@kernel
def doubled():
    return 2 * passed()
"""
BETWEEN = """
from shadowprice.kernels.jit import kernel
from shadowprice.kernels.inner.deeper.callee import (
    value,
)

@kernel
def passed():
    return value()
"""
CALLEE = """
from shadowprice.kernels.jit import kernel

@kernel
def value():
    return {}
"""

FILLED = """
import numpy as np

from shadowprice.kernels.jit import kernel

@kernel
def filled(count, value):
    if count < 0:
        raise ValueError("negative", count)
    made = np.empty((count, 2))
    made[:] = value
    return made.reshape(-1), made.sum()

@kernel
def repeated(count):
    values, total = filled(count, 2.0)
    return np.sort(values)[:1], total * np.linalg.norm(values)
"""
USED = """
import sys, shadowprice.kernels as kernels
kernels.__path__.append({folder!r})
from shadowprice.kernels.filled import filled, repeated
assert filled(3, 1.5)[0].tolist() == [1.5] * 6
assert filled(3, 1.5)[1] == 9.0
try:
    filled(-2, 1.5)
except ValueError as error:
    assert error.args == ("negative", -2)
ready = "numba.np.linalg" in sys.modules
assert ready is {compiles}, "the compiler was made ready" if ready else "it was not"
if {further}:
    assert repeated(2)[1] == 8.0 * 4.0
    assert filled(2, 1)[1] == 4.0
"""


compiled = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled"
)


@pytest.mark.compiles
@compiled
@pytest.mark.parametrize("plain", ["0", "1"], ids=["by private parts", "plain"])
def test_a_changed_callee_recompiles_its_callers_across_folders(tmp_path: Path, plain: str) -> None:
    deeper = tmp_path / "inner" / "deeper"
    deeper.mkdir(parents=True)
    for folder in (deeper.parent, deeper):
        (folder / "__init__.py").touch()
    (tmp_path / "caller.py").write_text(CALLER, encoding="utf-8")
    (deeper.parent / "between.py").write_text(BETWEEN, encoding="utf-8")
    script = (
        "import sys, shadowprice.kernels as kernels\n"
        f"kernels.__path__.append({str(tmp_path)!r})\n"
        "from shadowprice.kernels.caller import doubled\n"
        "print(doubled())\n"
    )

    def run(value: int) -> int:
        (deeper / "callee.py").write_text(CALLEE.format(value), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-B", "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {numba_parts.PLAIN: plain},
            timeout=WAIT_LIMIT_SECONDS,
        )
        return int(done.stdout)

    assert run(3) == 6
    assert run(3) == 6
    assert run(50) == 100


@pytest.mark.compiles
@compiled
@pytest.mark.skipif(not numba_parts.are_known(), reason="private parts of numba are left alone")
def test_a_kernel_on_disk_runs_without_the_compiler_and_can_be_compiled_into_others(
    tmp_path: Path,
) -> None:
    (tmp_path / "filled.py").write_text(FILLED, encoding="utf-8")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for compiles, further in ((True, False), (False, False), (False, True), (False, True)):
        script = USED.format(folder=str(tmp_path), compiles=compiles, further=further)
        subprocess.run(
            [sys.executable, "-B", "-c", script],
            check=True,
            env=environment,
            stderr=subprocess.DEVNULL if further or compiles else None,
            timeout=WAIT_LIMIT_SECONDS,
        )
