"""A PostgreSQL server for a test: a cluster in a temporary directory, on loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import WAIT_LIMIT_SECONDS

USER = "shadowprice"


def binaries() -> Path | None:
    """Return the folder of PostgreSQL's programs, or None if it is not installed."""
    result = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if result:
        return result[-1].parent
    which = shutil.which("initdb")
    return None if which is None else Path(which).parent


@dataclass
class Server:
    """A server that a test can kill and restart."""

    folder: Path
    programs: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/postgres"

    def _run(self, *words: str) -> None:
        subprocess.run(
            [str(self.programs / words[0]), *words[1:]],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=WAIT_LIMIT_SECONDS,
            cwd=self.folder,
            **_as_nobody(),
        )

    def begin(self) -> None:
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C")
        self.start()

    def start(self) -> None:
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
        )
        data, log = str(self.folder / "data"), str(self.folder / "log")
        self._run("pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; ``immediate`` leaves the files of a crash."""
        with suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "stop")


def _as_nobody() -> dict:
    """Return arguments that run a program as another user if the test runs as root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres" if _known("postgres") else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _known(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@contextmanager
def postgres() -> Iterator[Server]:
    """Run a server while the block lasts."""
    programs = binaries()
    assert programs is not None
    # Root's pytest folders are closed to the user that runs the server.
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
    if os.geteuid() == 0:
        arguments = _as_nobody()
        os.chown(folder, arguments["user"], arguments["group"])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = Server(folder, programs, port)
    try:
        server.begin()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
