"""Worker process of a bag: it runs copies of tasks, which may claim their task."""

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

# Kinds of messages to the parent: (kind, time by `time.monotonic`, content).
READY: Final = "ready"
CLAIM: Final = "claim"
DONE: Final = "done"
FAILED: Final = "failed"

_TRACE_LINES: Final = 12  # maximum lines of a traceback in a reason


@dataclass(frozen=True, slots=True)
class Attempt:
    """Identity of a running copy; `current` returns it.

    ``task`` is the index of the task in the list, -1 outside a bag. ``copy`` counts the task's
    copies from 0, including those that failed. ``scratch`` is the copy's own directory, None if its
    bag has none; see `directory`.
    """

    task: int
    copy: int
    scratch: Path | None = None
    _request_token: Callable[[], int] | None = field(default=None, repr=False, compare=False)

    @property
    def directory(self) -> Path:
        """Directory for files that are kept only if this copy wins.

        When the function returns, the directory is renamed to ``task-...`` in the bag's directory.
        Outside a bag it is the working directory. Raises RuntimeError if the bag has no directory.
        """
        if self.scratch is not None:
            return self.scratch
        if self._request_token is None:
            return Path.cwd()
        raise RuntimeError("this bag has no directory; run(..., directory=...) gives it one")

    def claim(self) -> int:
        """Request the task's commit token before an effect that can't be undone.

        The call returns once every other copy of the task is dead. No other copy gets past it
        unless this copy dies first. A copy that claims second never returns from here and is
        killed.

        Outside a bag the token is 0. A later holder's token is larger, also across restarts if the
        bag has a directory. A store that keeps the largest token and refuses smaller ones is
        therefore safe from messages of dead copies (a fencing token).
        """
        return self._request_token() if self._request_token is not None else 0


_current = Attempt(-1, 0)


def current() -> Attempt:
    """Return the attempt that this process runs, or a placeholder outside a bag."""
    return _current


def worker_main(
    connection: Connection,
    lifeline: Connection,
    function: bytes,
    environment: Mapping[str, str],
) -> None:
    """Run tasks until SIGTERM; the main function of a worker process.

    ``lifeline`` closes when the parent process is gone. ``environment`` is that of the parent.
    """
    global _current  # noqa: PLW0603  # a process runs one task at a time
    os.setsid()  # its child processes are killed as a group, and Ctrl-C doesn't reach it
    threading.Thread(target=_exit_with_parent, args=(lifeline,), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        run = pickle.loads(function)
    # Unpickling imports the function's module, which may even exit.
    except BaseException:
        connection.send((FAILED, time.monotonic(), _trace()))
        return
    connection.send((READY, time.monotonic(), None))

    def request_token() -> int:
        connection.send((CLAIM, time.monotonic(), None))
        return int(connection.recv())

    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        # The payload is unpickled below, where its errors count as failures of the task.
        task, copy, scratch, payload = request
        _current = Attempt(task, copy, None if scratch is None else Path(scratch), request_token)
        try:
            content = pickle.dumps(run(pickle.loads(payload)), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception:
            response: tuple[str, float, Any] = (FAILED, time.monotonic(), _trace())
        else:
            response = (DONE, time.monotonic(), content)
        connection.send(response)


def _exit_with_parent(lifeline: Connection) -> None:
    """Kill this process and its children when the parent process is gone."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os.killpg(0, signal.SIGKILL)


def _trace() -> str:
    """Return the last lines of the current exception's traceback."""
    lines = traceback.format_exc().strip().splitlines()
    return "\n".join(lines[-_TRACE_LINES:])
