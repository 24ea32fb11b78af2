"""Compilation of kernels, through numba's public interface and its undocumented ``_nrt``."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
from numba.core import event

from shadowprice.kernels.stopwatch import preparing

Function = TypeVar("Function", bound=Callable[..., object])
Number = TypeVar("Number", int, bool)

kernels: Final[dict[str, Any]] = {}
"""Compiled functions by ``module.name``, for instance ``replanning.plans.best_plan``."""

_ARRAY_FREE_WORDS: Final = {"None", "bool", "class", "float", "int", "tuple"}
"""Words of annotations without an array; the text of an evaluated one is ``<class 'int'>``."""


def kernel(function: Function) -> Function:
    """Compile a function over plain arrays when it is first called, and cache it on disk.

    ``NUMBA_DISABLE_JIT=1`` interprets the same code. The cache is in ``NUMBA_CACHE_DIR``, else
    beside the sources, else in the user's cache folder. If none of them is writable, every process
    compiles again.

    A kernel releases the GIL while it runs, so that other threads answer requests. Meanwhile no
    other thread may write its arrays, nor read arrays that it writes.
    """
    return _compile(function, inline="never")


def inlined(function: Function) -> Function:
    """Compile a function into its callers: only other kernels should call it.

    A separate kernel costs a second of compiling, because it unpacks its arrays for Python and is
    optimised once for itself and once in each caller. This decorator is for functions that have one
    caller or a few lines.
    """
    return _compile(function, inline="always")


def allocation_free(function: Function) -> Function:
    """Compile a kernel that neither allocates nor returns an array.

    Numba counts the references to each array by atomic instructions, even when a loop only indexes
    an array of a record. In kernels over records of arrays, counting took 60 % of the time. This
    decorator turns counting off (``_nrt``). Compiling fails if the kernel allocates. The kernel may
    only call inlined functions and allocation-free kernels, because callees inherit the option.
    Raises TypeError if it returns an array: its caller would release an uncounted reference.
    """
    returned = set(re.findall(r"\w+", str(function.__annotations__["return"])))
    if not returned <= _ARRAY_FREE_WORDS:
        raise TypeError(f"{function.__qualname__} returns an array")
    return _compile(function, inline="never", _nrt=False)


def _compile(function: Function, inline: str, **more_options: bool) -> Function:
    # Fast-math stays off: a comparison of prices must not depend on how a sum is reordered.
    options: dict[str, Any] = {"error_model": "numpy", "inline": inline, "nogil": True}
    options |= more_options
    _name_by_sources(function)
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no writable cache folder
        compiled = numba.njit(**options)(function)
    if compiled is not function:  # it is the function itself under NUMBA_DISABLE_JIT
        module = function.__module__.removeprefix("shadowprice.kernels.")
        kernels[f"{module}.{function.__name__}"] = compiled
    return cast(Function, compiled)


def constant(value: Number) -> Number:
    """Return a constant for arguments of kernels.

    If a kernel passes Python literals to another, numba compiles the callee again for each value,
    because the type of a literal contains its value. The type of a numpy number doesn't.
    """
    number = np.bool_(value) if isinstance(value, bool) else np.int64(value)
    return cast(Number, number)


def cache_folder() -> Path | None:
    """Return the folder of the disk cache, None without one."""
    # Numba chooses a folder for each kernel, so look at one of them.
    importlib.import_module("shadowprice.kernels.order")
    compiled = next(iter(kernels.values()), None)
    if compiled is None or compiled.stats.cache_path is None:
        return None
    path = Path(compiled.stats.cache_path)
    # Numba keeps a folder for each folder of sources: return their common parent.
    if path == Path(compiled.py_func.__code__.co_filename).parent / "__pycache__":
        return Path(__file__).parent
    # Numba read the variable when it was imported, and skips a folder that it can't write.
    configured = getattr(numba.config, "CACHE_DIR", "")
    return Path(configured) if configured and path.is_relative_to(configured) else path.parent


_KERNEL_IMPORT: Final = re.compile(r"^from shadowprice\.kernels\.([\w.]+) import", re.MULTILINE)


def sources_digest() -> str:
    """Return a digest of all kernels' sources, of the compiler and of the processor."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(_content_digest(file))
    digest.update(f"{numba.__version__} {sys.version} {get_host_cpu_name()}".encode())
    return digest.hexdigest()[:16]


def _name_by_sources(function: Callable[..., object]) -> None:
    """Append a digest of a function's file and of the kernel files that it imports to its name.

    Numba's cache identifies the functions of a file by their qualified names. It only discards
    machine code if the function's own file changed, although the code contains the callees too.
    Before that check it unpickles the record types of the arguments, which fails if they were
    renamed since. With the digest in the name, old entries are never found.
    """
    own = Path(function.__code__.co_filename)
    digest = hashlib.sha256()
    for file in sorted({own, *_imported_files(own)}):
        digest.update(_content_digest(file))
    function.__qualname__ += f"_{digest.hexdigest()[:16]}"


@cache
def _imported_files(file: Path) -> frozenset[Path]:
    """Return the kernel files that a file imports, directly or not."""
    imported_files: set[Path] = set()
    pending = [file]
    while pending:
        source = pending.pop()
        if not source.exists():  # an installation from an archive has no files
            continue
        for module in _KERNEL_IMPORT.findall(source.read_text(encoding="utf-8")):
            spec = find_spec(f"shadowprice.kernels.{module}")
            imported = Path(spec.origin) if spec is not None and spec.origin else file
            if imported != file and imported not in imported_files:
                imported_files.add(imported)
                pending.append(imported)
    return frozenset(imported_files)


@cache
def _content_digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest() if file.exists() else b""


def print_on_stderr(text: str) -> None:
    """Print a line on stderr, if there is one."""
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def compiling_notice() -> str:
    """Return the line that announces compiling, and whether the result is cached."""
    folder = cache_folder()
    if folder is None:
        return (
            "compiling kernels; no cache folder is writable, so every process compiles them "
            "again: set NUMBA_CACHE_DIR to a writable folder"
        )
    return f"compiling kernels, once only: they are kept in {folder}"


class _Announcer(event.Listener):
    """Counts the kernels that are compiled, and prints one line before the first."""

    def __init__(self) -> None:
        self.print_line: Callable[[str], None] | None = print_on_stderr
        self.announced = False
        self.compiled = 0

    def on_start(self, event: Any) -> None:
        if not event.data["dispatcher"].py_func.__module__.startswith("shadowprice.kernels."):
            return
        self.compiled += 1
        if not self.announced and self.print_line is not None:
            self.announced = True
            self.print_line(compiling_notice())

    def on_end(self, event: Any) -> None:
        """Do nothing: a second line would be mixed with a command's results."""


class _Timer(event.Listener):
    """Excludes loading and compiling of kernels from measured times."""

    def on_start(self, event: Any) -> None:
        del event
        preparing.start()

    def on_end(self, event: Any) -> None:
        del event
        preparing.stop()


announcer: Final = _Announcer()
cast(Any, event).register("numba:compile", announcer)
# The compiler holds this lock while it loads a kernel from disk, too.
cast(Any, event).register("numba:compiler_lock", _Timer())
