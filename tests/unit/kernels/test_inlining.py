# mypy: disable-error-code="no-untyped-def"
"""Kernels that only kernels call are compiled as far as callers need, and whole when asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shadowprice.kernels import numba_parts
from tests.support.waiting import WAIT_LIMIT_SECONDS

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.processes,
    pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled"),
]
known = pytest.mark.skipif(
    not numba_parts.are_known(), reason="private parts of numba are left alone"
)
both_ways = pytest.mark.parametrize("plain", ["0", "1"], ids=["by private parts", "plain"])
KERNELS = textwrap.dedent(
    """
    from shadowprice.kernels.jit import kernel

    @kernel
    def halved(n):
        if n % 2:
            raise ValueError("odd", n)
        return n // 2

    @kernel
    def steps(n):
        total = 0
        while n > 1:
            n = halved(n) if n % 2 == 0 else 3 * n + 1
            total += 1
        return total

    @kernel
    def strict(n):
        return halved(n) + 1
    """
)
PROLOGUE = textwrap.dedent(
    """
    import numpy as np
    from numba.core import event
    from pairs import halved, steps, strict

    seen = []
    class Seen(event.Listener):
        def on_start(self, event):
            seen.append(event.data["dispatcher"].py_func.__name__)
        def on_end(self, event):
            pass
    event.register("numba:compile", Seen())

    def refused(call):
        try:
            call()
        except ValueError as error:
            return error.args
    """
)


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "pairs.py").write_text(KERNELS)

    def run(code: str, cache: str = str(tmp_path / "cache"), **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-B", "-W", "error", "-c", PROLOGUE + textwrap.dedent(code)],
            env=os.environ
            | {
                "NUMBA_CACHE_DIR": cache,
                "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
                **environment,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_LIMIT_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@known
def test_a_callee_is_compiled_for_its_caller_alone(run) -> None:
    # A call, the caller on disk, the callee on disk, and then the callee from Python.
    first = "print(steps(27), seen, len(halved.overloads), len(halved.inner.overloads))"
    assert run(first) == "111 ['steps', 'halved'] 0 1\n"
    assert run(first) == "111 [] 0 0\n"
    assert run("print(strict(10), seen)") == "6 ['strict']\n"
    assert run("print(halved(10), seen, len(halved.overloads))") == "5 ['halved'] 1\n"
    assert run("print(halved(10), seen)") == "5 []\n"


@known
def test_a_whole_callee_serves_its_callers(run) -> None:
    assert run("print(halved(8), steps(8), seen, len(halved.inner.overloads))") == (
        "4 3 ['halved', 'steps'] 0\n"
    )
    assert run("print(strict(8), seen, len(halved.overloads))") == "5 ['strict'] 1\n"


@known
def test_one_process_may_need_both(run) -> None:
    assert run("print(steps(27), halved(8), strict(8), seen)") == (
        "111 4 5 ['steps', 'halved', 'halved', 'strict']\n"
    )


@both_ways
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
def test_errors_of_callees_keep_what_they_tell(run, kept: bool, plain: str) -> None:
    cache = {} if kept else {"cache": "/dev/null/nowhere"}
    raised = "print(refused(lambda: strict(7)), refused(lambda: halved(9)))"
    for _ in range(2):
        assert run(raised, **cache, SHADOWPRICE_PLAIN_NUMBA=plain) == "('odd', 7) ('odd', 9)\n"


@both_ways
def test_what_changes_makes_both_kinds_stale(run, tmp_path: Path, plain: str) -> None:
    way = {"SHADOWPRICE_PLAIN_NUMBA": plain}
    assert run("print(strict(10))", **way) == "6\n"
    changed = KERNELS.replace("return n // 2", "return n // 2 + 100")
    (tmp_path / "pairs.py").write_text(changed)
    assert run("print(strict(10), halved(10))", **way) == "106 105\n"
