"""Quick check whether a Ray head listens at an address, without importing ray."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

PROBE_TIMEOUT_SECONDS: Final = 5.0

MAX_CONNECT_ATTEMPTS: Final = 3  # because some Ray Client servers crash; see `is_transient`


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed: some of Ray Client's servers crash as they start."""
    return "Starting Ray client server failed" in str(error)


def parse_endpoint(address: str) -> tuple[str, int] | None:
    """Return host and port of ``HOST:PORT`` or ``ray://HOST:PORT``, None otherwise."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def probe(address: str) -> str:
    """Return why connecting to an address fails, without a minute of Ray's retries; else empty."""
    target = parse_endpoint(address)
    if target is None:
        return ""
    try:
        with socket.create_connection(target, PROBE_TIMEOUT_SECONDS):
            return ""
    except TimeoutError:
        return "it does not answer"
    except OSError as error:
        return error.strerror or str(error)


def last_head_address() -> str:
    """Return the address of this machine's last cluster, which may have crashed, or nothing."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # Ray's own rule
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
