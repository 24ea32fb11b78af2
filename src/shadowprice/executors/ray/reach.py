"""Whether anybody listens where a Ray head is said to be; without ray, and at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

PATIENCE: Final = 5.0
"""Seconds that an address has to answer."""

TRIES: Final = 3
"""How often Ray Client is asked to let a driver in whose server died at its birth."""


def by_chance(error: BaseException) -> bool:
    """Whether Ray Client refused for a reason that the next try may not meet.

    Its door on the head forks a server for each driver while gRPC's threads run there, and one in
    some dozens of these servers dies of that before it serves anybody.
    """
    return "Starting Ray client server failed" in str(error)


def endpoint(address: str) -> tuple[str, int] | None:
    """Return host and port of ``HOST:PORT`` or ``ray://HOST:PORT``, None for any other."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def reached(address: str) -> str:
    """Return why nobody answers at an address; empty where somebody does, or it is none.

    Ray itself would try for a minute, and say it in a page.
    """
    place = endpoint(address)
    if place is None:
        return ""
    try:
        with socket.create_connection(place, PATIENCE):
            return ""
    except TimeoutError:
        return "it does not answer"
    except OSError as error:
        return error.strerror or str(error)


def remembered() -> str:
    """Return where the head is of the cluster that this machine was last in, empty for nowhere.

    ``ray start`` writes it down; ``ray stop`` removes it, and a machine that went down does not.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # as Ray looks
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
