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
_NXDOMAIN, _SERVFAIL = 3, 2  # response codes
_TYPE_A, _CLASS_IN = 1, 1


def lookup(access: Access, name: str) -> list[str] | None:
    """Return the addresses of a name, or None if it doesn't exist.

    Parameters
    ----------
    access : Access
        The API server.
    name : str
        ``SERVICE.NAMESPACE.svc.cluster.local``, possibly after the ``HOSTNAME.`` of a pod.

    Raises
    ------
    OSError
        If the API server doesn't respond.
    """
    parts = name.lower().rstrip(".").removesuffix(f".svc.{DOMAIN}").split(".")
    if not name.lower().rstrip(".").endswith(f".svc.{DOMAIN}") or len(parts) not in {2, 3}:
        return None
    host = parts.pop(0) if len(parts) == 3 else ""
    service, namespace = parts
    prefix = f"/api/v1/namespaces/{namespace}"
    try:
        address = access.ask("GET", f"{prefix}/services/{service}")["spec"].get("clusterIP")
        if address not in {None, "", "None"}:  # not a headless service
            return None if host else [address]
        subsets = access.ask("GET", f"{prefix}/endpoints/{service}").get("subsets") or []
    except ApiError as error:
        if error.status == 404:
            return None
        raise OSError(str(error)) from error
    addresses = [
        address["ip"]
        for subset in subsets
        for address in subset.get("addresses") or []
        if not host or address.get("hostname") == host
    ]
    return addresses if addresses or not host else None


def _question(packet: bytes) -> tuple[str, int, int]:
    """Return the name and record type of a query, and the end of its question."""
    labels, offset = [], 12  # after the header
    while size := packet[offset]:
        labels.append(packet[offset + 1 : offset + 1 + size].decode("ascii"))
        offset += size + 1
    (kind,) = struct.unpack_from("!H", packet, offset + 1)
    return ".".join(labels), kind, offset + 5


def answer(access: Access, packet: bytes) -> bytes:
    """Return the response to a query.

    Raises ValueError, IndexError or struct.error if the packet isn't a query.
    """
    (number, flags) = struct.unpack_from("!HH", packet)
    name, kind, end = _question(packet)
    code, addresses = 0, None
    try:
        addresses = lookup(access, name)
        if addresses is None:
            code = _NXDOMAIN
    except OSError:
        code = _SERVFAIL
    # 0xC00C points to the name in the question; 20 records fit into a UDP packet.
    records = [
        struct.pack("!HHHIH4s", 0xC00C, _TYPE_A, _CLASS_IN, 1, 4, socket.inet_aton(address))
        for address in (addresses or ())[:20]
        if kind == _TYPE_A
    ]
    # Flags: response, authoritative, recursion available, and the query's "recursion desired".
    head = struct.pack("!HHHHHH", number, 0x8480 | flags & 0x0100 | code, 1, len(records), 0, 0)
    return head + packet[12:end] + b"".join(records)


class Names:
    """The DNS server, in its own thread.

    Parameters
    ----------
    host : str
        Address to listen on, at port 53.
    access : Access
        Access to the API server.
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
