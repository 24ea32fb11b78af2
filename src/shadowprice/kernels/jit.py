"""The one place where kernels meet the compiler."""

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from numba import types
from numba.core import event
from numba.core.dispatcher import Dispatcher

from shadowprice.kernels.inlining import call_lightly
from shadowprice.kernels.loading import load_lightly
from shadowprice.kernels.stopwatch import preparing

Function = TypeVar("Function", bound=Callable[..., object])

_IMPORT = re.compile(r"^from shadowprice\.kernels\.([\w.]+) import", re.MULTILINE)
_OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy", "no_cfunc_wrapper": True}

kernels: Final[dict[str, Any]] = {}
"""Compiled functions by ``module.name``, without the package's own prefix."""


def kernel(function: Function) -> Function:
    """Compile a function over plain arrays, cached on disk where there is a place for it.

    Fast-math stays off: kernels compare prices, and a comparison that decides an admission must
    not depend on how the compiler reorders a sum. ``NUMBA_DISABLE_JIT=1`` runs the same code
    interpreted. Machine code is kept in ``NUMBA_CACHE_DIR`` where that is set, else beside the
    sources, else in the user's cache folder; where none of them can be written, every process
    compiles anew.

    Parameters
    ----------
    function : callable
        A function of arrays and scalars that numba's nopython mode accepts.

    Returns
    -------
    callable
        The compiled function, with the type of the original.
    """
    try:
        compiled = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no folder of the three can be written
        compiled = numba.njit(**_OPTIONS)(function)
    if isinstance(compiled, Dispatcher):
        _renew_with_callees(compiled, function)
        load_lightly(compiled)
        call_lightly(compiled)
        _widen_literals(compiled)
        _time_preparation(compiled)
        name = function.__module__.removeprefix("shadowprice.kernels.")
        kernels[f"{name}.{function.__name__}"] = compiled
    return cast(Function, compiled)


def cache_folder() -> Path | None:
    """Return the folder in which machine code is kept, None where there is none."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    for compiled in kernels.values():
        path = getattr(getattr(compiled, "_cache", None), "cache_path", None)
        if path is None:
            return None
        # Numba keeps a folder for each folder of sources; the one that holds them all is told.
        beside = Path(compiled.py_func.__code__.co_filename).parent / "__pycache__"
        if Path(path) == beside:
            return Path(__file__).parent
        return Path(chosen) if chosen else Path(path).parent
    return None


def say_on_stderr(text: str) -> None:
    """Print a line on stderr, where there is one."""
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


class _Announcer(event.Listener):
    """Says once that kernels are being compiled, whoever called them."""

    say: Callable[[str], None] | None = staticmethod(say_on_stderr)
    told = False

    def on_start(self, event: Any) -> None:
        ours = event.data["dispatcher"].py_func.__module__.startswith("shadowprice.kernels.")
        if not ours or self.told or self.say is None:
            return
        self.told = True
        self.say(compiling_notice())

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


def compiling_notice() -> str:
    """Return the line that says what takes so long, and whether it will again."""
    folder = cache_folder()
    if folder is None:
        return (
            "compiling kernels; no cache folder can be written, so every process compiles them "
            "anew: set NUMBA_CACHE_DIR to a folder that can"
        )
    return f"compiling kernels, once only: they are kept in {folder}"


announcer: Final = _Announcer()
cast(Any, event).register("numba:compile", announcer)


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
