"""The one place where kernels meet the compiler."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from numba.core import event

from shadowprice.kernels import numba_parts
from shadowprice.kernels.stopwatch import preparing

Function = TypeVar("Function", bound=Callable[..., object])

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
    numba_parts.name_with_callees(function)
    options = numba_parts.options()
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder of the three can be written
        compiled = numba.njit(**options)(function)
    if compiled is not function:  # as it is where code is interpreted
        numba_parts.refine(compiled, function)
        name = function.__module__.removeprefix("shadowprice.kernels.")
        kernels[f"{name}.{function.__name__}"] = compiled
    return cast(Function, compiled)


def cache_folder() -> Path | None:
    """Return the folder in which machine code is kept, None where there is none."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    for compiled in kernels.values():
        path = compiled.stats.cache_path
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


class _Timer(event.Listener):
    """Counts compiling as preparation; of loading, nothing public tells."""

    def __init__(self) -> None:
        self._blocks: list[AbstractContextManager[None]] = []

    def on_start(self, event: Any) -> None:
        del event
        self._blocks.append(preparing.measuring())
        self._blocks[-1].__enter__()

    def on_end(self, event: Any) -> None:
        del event
        self._blocks.pop().__exit__(None, None, None)


if not numba_parts.are_known():
    cast(Any, event).register("numba:compile", _Timer())
