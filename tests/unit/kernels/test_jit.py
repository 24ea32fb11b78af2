"""Compilation of kernels: caching, inlining, constants, and the progress message."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import shadowprice.kernels as kernels_package
from shadowprice.kernels.arrays import Integers
from shadowprice.kernels.jit import allocation_free, kernels
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

compiled = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled"
)


@pytest.mark.compiles
@compiled
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
            [sys.executable, "-B", "-c", script],
            capture_output=True,
            text=True,
            check=True,
            timeout=WAIT_LIMIT_SECONDS,
        )
        return int(done.stdout)

    assert run(3) == 6
    assert run(3) == 6
    assert run(50) == 100


RECORDS = """
from typing import NamedTuple
from shadowprice.kernels.jit import kernel

class {name}(NamedTuple):
    value: int

@kernel
def doubled(record):
    return 2 * record.value

print(doubled({name}(4)))
"""


@pytest.mark.compiles
@compiled
def test_code_that_was_cached_for_a_renamed_record_is_ignored(tmp_path: Path) -> None:
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
    }
    for name in ("Record", "Renamed"):
        (tmp_path / "records.py").write_text(RECORDS.format(name=name), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-B", "-c", "import records"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=WAIT_LIMIT_SECONDS,
        )
        assert done.stdout == "8\n", done.stderr


LITERALS = """
import numpy as np
from numba.core import event
from shadowprice.kernels.jit import constant, inlined, kernel, kernels

ONE, SURE = constant(1), constant(True)

@inlined
def halved(n):
    if n % 2:
        raise ValueError("odd", n)
    return n // 2

@kernel
def added(n, m, sure):
    return n + m if sure else n

@kernel
def called(n, sure):
    return added(halved(n), ONE, SURE) + added(n, n, sure)

class Seen(event.Listener):
    names = []
    def on_start(self, event):
        self.names.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event):
        pass

event.register("numba:compile", Seen())
print(called(8, True), sorted(Seen.names))
try:
    called(9, True)
except ValueError as error:
    print(error.args)
"""


@pytest.mark.compiles
@compiled
def test_functions_are_inlined_and_constants_are_no_types(tmp_path: Path) -> None:
    (tmp_path / "literals.py").write_text(LITERALS, encoding="utf-8")
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
    }
    # From the compiler, and from the cache.
    for names in ("['added', 'called']", "[]"):
        done = subprocess.run(
            [sys.executable, "-B", "-c", "import literals"],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            timeout=WAIT_LIMIT_SECONDS,
        )
        assert done.stdout == f"21 {names}\n('odd', 9)\n"


def test_without_a_compiler_a_kernel_is_the_function() -> None:
    script = (
        "from shadowprice.kernels.jit import allocation_free, constant, inlined, kernel\n"
        "def halved(n: int) -> int: return n // 2\n"
        "for compiled in (kernel, inlined, allocation_free): assert compiled(halved) is halved\n"
        "assert halved(constant(8)) == 4\n"
    )
    subprocess.run(
        [sys.executable, "-B", "-c", script],
        check=True,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        timeout=WAIT_LIMIT_SECONDS,
    )


@compiled
def test_every_kernel_releases_the_gil() -> None:
    for module in pkgutil.walk_packages(kernels_package.__path__, "shadowprice.kernels."):
        importlib.import_module(module.name)
    assert len(kernels) > 50
    for name, function in kernels.items():
        assert function.targetoptions["nogil"], name


@compiled
def test_an_allocation_free_kernel_calls_no_other_kernels() -> None:
    """Callees inherit the option; one that returns an array would free it twice."""
    for module in pkgutil.walk_packages(kernels_package.__path__, "shadowprice.kernels."):
        importlib.import_module(module.name)
    free = {
        name: kernel
        for name, kernel in kernels.items()
        if kernel.targetoptions.get("_nrt") is False
    }
    assert free
    for name, function in free.items():
        scope = function.py_func.__globals__
        for called in function.py_func.__code__.co_names:
            callee = scope.get(called)
            if callee in kernels.values() and callee.targetoptions["inline"] == "never":
                assert callee in free.values(), f"{name} calls {called}"


def test_an_allocation_free_kernel_returns_no_array() -> None:
    def first_row(table: Integers) -> Integers:
        row: Integers = table[0]
        return row

    def both(table: Integers) -> tuple[int, Integers]:
        return 1, table

    for function in (first_row, both):
        with pytest.raises(TypeError, match="returns an array"):
            allocation_free(function)
