"""The programs of a testbed, which can be killed and restarted."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.testbed.places import TestbedError, program

PATIENCE = 120.0
"""Maximum seconds for the start of a program on a busy machine."""

_STARTING = ThreadPoolExecutor(1, "testbed")
"""Thread that starts all programs: with ``--pdeathsig``, a program ends with its starting thread.
"""


class Ports:
    """Loopback ports, reserved against other testbeds.

    The ports are below those that the kernel assigns to connections. To reserve a port, a socket is
    bound to the same port of another loopback address; other testbeds try that address, too.
    """

    RESERVED_AT = "127.77.0.1"

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def free(self) -> int:
        """Reserve and return a free port.

        Raises
        ------
        TestbedError
            If no port is free.
        """
        for _ in range(1000):
            port = random.randrange(20000, 32000)
            holder = socket.socket()
            try:
                holder.bind((self.RESERVED_AT, port))
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            except OSError as error:
                holder.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            self._held.append(holder)
            return port
        raise TestbedError("no free port on loopback between 20000 and 32000")

    def release(self) -> None:
        """Release all ports."""
        while self._held:
            self._held.pop().close()


class Component:
    """One program of a testbed.

    The program ends with the process that started it, even if that process is killed.

    Parameters
    ----------
    name : str
        Name of the program for `places.program`.
    words : sequence of str
        Arguments of the program.
    folder : Path
        Folder of its log, ``NAME.log``; every start appends to it.
    ready : callable
        Returns whether the program is ready.
    env : mapping of str to str
        Additional environment variables.
    before : sequence of str
        Command, if any, that runs the program as its arguments.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        folder: Path,
        ready: Callable[[], bool],
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.words = list(words)
        self.log = folder / f"{name}.log"
        self._before = list(before)
        self._ready = ready
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, or None if it doesn't run."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the program without waiting for it, unless it runs already."""
        if self.running:
            return
        words = [program("setpriv"), "--pdeathsig", "KILL", "--", program(self.name), *self.words]
        words = self._before + words
        path = "/usr/sbin:/usr/bin:/sbin:/bin"
        with self.log.open("ab") as log:
            self._process = _STARTING.submit(
                subprocess.Popen,
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,  # `logs` depends on it
                env={"PATH": path, "HOME": str(self.log.parent), **self._env},
                start_new_session=True,
            ).result()

    def wait(self, patience: float = PATIENCE) -> None:
        """Wait until the program is ready.

        Raises
        ------
        TestbedError
            If it ended, or is not ready in time; with the last lines of its log.
        """
        deadline = time.monotonic() + patience
        while not self._ready():
            if not self.running:
                raise TestbedError(f"{self.name} ended: {self.tail()}")
            if time.monotonic() > deadline:
                raise TestbedError(f"{self.name} is not ready after {patience:g} s: {self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 8) -> str:
        """Return the end of the log, or the beginning of the last crash in it."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return "it has no log"
        log_lines = text.splitlines()
        # Go's panics, and fatal messages of klog, which begin with F and the month.
        crashes = [
            index
            for index, line in enumerate(log_lines)
            if line.startswith(("panic: ", "fatal error: ", "F1", "F0"))
        ]
        start = max(0, crashes[-1] - 2) if crashes else -lines
        return "\n".join(log_lines[start:][: 3 * lines])

    def signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired as error:
                message = f"{self.name} still runs {PATIENCE:g} s after SIGKILL"
                raise TestbedError(message) from error

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after ten seconds."""
        self.signal(signal.SIGCONT)  # a suspended program would not end
        self.signal(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.kill()


def run(name: str, *words: str, given: str | None = None, timeout: float = PATIENCE) -> str:
    """Run a program to its end; return its output.

    Raises
    ------
    TestbedError
        If it fails; with its output.
    """
    done = subprocess.run(
        [program(name), *words],
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        raise TestbedError(f"{name} {' '.join(words)}: exit {done.returncode}: {output}")
    return done.stdout


def eventually(
    condition: Callable[[], bool], what: str, patience: float = PATIENCE, pause: float = 0.05
) -> None:
    """Wait until a condition holds.

    Raises
    ------
    TestbedError
        If it doesn't hold in time; with ``what`` was expected.
    """
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise TestbedError(f"timed out after {patience:g} s: {what}")
        time.sleep(pause)
