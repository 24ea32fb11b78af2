"""The one place where kernels meet the compiler."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

_IMPORT = re.compile(r"^from shadowprice\.kernels\.(\w+) import", re.MULTILINE)


def kernel(function: Function) -> Function:
    """Compile a function over plain arrays, cached on disk.

    Fast-math stays off: kernels compare prices, and a comparison that decides an admission must
    not depend on how the compiler reorders a sum. ``NUMBA_DISABLE_JIT=1`` runs the same code
    interpreted.

    Parameters
    ----------
    function : callable
        A function of arrays and scalars that numba's nopython mode accepts.

    Returns
    -------
    callable
        The compiled function, with the type of the original.
    """
    compiled = numba.njit(cache=True, error_model="numpy")(function)
    _renew_with_callees(compiled, function)
    return cast(Function, compiled)


def _renew_with_callees(compiled: Any, function: Callable[..., object]) -> None:
    """Make a cached kernel stale when a kernel file that it calls into changes.

    The compiler's own stamp covers the file of the function alone, but the machine code holds its
    callees too: after an upgrade of one file, the callers in another would run the old code.
    """
    stored = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if stored is None:  # interpreted, or no place to cache
        return
    file = Path(function.__code__.co_filename)
    stored._source_stamp = (stored._source_stamp, _stamp(file))


@cache
def _stamp(file: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, time and size of every kernel file that a file calls into."""
    called = {file.with_name(f"{name}.py") for name in _callees(file)}
    stats = [(path.name, path.stat()) for path in sorted(called) if path.exists()]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


@cache
def _callees(file: Path) -> frozenset[str]:
    """Return the kernel modules that a file imports, directly or not."""
    if not file.exists():
        return frozenset()
    direct = set(_IMPORT.findall(file.read_text(encoding="utf-8"))) - {file.stem}
    nested = (_callees(file.with_name(f"{name}.py")) for name in direct)
    return frozenset(direct).union(*nested)
