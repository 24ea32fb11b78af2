"""A cached kernel must not outlive the code that it calls, in whatever folder that is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_a_changed_callee_recompiles_its_callers_across_folders(tmp_path: Path) -> None:
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
            [sys.executable, "-B", "-c", script], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert run(3) == 6
    assert run(3) == 6
    assert run(50) == 100
