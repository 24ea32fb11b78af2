"""The one place where kernels meet the compiler."""

import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

_IMPORT = re.compile(r"^from shadowprice\.kernels\.([\w.]+) import", re.MULTILINE)


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
    stats = [(path, path.stat()) for path in sorted(_callees(file)) if path.exists()]
    return tuple(
        (f"{path.parent.name}/{path.name}", stat.st_mtime_ns, stat.st_size) for path, stat in stats
    )


@cache
def _callees(file: Path) -> frozenset[Path]:
    """Return the kernel files that a file imports, directly or not."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        source = waiting.pop()
        if not source.exists():
            continue
        for name in _IMPORT.findall(source.read_text(encoding="utf-8")):
            callee = _source_of(f"shadowprice.kernels.{name}")
            if callee is not None and callee not in found and callee != file:
                found.add(callee)
                waiting.append(callee)
    return frozenset(found)


@cache
def _source_of(module: str) -> Path | None:
    """Return the file of a kernel module, wherever its folder is, without running it."""
    found = find_spec(module)
    return None if found is None or found.origin is None else Path(found.origin)
