"""A Ray cluster begun by ``ray start``, as its users begin one; nothing of it is seen elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

HEAD, OTHER = "127.0.0.6", "127.0.0.7"
"""Loopback; a node is told from others by its address."""

PATIENCE = 180.0


class StartedCluster:
    """A head of two cores that lets Ray Client in, and a node of one.

    ``ray start`` remembers in a directory which cluster this machine is in; theirs is their own, so
    that other clusters of this machine are left alone.

    Parameters
    ----------
    labels : str
        What the node that is not the head says of itself, as ``--labels`` takes it; empty for
        nothing.
    apart : bool
        Whether the head sees no processes but its own, as on a machine of its own, and has no
        cores: it can be begun again though the node is left. Needs root.
    **environment
        More that all of Ray's processes are to be told.
    """

    def __init__(self, *, labels: str = "", apart: bool = False, **environment: str) -> None:
        self._apart = apart
        self._heads: list[subprocess.Popen[bytes]] = []
        self._labels = ["--labels", labels] if labels else []
        # docs/ray-troubleshooting.md says why the head gets it.
        self._more = {**environment, "GRPC_ENABLE_FORK_SUPPORT": "0"}
        self.folder = Path(tempfile.mkdtemp(prefix="sp-", dir="/tmp"))  # sockets: a short path
        with socket.create_server((HEAD, 0)) as free:
            port = free.getsockname()[1]
        self.by_client = f"ray://{HEAD}:{port}"
        self._client_port = port
        try:
            self.begin_head("0")
            self.address = (self.folder / "ray" / "ray_current_cluster").read_text().strip()
            self.join_node()
        except BaseException:
            self.end()
            raise

    @property
    def environment(self) -> Mapping[str, str]:
        """What a program has to be told to be in this cluster and no other."""
        return {"RAY_TMPDIR": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0"}

    def begin_head(self, port: str) -> None:
        """Begin the head; 0 is any port."""
        words = ["--head", "--port", port, "--ray-client-server-port", str(self._client_port)]
        words += ["--include-dashboard", "false"]
        if not self._apart:
            self._start(HEAD, "head", "2", *words)
            return
        known = self.folder / "ray" / "ray_current_cluster"
        known.unlink(missing_ok=True)
        alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        more = {**os.environ, **self.environment, **self._more}
        with (self.folder / "head.log").open("ab") as log:
            command = [*alone, *self._words(HEAD, "head", "0", *words, "--block")]
            self._heads.append(subprocess.Popen(command, env=more, stdout=log, stderr=log))
        until = time.monotonic() + PATIENCE
        while not (known.exists() and known.read_text().strip()):
            assert time.monotonic() < until, (self.folder / "head.log").read_text()
            assert self._heads[-1].poll() is None, (self.folder / "head.log").read_text()
            time.sleep(0.2)

    def join_node(self) -> None:
        """Begin the node that is not the head."""
        self._start(OTHER, "other", "1", "--address", self.address, *self._labels)

    @staticmethod
    def _words(ip: str, name: str, cores: str, *more: str) -> list[str]:
        words = [str(Path(sys.executable).with_name("ray")), "start", *more]
        words += ["--node-ip-address", ip, "--node-name", name, "--num-cpus", cores]
        return [*words, "--object-store-memory", str(80 << 20), "--disable-usage-stats"]

    def _start(self, ip: str, name: str, cores: str, *more: str) -> None:
        words = self._words(ip, name, cores, *more)
        for attempt in range(5):
            variables = subprocess.run(
                words,
                env={**os.environ, **self.environment, **self._more},
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            if variables.returncode == 0:
                return
            # Ray gives its parts 30 s, which a busy machine exceeds.
            assert attempt < 4, variables.stdout + variables.stderr

    def _processes(self, *marks: str) -> list[int]:
        results = []
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                around = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            ours = f"RAY_TMPDIR={self.folder}" in around and int(entry.name) != os.getpid()
            if ours and command and all(mark in command for mark in marks):
                results.append(int(entry.name))
        return results

    def count(self, *marks: str) -> int:
        """Return how many processes of this cluster have all of the marks in their words."""
        return len(self._processes(*marks))

    def kill(self, *marks: str) -> int:
        """Kill such processes; say how many."""
        result = self._processes(*marks)
        for number in result:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return len(result)

    def end(self) -> None:
        """Kill all of it."""
        until = time.monotonic() + PATIENCE
        while self.kill() and time.monotonic() < until:
            time.sleep(0.1)
        for head in self._heads:
            head.wait(PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)
