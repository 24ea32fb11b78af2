"""What kernels use of numba's private parts, and the versions whose private parts are known.

A private part may keep its name and change its meaning. That would give wrong machine code, or
code of sources that have changed since, so private parts are used only in versions that this was
tested with. With any other version, kernels are compiled and kept on disk as numba does it by
itself: the same results, only later. ``SHADOWPRICE_PLAIN_NUMBA=1`` asks for that with any version.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

import numba
from numba import types

from shadowprice.kernels.stopwatch import preparing

KNOWN_VERSIONS: Final = frozenset({(0, 68)})
"""Versions, as (major, minor), whose private parts are known; ``constraints.txt`` names one."""

PLAIN: Final = "SHADOWPRICE_PLAIN_NUMBA"
"""Environment variable that asks to leave private parts alone, unless it is empty or 0."""

_IMPORT = re.compile(r"^from shadowprice\.kernels\.([\w.]+) import", re.MULTILINE)


@cache
def are_known() -> bool:
    """Return whether the private parts of this numba are known and not to be left alone."""
    return os.environ.get(PLAIN, "0") in {"", "0"} and is_known(numba.__version__)


def is_known(version: str) -> bool:
    """Return whether the private parts of a version of numba are known."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) in KNOWN_VERSIONS


def options() -> dict[str, Any]:
    """Return the options of a compiled kernel."""
    plain = {"error_model": "numpy"}
    return plain | {"no_cfunc_wrapper": True} if are_known() else plain


def name_with_callees(function: Callable[..., object]) -> None:
    """Name a function by the state of what it calls, where private parts are left alone.

    The compiler's own stamp of what is on disk covers the file of the function alone, but the
    machine code holds its callees too: after an upgrade of one file, the callers in another would
    run the old code. Every numba tells the functions of a file apart by their qualified names.

    Parameters
    ----------
    function : callable
        A kernel that is not compiled yet.
    """
    if not are_known():
        callees = repr(_stamp(Path(function.__code__.co_filename)))
        function.__qualname__ += f"_{hashlib.sha256(callees.encode()).hexdigest()[:16]}"


def refine(compiled: Any, function: Callable[..., object]) -> None:
    """Make a kernel start faster, by private parts; where they are not known, leave it as it is.

    Parameters
    ----------
    compiled : Dispatcher
        What numba made of the function; nothing was compiled of it yet.
    function : callable
        The kernel as it is written.
    """
    if not are_known():
        return
    # They build on private parts when they are imported.
    from shadowprice.kernels.inlining import call_lightly  # noqa: PLC0415
    from shadowprice.kernels.loading import load_lightly  # noqa: PLC0415

    _renew_with_callees(compiled, function)
    load_lightly(compiled)
    call_lightly(compiled)
    _widen_literals(compiled)
    _time_preparation(compiled)


def is_kept(compiled: Any, arguments: tuple[Any, ...], *, inner: bool) -> bool | None:
    """Return whether an overload of a refined kernel is on disk; None where nothing tells.

    Parameters
    ----------
    compiled : Dispatcher
        A kernel that can be kept on disk.
    arguments : tuple
        Types of its arguments.
    inner : bool
        Whether only other kernels call this overload.
    """
    if not are_known():
        return None
    if inner:
        return bool(compiled.inner.is_kept(arguments))
    from shadowprice.kernels.inlining import is_kept as is_on_disk  # noqa: PLC0415

    return is_on_disk(compiled._cache, arguments, compiled.targetctx)


def make(compiled: Any, arguments: tuple[Any, ...], *, inner: bool) -> bool:
    """Compile an overload, or load it; return whether it was on disk.

    Parameters
    ----------
    compiled : Dispatcher
        A kernel.
    arguments : tuple
        Types of its arguments.
    inner : bool
        Whether only other kernels call this overload.
    """
    if inner and are_known():
        compiled.inner.result(arguments)
        return False
    before = sum(compiled.stats.cache_hits.values())
    compiled.compile(arguments)
    return bool(sum(compiled.stats.cache_hits.values()) > before)


def _time_preparation(compiled: Any) -> None:
    """Count the time of a first call, which compiles the kernel or loads it, as preparation."""
    prepare = compiled._compile_for_args

    def timed(*args: Any, **kws: Any) -> Any:
        with preparing.measuring():
            return prepare(*args, **kws)

    compiled._compile_for_args = timed


def _widen_literals(compiled: Any) -> None:
    """Let calls with constants use the same machine code as calls with variables.

    The compiler specialises a kernel for every constant that another kernel passes to it (side 0
    and side 1, for example), though none of them needs to know it beforehand.
    """
    template, unliteral = compiled.get_call_template, cast(Any, types.unliteral)

    def widened(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        return template(
            tuple(unliteral(arg) for arg in args),
            {name: unliteral(arg) for name, arg in kws.items()},
        )

    compiled.get_call_template = widened


def _renew_with_callees(compiled: Any, function: Callable[..., object]) -> None:
    """Make a cached kernel stale when a kernel file that it calls into changes.

    That is what `name_with_callees` is for elsewhere, which leaves old code on disk.
    """
    stored = getattr(compiled._cache, "_cache_file", None)
    if stored is None:  # no place to cache
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
