"""The side of a copy: a process that runs a task, and asks before it does what lasts."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

READY: Final = "ready"
CLAIM: Final = "claim"
DONE: Final = "done"
FAILED: Final = "failed"

_TRACE_LINES: Final = 12


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a running copy knows of itself; `current` returns it.

    Parameters
    ----------
    task : int
        Place of its task in the list, from 0 on; -1 outside of a bag.
    copy : int
        Which copy of the task it is, from 0 on, those that failed counted.
    scratch : Path or None
        A directory of its own, where its bag was given one; see `directory`.
    """

    task: int
    copy: int
    scratch: Path | None = None
    _ask: Callable[[], int] | None = field(default=None, repr=False, compare=False)

    @property
    def directory(self) -> Path:
        """Where this copy writes files that are to last: they do if it wins, and not otherwise.

        Whatever is in it when the function returns becomes ``task-...`` of the bag's directory,
        by one rename. Outside of a bag it is the working directory.

        Raises
        ------
        RuntimeError
            If the bag was given no directory.
        """
        if self.scratch is not None:
            return self.scratch
        if self._ask is None:
            return Path.cwd()
        raise RuntimeError("this bag has no directory; run(..., directory=...) gives it one")

    def claim(self) -> int:
        """Ask for the task's commit token before doing what cannot be undone.

        It returns once every other copy of the task is dead, and no other copy ever gets past it
        unless this one dies first; a copy that comes second never returns from here, but is killed.

        Returns
        -------
        int
            The token. A later holder's is larger, across restarts too where the bag has a
            directory: a store that keeps the largest it saw and refuses smaller ones is safe from
            messages of the dead. 0 outside of a bag.
        """
        return self._ask() if self._ask is not None else 0


_current = Attempt(-1, 0)


def current() -> Attempt:
    """Return the attempt that this process is; outside of a bag, one that stands for it."""
    return _current


def serve(
    connection: Connection,
    lifeline: Connection,
    function: bytes,
    environment: Mapping[str, str],
) -> None:
    """Run tasks as they come, until told to end; what a worker process does.

    Parameters
    ----------
    connection : Connection
        Where tasks come from and answers go.
    lifeline : Connection
        Its end says that the process which gives the tasks is gone.
    function : bytes
        The function, pickled.
    environment : mapping
        Environment of the process that gives the tasks.
    """
    global _current  # noqa: PLW0603  # a process runs one task at a time
    os.setsid()  # what the function starts is ended with it, and Ctrl-C is not for it
    threading.Thread(target=_die_with, args=(lifeline,), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        run = pickle.loads(function)
    except BaseException:
        connection.send((FAILED, time.monotonic(), _trace()))
        return
    connection.send((READY, time.monotonic(), None))

    def ask() -> int:
        connection.send((CLAIM, time.monotonic(), None))
        return int(connection.recv())

    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        if order is None:
            return
        task, copy, scratch, payload = order
        _current = Attempt(task, copy, None if scratch is None else Path(scratch), ask)
        try:
            content = pickle.dumps(run(pickle.loads(payload)), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception:
            answer: tuple[str, float, Any] = (FAILED, time.monotonic(), _trace())
        else:
            answer = (DONE, time.monotonic(), content)
        connection.send(answer)


def _die_with(lifeline: Connection) -> None:
    """End this process, and all it started, when the one that gives the tasks is gone."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os.killpg(0, signal.SIGKILL)


def _trace() -> str:
    """Return the last lines of what was just raised."""
    lines = traceback.format_exc().strip().splitlines()
    return "\n".join(lines[-_TRACE_LINES:])
