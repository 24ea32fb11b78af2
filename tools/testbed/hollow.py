"""Hollow nodes: kubemark's kubelets, which only pretend to run pods; hundreds in one process."""

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
"""Capacity of each node: cores and bytes."""

LEASE = 40
"""Duration of a node's lease in seconds; nodes renew it after a quarter of that time."""


class Hollow:
    """Nodes ``hollow-0`` to ``hollow-N``, with an API client each, in one process.

    Parameters
    ----------
    folder : Path
        Folder of their files.
    access : Access
        Access to the API server; each node is the user ``system:node:NAME``.
    count : int
        Number of nodes.
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
        # Each node would watch an empty folder by inotify, which has a small limit per user. In a
        # user namespace with the limit 0, nodes poll instead. Such a namespace may not be allowed
        # to read the kernel's log, so nodes get an empty one.
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
            node["metadata"]["name"].startswith("hollow-")
            and any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in node["status"].get("conditions", ())
            )
            for node in nodes
        )

    @property
    def address(self) -> str:
        """The address that all hollow nodes report."""
        node = self._access.ask("GET", "/api/v1/nodes/hollow-0")
        addresses = node["status"]["addresses"]
        return next(str(entry["address"]) for entry in addresses if entry["type"] == "InternalIP")

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

    Without this server, requests for logs fail, and clients retry. All hollow nodes report the same
    address, and the default port of kubelets. So only one such server can run on a machine.

    Parameters
    ----------
    address : str
        Address that the nodes report; see `Hollow.address`.
    folder : Path
        Folder of the testbed's certificate.
    """

    PORT = 10250

    def __init__(self, address: str, folder: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self._server = _Server((address, self.PORT), _LogHandler)
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
        """Do the TLS handshake in the connection's thread, so that slow clients delay no others."""
        with suppress(OSError):  # the client closed the connection
            encrypted = self.context.wrap_socket(request, server_side=True)  # type: ignore[arg-type]  # it is a socket
            super().finish_request(encrypted, client_address)
            encrypted.close()


class _LogHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send one line, with a timestamp if requested."""
        stamp = b"2026-01-01T00:00:00.000000000Z " if "timestamps=true" in self.path else b""
        line = stamp + b"a hollow pod\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(line)))
        self.end_headers()
        self.wfile.write(line)

    def log_message(self, *_: object) -> None:
        """Ignore access logs."""
