"""Hollow nodes: kubelets of kubemark that only pretend to run pods, hundreds in one process."""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tools.testbed.access import Access, ApiError
from tools.testbed.process import Component

CORES, MEMORY = 32, 256 << 30
"""Capacity of each node."""

LEASE = 40
"""Duration of a node's lease in seconds; it is renewed after a quarter of it."""


class Hollow:
    """Nodes ``hollow-0`` to ``hollow-N``, with an API client each, in one process.

    Parameters
    ----------
    folder : Path
        Where they keep their files.
    access : Access
        The API server; each node is the user ``system:node:NAME``.
    count : int
        How many.
    """

    def __init__(self, folder: Path, access: Access, count: int) -> None:
        self.count = count
        self._access = access
        names = [f"hollow-{number}" for number in range(count)]
        file = folder / "hollow.json"
        file.write_text(
            json.dumps(
                {
                    "server": access.url,
                    "certificate": str(access.certificate),
                    "folder": str(folder / "hollow"),
                    "address": "",
                    "cores": CORES,
                    "memory": MEMORY,
                    "labels": {"shadowprice.test/hollow": "true"},
                    "lease": LEASE,
                    "nodes": [
                        {"name": name, "token": access.tokens[f"system:node:{name}"]}
                        for name in names
                    ],
                }
            )
        )
        file.chmod(0o600)
        # Each node watches an empty folder, but a user has few such watches. In a user namespace of
        # their own the nodes have none, and do without.
        # The kernel's log may be closed to such a namespace; they only ever read it.
        limit = "echo 0 > /proc/sys/user/max_inotify_instances; mount --bind /dev/null /dev/kmsg"
        spaces = ["unshare", "--user", "--map-root-user", "--mount"]
        before = [*spaces, "sh", "-c", f'{limit}; exec "$@"', "sh"]
        self.component = Component("hollow-nodes", [str(file)], folder, self._ready, before=before)

    def _ready(self) -> bool:
        return self.registered() >= self.count

    def registered(self) -> int:
        """Return the number of ready nodes."""
        try:
            nodes = self._access.ask("GET", "/api/v1/nodes?resourceVersion=0")["items"]
        except (ApiError, OSError):
            return 0
        return sum(
            one["metadata"]["name"].startswith("hollow-")
            and any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in one["status"].get("conditions", ())
            )
            for one in nodes
        )

    @property
    def address(self) -> str:
        """The address that all of them report."""
        node = self._access.ask("GET", "/api/v1/nodes/hollow-0")
        told = node["status"]["addresses"]
        return next(str(one["address"]) for one in told if one["type"] == "InternalIP")

    def start(self) -> None:
        """Start all nodes and wait until they are ready."""
        if self.count:
            self.component.start()
            self.component.wait(600.0)

    def stop(self) -> None:
        """Stop all nodes."""
        self.component.kill()


class Logs:
    """Serves the logs of all hollow nodes: one line for every pod.

    Without it they have no logs, and clients retry. All of them report one address and a kubelet's
    usual
    port, so only one of these fits on a machine.

    Parameters
    ----------
    address : str
        The reported address; see `Hollow.address`.
    folder : Path
        Folder of the testbed's certificate.
    """

    PORT = 10250

    def __init__(self, address: str, folder: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self._server = _Server((address, self.PORT), _Line)
        self._server.context = context
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    context: ssl.SSLContext

    def finish_request(self, request: object, client_address: object) -> None:
        """Do the TLS handshake in the connection's thread: a slow client delays no other."""
        with suppress(OSError):  # the client closed the connection
            greeted = self.context.wrap_socket(request, server_side=True)  # type: ignore[arg-type]  # it is a socket
            super().finish_request(greeted, client_address)
            greeted.close()


class _Line(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send one line, with a timestamp if requested."""
        at = b"2026-01-01T00:00:00.000000000Z " if "timestamps=true" in self.path else b""
        line = at + b"a hollow pod\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(line)))
        self.end_headers()
        self.wfile.write(line)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
