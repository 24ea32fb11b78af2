"""Compiling what a policy needs before it is needed, on all processors.

The compiler works on one kernel at a time in a process, but what it makes is kept on disk, so
several processes share the work: each takes the next kernel whose own kernels are ready. Which
kernels a policy calls, with which types, is in ``manifest.json`` (``python -m
benchmarks.record_kernels`` writes it, and a test holds it to what runs call). What is not in there
is compiled when it is first called.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from numba import types

from shadowprice.kernels import jit, numba_parts
from shadowprice.kernels.manifest import Overload, overloads_of
from shadowprice.kernels.stopwatch import preparing

try:
    import fcntl
except ImportError:  # another system: two first runs at once then do the work twice
    fcntl = None  # type: ignore[assignment]

_any: Final = cast(Any, types)
_TYPES: Final[dict[str, Any]] = {
    **{name: getattr(types, name) for name in ("int64", "int32", "int16", "int8", "uint8")},
    **{name: getattr(types, name) for name in ("uint64", "uint32", "float64", "float32")},
    "bool": types.boolean,
    "none": types.none,
    "Array": types.Array,
    "plain": lambda *parts: _any.Tuple(parts),
    "Tuple": lambda *parts: _any.Tuple(parts),
    "List": _any.List,
    "named": lambda module, name, *parts: _any.BaseTuple.from_types(
        parts, getattr(importlib.import_module(module), name)
    ),
}


def described(arguments: Iterable[Any]) -> str:
    """Return argument types as text that `types_of` reads back."""
    return ", ".join(_described(one) for one in arguments)


def _described(one: Any) -> str:
    if not isinstance(one, types.BaseTuple):
        return repr(one)
    parts = described(cast(Any, one).types)
    if isinstance(one, types.BaseNamedTuple):
        kind = cast(Any, one).instance_class
        return f"named({kind.__module__!r}, {kind.__qualname__!r}, {parts})"
    return f"plain({parts})"


def types_of(overload: Overload) -> tuple[Any, ...]:
    """Return the argument types of an overload."""
    found = eval(f"({overload.signature},)", {"__builtins__": {}}, _TYPES)
    assert isinstance(found, tuple)
    return found


_KEPT: Final = "kept"
"""What a worker answers of an overload that it found on disk."""

_prepared: Final[set[str]] = set()
"""Policies that `prepare` has seen to in this process."""


def load(name: str) -> Any | None:
    """Return a kernel by name, None where there is none of that name (any more)."""
    if name not in jit.kernels:
        with suppress(ImportError):
            importlib.import_module(f"shadowprice.kernels.{name.rpartition('.')[0]}")
    return jit.kernels.get(name)


def folder_for(groups: Iterable[str]) -> Path | None:
    """Return where the kernels of policies are kept, None where no folder can be written."""
    for overload in overloads_of(groups):
        load(overload.name)
    return jit.cache_folder()


def is_kept(overload: Overload, *, unsure: bool) -> bool:
    """Return whether an overload is on disk as it is called, or cannot be kept there.

    Parameters
    ----------
    overload : Overload
        What is looked for.
    unsure : bool
        What to return where nothing tells, as numba's private parts are left alone.
    """
    compiled = load(overload.name)
    if compiled is None or compiled.stats.cache_path is None:
        return True
    found = numba_parts.is_kept(compiled, types_of(overload), inner=overload.inner)
    return unsure if found is None else found


def callees(name: str) -> frozenset[str]:
    """Return the kernels that a kernel calls itself."""
    compiled = load(name)
    if compiled is None:
        return frozenset()
    code, around = compiled.py_func.__code__, compiled.py_func.__globals__
    named = (around.get(word) for word in code.co_names)
    known = {id(value): key for key, value in jit.kernels.items()}
    return frozenset(known[id(value)] for value in named if id(value) in known)


@dataclass(eq=False)
class _Work:
    """Overloads to compile, handed out as soon as what they call is there."""

    waiting: list[Overload]
    said: Callable[[int, int], None]

    def __post_init__(self) -> None:
        self.total = len(self.waiting)
        self.done = self.kept = 0
        self._open = {overload.name for overload in self.waiting}
        self._left = {name: sum(o.name == name for o in self.waiting) for name in self._open}
        self._calls = {name: callees(name) - {name} for name in self._open}
        # What most others wait for comes first, so that no processor is left with a chain.
        above = dict.fromkeys(self._open, 0)
        for _ in self._open:
            for name in self._open:
                for callee in self._calls[name] & self._open:
                    above[callee] = max(above[callee], above[name] + 1)
        self.waiting.sort(key=lambda overload: -above[overload.name])
        self._changed = threading.Condition()
        self.workers: list[subprocess.Popen[str]] = []

    def take(self) -> Overload | None:
        """Return the next overload whose callees are ready, waiting for one; None at the end."""
        with self._changed:
            while self.waiting:
                for at, overload in enumerate(self.waiting):
                    if not self._calls[overload.name] & self._open:
                        return self.waiting.pop(at)
                self._changed.wait()
            return None

    def finish(self, overload: Overload, *, kept: bool) -> None:
        """Note that an overload is there, perhaps since long ago, or that it cannot be."""
        with self._changed:
            self.kept += kept
            self._left[overload.name] -= 1
            if not self._left[overload.name]:
                self._open.discard(overload.name)
            self.done += 1
            self.said(self.done, self.total)
            self._changed.notify_all()

    def abandon(self) -> None:
        """Leave the rest to whoever calls it."""
        with self._changed:
            self.waiting.clear()
            self._changed.notify_all()
        for worker in self.workers:
            worker.kill()


def prepare(
    groups: Iterable[str],
    *,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    thorough: bool = False,
) -> int:
    """Compile what policies need and is not on disk yet, on several processors.

    Parameters
    ----------
    groups : iterable of str
        Policies; those without kernels need nothing.
    processes : int, optional
        How many to use; by default as many as this process may run on.
    progress : callable, optional
        Called with (compiled, in all) after each kernel; without it, a line on stderr says what
        goes on.
    thorough : bool
        Whether to go through all of them where nothing tells what is on disk (`numba_parts`);
        otherwise they are then compiled when they are first called.

    Returns
    -------
    int
        Kernels that were compiled.
    """
    new = [group for group in groups if group not in _prepared]
    _prepared.update(new)
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"} or not sys.executable:
        return 0
    with preparing.measuring():
        wanted = overloads_of(new)
        missing = [one for one in wanted if not is_kept(one, unsure=not thorough)]
        if not missing:
            return 0
        if progress is None and jit.announcer.say is not None:
            jit.announcer.say(jit.compiling_notice())
        jit.announcer.told = True
        with _alone():
            # Another process may have done it while this one waited for its turn.
            missing = [one for one in missing if not is_kept(one, unsure=False)]
            work = _Work(list(missing), progress or _say_nothing)
            count = min(processes or len(os.sched_getaffinity(0)), len(missing))
            threads = [
                threading.Thread(target=_employ, args=(work,), daemon=True) for _ in range(count)
            ]
            try:
                for thread in threads:
                    thread.start()
                # Again and again, not once: a signal has to be seen while they work.
                while any(thread.is_alive() for thread in threads):
                    threads[0].join(0.1)
                    threads[-1].join(0.1)
            finally:
                work.abandon()
        return len(missing) - work.kept


def _say_nothing(done: int, total: int) -> None:
    """Take no note of progress."""


@contextmanager
def _alone() -> Iterator[None]:
    """Let one process at a time compile into the cache folder."""
    folder = jit.cache_folder()
    if folder is None or fcntl is None:
        yield
        return
    if folder == Path(jit.__file__).parent:
        folder /= "__pycache__"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".compiling").open("w")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _employ(work: _Work) -> None:
    """Hand out work to a process of its own until there is none."""
    # The same folders as here, and never the current one.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "shadowprice.kernels.warming"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
        start_new_session=True,
    )
    work.workers.append(worker)
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        while (overload := work.take()) is not None:
            try:
                worker.stdin.write(json.dumps(overload) + "\n")
                worker.stdin.flush()
                answered = worker.stdout.readline()
            except OSError:
                answered = ""
            work.finish(overload, kept=answered.strip() == _KEPT)
            if not answered:  # it ended: what is left is compiled when it is called
                work.abandon()
    finally:
        with suppress(OSError):
            worker.stdin.close()
        worker.kill()
        worker.wait()
        worker.stdout.close()


def _serve() -> None:
    """Compile what is asked for on stdin, answering each on stdout."""
    jit.announcer.say = None
    gc.disable()  # the compiler's trees are many and soon dropped: a sixth of its time for nothing
    for line in sys.stdin:
        overload = Overload(*json.loads(line))
        compiled = load(overload.name)
        kept = False
        # What cannot be compiled is left to the call that needs it, which says why.
        with suppress(Exception):
            if compiled is not None:
                kept = numba_parts.make(compiled, types_of(overload), inner=overload.inner)
        print(_KEPT if kept else "compiled", flush=True)


if __name__ == "__main__":
    _serve()
