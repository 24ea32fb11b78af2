"""The network of a testbed's pods: an isolated bridge.

Every pod and every node has an address on the bridge, and this machine is the gateway.
"""

from __future__ import annotations

import random
import shlex
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tools.testbed import policies
from tools.testbed.places import PLUGINS, TestbedError
from tools.testbed.process import run

_RESULTS = Path("/var/lib/cni/results")
_PODS_A_NODE = 240


class Network:
    """A bridge with a /16 of its own; `enforce` enables network policies.

    Node number ``n`` has the address ``X.Y.n.1``, and its pods have further addresses of that /24.
    The gateway, this machine, is ``X.Y.0.1``. Services have ``X.Y.255.*``; the API server has the
    first of these.

    Parameters
    ----------
    name : str
        Name of the bridge, at most 15 characters.
    nodes : tuple of str
        Names of the nodes.
    """

    def __init__(self, name: str, nodes: tuple[str, ...]) -> None:
        if len(nodes) > 250:
            raise TestbedError("at most 250 nodes run pods")
        self.name = name
        self._numbers = {node: number for number, node in enumerate(nodes, 1)}
        self._prefix = ""
        self.programs = PLUGINS
        """The folders of the CNI plugins."""
        self._enforcing: dict[str, Any] | None = None

    def start(self) -> None:
        """Create the bridge."""
        in_use = run("ip", "-4", "route") + run("ip", "-4", "addr")
        free = [byte for byte in range(100, 250) if f"10.{byte}." not in in_use]
        if not free:
            raise TestbedError("no free network between 10.100.0.0/16 and 10.249.0.0/16")
        # A random choice, because another testbed may start at the same time.
        self._prefix = f"10.{random.choice(free)}"
        run("ip", "link", "add", self.name, "type", "bridge", "forward_delay", "0")
        for address in (f"{self.gateway}/16", f"{self.apiserver}/32"):
            run("ip", "addr", "add", address, "dev", self.name)
        for node in self._numbers:
            run("ip", "addr", "add", f"{self.address(node)}/32", "dev", self.name)
        run("ip", "link", "set", self.name, "up")

    @property
    def gateway(self) -> str:
        """Address of this machine on the bridge."""
        return f"{self._prefix}.0.1"

    @property
    def services(self) -> str:
        """Addresses of services."""
        return f"{self._prefix}.255.0/24"

    @property
    def apiserver(self) -> str:
        """The address of the API server for pods, port 443."""
        return f"{self._prefix}.255.1"

    def address(self, node: str) -> str:
        """Return a node's address."""
        return f"{self._prefix}.{self._numbers[node]}.1"

    def plugins(self, node: str, memory: Path) -> dict[str, Any]:
        """Return the CNI configuration of a node.

        Parameters
        ----------
        node : str
            The node.
        memory : Path
            Folder in which the plugin stores the addresses in use.
        """
        number = self._numbers[node]
        pods = {
            "subnet": f"{self._prefix}.0.0/16",
            "rangeStart": f"{self._prefix}.{number}.10",
            "rangeEnd": f"{self._prefix}.{number}.{10 + _PODS_A_NODE}",
            "gateway": self.gateway,
        }
        leases = {
            "type": "host-local",
            "dataDir": str(memory),
            "ranges": [[pods]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": self.name, "ipMasq": False, "ipam": leases}
        plugins = [bridge] if self._enforcing is None else [bridge, self._enforcing]
        return {"cniVersion": "0.4.0", "name": self.name, "plugins": plugins}

    def enforce(self, folder: Path, kubectl: Path, kubeconfig: Path) -> None:
        """Enforce network policies for pods that start from now on; see `policies`.

        Parameters
        ----------
        folder : Path
            New folder for the CNI plugins.
        kubectl, kubeconfig : Path
            Program and configuration with which the plugin reads pods and policies.
        """
        folder.mkdir()
        # containerd searches plugins in one folder, so it needs links to the others.
        for program in PLUGINS.iterdir():
            (folder / program.name).symlink_to(program)
        plugin = folder / policies.NAME
        argv = (sys.executable, "-I", "-S", policies.__file__)
        plugin.write_text(f"#!/bin/sh\nexec {shlex.join(argv)}\n")
        plugin.chmod(0o755)
        options = {"kubectl": str(kubectl), "kubeconfig": str(kubeconfig)}
        self.programs, self._enforcing = folder, {"type": policies.NAME, **options}

    def stop(self) -> None:
        """Remove the bridge."""
        with suppress(TestbedError):
            run("ip", "link", "del", self.name)
        for result in _RESULTS.glob(f"{self.name}-*"):
            result.unlink(missing_ok=True)


class Forward:
    """Forwards connections from one address to a loopback port, for pods to reach the API server.

    Parameters
    ----------
    host : str
        Address to listen on.
    port : int
        Loopback port to forward to.
    listen : int
        Port to listen on.
    """

    def __init__(self, host: str, port: int, listen: int = 443) -> None:
        self._port = port
        self._listener = socket.create_server((host, listen), backlog=128)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port), timeout=10)
            except OSError:
                caller.close()
                continue
            server.settimeout(None)
            for pair in ((caller, server), (server, caller)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                target.sendall(piece)
        # Shut down both, so that the thread of the other direction ends, too.
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        """Stop forwarding."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
