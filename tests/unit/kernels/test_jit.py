"""A cached kernel must not outlive the code that it calls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLER = """
from shadowprice.kernels.jit import kernel
from shadowprice.kernels.callee import value

@kernel
def doubled():
    return 2 * value()
"""
CALLEE = """
from shadowprice.kernels.jit import kernel

@kernel
def value():
    return {}
"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_a_changed_callee_recompiles_its_callers(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER, encoding="utf-8")
    script = (
        "import sys, shadowprice.kernels as kernels\n"
        f"kernels.__path__.append({str(tmp_path)!r})\n"
        "from shadowprice.kernels.caller import doubled\n"
        "print(doubled())\n"
    )

    def run(value: int) -> int:
        (tmp_path / "callee.py").write_text(CALLEE.format(value), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-B", "-c", script], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert run(3) == 6
    assert run(3) == 6
    assert run(50) == 100
