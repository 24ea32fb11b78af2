"""A Ray cluster started by ``ray start``, as its users do, isolated from others on this machine."""

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
"""Loopback addresses; Ray tells nodes apart by address."""

PATIENCE = 180.0


class StartedCluster:
    """A head with two cores that accepts Ray Client, and a node with one core.

    ``ray start`` records in a directory which cluster the machine belongs to. Here the directory is
    the cluster's own, so that other clusters on this machine are left alone.

    Parameters
    ----------
    labels : str
        Labels of the second node, as ``--labels`` takes them; may be empty.
    apart : bool
        Whether the head sees only its own processes, as on another machine, and has no cores.
        It can then restart while the node stays. Needs root.
    **environment
        Further variables of all of Ray's processes.
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
        """Environment of a program in this cluster and no other."""
        return {"RAY_TMPDIR": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0"}

    def begin_head(self, port: str) -> None:
        """Start the head; port 0 is any free port."""
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
        """Start the second node."""
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
            # Ray gives its processes 30 s to start, which a busy machine exceeds.
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
        """Return how many processes of this cluster have all of the marks in their arguments."""
        return len(self._processes(*marks))

    def kill(self, *marks: str) -> int:
        """Kill these processes; return their number."""
        result = self._processes(*marks)
        for number in result:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return len(result)

    def end(self) -> None:
        """Kill the whole cluster."""
        until = time.monotonic() + PATIENCE
        while self.kill() and time.monotonic() < until:
            time.sleep(0.1)
        for head in self._heads:
            head.wait(PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)
