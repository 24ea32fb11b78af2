"""Machine code from disk, without what only compiling needs.

Numba readies itself for compiling before it loads a kernel that is compiled already: it imports
its whole library of typed functions, and with it scipy's linear algebra, and unpickles every
kernel's references into that library. That takes half a second of every process, most of a small
run. A kernel on disk needs none of it: its object code, the runtime's entry points by name, and
the constants that its own errors carry. What is missing here is made up for by numba itself, as
soon as there is something to compile.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from pathlib import Path
from typing import Any, Final, cast

from llvmlite import binding  # type: ignore[import-untyped]
from numba.core import environment
from numba.core.runtime import _nrt_python  # type: ignore[attr-defined]


def load_lightly(compiled: Any) -> None:
    """Let a dispatcher load what is on disk for it without readying the compiler.

    Parameters
    ----------
    compiled : Dispatcher
        One that has no place to keep its machine code on disk is left as it is.
    """
    cache = compiled._cache
    stored = getattr(cache, "_cache_file", None)
    if stored is None:
        return

    def load_overload(signature: Any, context: Any) -> Any:
        _name_entry_points()
        return cache._load_overload(signature, context)

    def load_data(name: str) -> Any:
        data = Path(stored._data_path(name)).read_bytes()
        if _HASHES in data:  # the one other entry point, which a module names when it is imported
            importlib.import_module("numba.cpython.hashing")
        return _Light(io.BytesIO(data)).load()

    cache.load_overload = load_overload
    stored._load_data = load_data


_HASHES: Final = b"_numba_hashsecret"
_entry_points: dict[str, int] = _nrt_python.c_helpers
_named: list[bool] = []


def _name_entry_points() -> None:
    """Tell the linker where numba's runtime is, as its initialisation does, once."""
    if _named:
        return
    for name, address in _entry_points.items():
        binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    _named.append(True)


class _Light(pickle.Unpickler):
    """Reads a compiled kernel without importing the modules of the functions that it inlined."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == (environment.__name__, "_rebuild_env"):
            return _rebuild_environment
        return super().find_class(module, name)


def _rebuild_environment(module: str, constants: list[Any], name: str) -> Any:
    """Return the constants of an inlined function; its globals serve object mode alone."""
    known = cast(Any, environment).lookup_environment(name)
    if known is not None:
        return known
    # Its name is what would be written, were it ever pickled again.
    around = sys.modules[module].__dict__ if module in sys.modules else {"__name__": module}
    made = environment.Environment(around)
    made.consts[:] = constants
    made.env_name = name
    cast(Any, environment.Environment)._memo[name] = made
    return made
