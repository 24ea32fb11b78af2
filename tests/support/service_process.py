"""``shadowprice serve`` in a process of its own, for tests that kill and restart it.

The process is forked from a server that has imported the command's modules, because the imports
take longer than the start of the service. Arguments, streams, signals and exit status are real.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.support.services import build_client
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.service_imports", __name__, "pytest"])


def _run(
    words: list[str], environment: Mapping[str, str], folder: str, out: Connection, log: bytes
) -> None:
    """Run the command in the forked process."""
    from shadowprice.cli.main import run

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(out.fileno(), 1)
    out.close()
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(written, 2)
    os.close(written)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["shadowprice", *words]
    run()


class ServiceProcess:
    """A running service, and an HTTP client with the operator's token.

    The log is written beside the data directory `folder`. Options in `more` override the policy and
    the address.
    """

    def __init__(self, folder: Path, cluster: Path, *more: str) -> None:
        self.folder, self.log = folder, folder.parent / "log"
        words = ["serve", "-c", str(cluster), "--data", str(folder)]
        words += ["--listen", "127.0.0.1:0", "-p", "fifo", "-q", "-o", "json", *more]
        result, tells = _CONTEXT.Pipe(duplex=False)
        given = (words, dict(os.environ), str(Path.cwd()), tells, os.fsencode(self.log))
        self.process = _CONTEXT.Process(target=_run, args=given)
        self.process.start()
        tells.close()
        self._out = os.fdopen(os.dup(result.fileno()), encoding="utf-8")
        result.close()
        line = self._out.readline()
        if not line:
            self._out.close()
            self.process.join(WAIT_LIMIT_SECONDS)
            raise AssertionError(self.log.read_text())
        first = json.loads(line)
        assert first["pid"] == self.process.pid
        token = (folder / "operator.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        self.client = build_client(first["address"], headers)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        assert self.process.pid is not None
        if self.process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def kill(self, number: int) -> int:
        """Send a signal and wait for the end; return the exit status, negative for a signal."""
        self.client.close()
        self.signal(number)
        self.process.join(WAIT_LIMIT_SECONDS)
        status = self.process.exitcode
        assert status is not None, f"signal {number} did not end the service"
        self._out.close()
        return status

    def wait_for_state(self, name: str, states: set[str]) -> dict[str, Any]:
        """Wait until a job is in one of some states; return its record."""
        record: dict[str, Any] = {}

        def has_state() -> bool:
            record.update(self.client.get(f"/v1/jobs/{name}").json())
            return record["state"] in states

        wait_until(has_state, lambda: record)
        return record


def refused_start(
    capsys: pytest.CaptureFixture[str], cluster: Path, data: Path | str, *more: str
) -> str:
    """Return the one line of the error with which `serve` refuses to start."""
    arguments = ["serve", "-c", str(cluster), "--data", str(data), "--listen", "127.0.0.1:0"]
    from shadowprice.cli.main import main

    assert main([*arguments, "-q", "-p", "fifo", *more]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    return line
