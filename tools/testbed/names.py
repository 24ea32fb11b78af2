"""DNS for a testbed's pods, from the API server's endpoints.

Debian has no package of CoreDNS, and tests only need names of headless services. So this server
answers queries for addresses (A) over UDP, and nothing else.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

from tools.testbed.access import Access, ApiError

DOMAIN = "cluster.local"
_NO_SUCH_NAME, _TRY_AGAIN = 3, 2
_ADDRESS, _INTERNET = 1, 1


def lookup(access: Access, name: str) -> list[str] | None:
    """Return the addresses of a name, or None if it doesn't exist.

    Parameters
    ----------
    access : Access
        The API server.
    name : str
        ``SERVICE.NAMESPACE.svc.cluster.local``, or ``HOSTNAME.`` before it.

    Raises
    ------
    OSError
        If the API server does not answer.
    """
    parts = name.lower().rstrip(".").removesuffix(f".svc.{DOMAIN}").split(".")
    if not name.lower().rstrip(".").endswith(f".svc.{DOMAIN}") or len(parts) not in {2, 3}:
        return None
    host = parts.pop(0) if len(parts) == 3 else ""
    service, namespace = parts
    where = f"/api/v1/namespaces/{namespace}"
    try:
        address = access.ask("GET", f"{where}/services/{service}")["spec"].get("clusterIP")
        if address not in {None, "", "None"}:
            return None if host else [address]
        subsets = access.ask("GET", f"{where}/endpoints/{service}").get("subsets") or []
    except ApiError as error:
        if error.status == 404:
            return None
        raise OSError(str(error)) from error
    found = [
        one["ip"]
        for subset in subsets
        for one in subset.get("addresses") or []
        if not host or one.get("hostname") == host
    ]
    return found if found or not host else None


def _question(packet: bytes) -> tuple[str, int, int]:
    """Return the name and record type of a query, and the end of its question."""
    labels, place = [], 12
    while size := packet[place]:
        labels.append(packet[place + 1 : place + 1 + size].decode("ascii"))
        place += size + 1
    (kind,) = struct.unpack_from("!H", packet, place + 1)
    return ".".join(labels), kind, place + 5


def answer(access: Access, packet: bytes) -> bytes:
    """Return the response to a query.

    Raise ValueError, IndexError or struct.error if it isn't one.
    """
    (number, flags) = struct.unpack_from("!HH", packet)
    name, kind, end = _question(packet)
    code, found = 0, None
    try:
        found = lookup(access, name)
        if found is None:
            code = _NO_SUCH_NAME
    except OSError:
        code = _TRY_AGAIN
    records = [
        struct.pack("!HHHIH4s", 0xC00C, _ADDRESS, _INTERNET, 1, 4, socket.inet_aton(one))
        for one in (found or ())[:20]
        if kind == _ADDRESS
    ]
    head = struct.pack("!HHHHHH", number, 0x8480 | flags & 0x0100 | code, 1, len(records), 0, 0)
    return head + packet[12:end] + b"".join(records)


class Names:
    """The DNS server, on a thread of its own.

    Parameters
    ----------
    host : str
        Where to listen, port 53.
    access : Access
        The API server.
    """

    def __init__(self, host: str, access: Access) -> None:
        self._access = access
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 53))
        self._closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closed:
            try:
                packet, caller = self._socket.recvfrom(4096)
            except OSError:
                return
            with suppress(ValueError, IndexError, struct.error, OSError):
                self._socket.sendto(answer(self._access, packet), caller)

    def close(self) -> None:
        """Stop the server."""
        self._closed = True
        with suppress(OSError):  # wakes the thread
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(35.0)
