"""Locality of chunks: how far a worker is from the replicas of a chunk.

A data set may be on the disks of the machines that run the workers. Then a worker first gets chunks
of its own host, and then of its rack (OASiS, footnote 2). Only HDFS reports locations.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple


class Distance(IntEnum):
    """Distance between a worker and a chunk."""

    LOCAL = 0
    """The worker's host has all of the chunk."""
    RACK = 1
    """Hosts of the worker's rack have all of the chunk."""
    REMOTE = 2
    """Neither is the case, or the location is unknown."""


class Replica(NamedTuple):
    """A copy of a block of a chunk."""

    host: str
    address: str
    """IP address of the host."""
    rack: str
    """Rack of the host; empty if the storage doesn't report it."""


class _Location(NamedTuple):
    hosts: frozenset[str]
    racks: frozenset[str]


class Localities:
    """Known locations of chunks and workers. One thread may add chunks while others read."""

    def __init__(self) -> None:
        self._chunks: dict[int, _Location] = {}
        self._workers: dict[int, tuple[str, str]] = {}
        self._racks: dict[str, str] = {}

    def add_chunk(self, chunk: int, blocks: Sequence[Sequence[Replica]]) -> None:
        """Record the replicas of each block of a chunk."""
        rack_by_host = [
            {
                _short(name): replica.rack
                for replica in replicas
                for name in (replica.host, replica.address)
            }
            for replicas in blocks
        ]
        for racks in rack_by_host:
            self._racks.update(racks)
        # A chunk is local only if all its blocks are.
        self._chunks[chunk] = _Location(
            _in_all([racks.keys() for racks in rack_by_host]),
            _in_all([racks.values() for racks in rack_by_host]),
        )

    def add_worker(self, worker: int, host: str, rack: str) -> None:
        """Record a worker's host and rack; an empty rack means that the storage reports it."""
        self._workers[worker] = (_short(host), rack)

    def is_known(self, chunk: int) -> bool:
        """Return whether the location of a chunk is known."""
        return chunk in self._chunks

    def distance(self, worker: int, chunk: int) -> Distance:
        """Return the distance between a worker and a chunk."""
        location = self._chunks.get(chunk)
        if location is None:
            return Distance.REMOTE
        host, rack = self._workers.get(worker, ("", ""))
        if host in location.hosts:
            return Distance.LOCAL
        is_near = (rack or self._racks.get(host, "")) in location.racks
        return Distance.RACK if is_near else Distance.REMOTE


def own_host_and_rack() -> tuple[str, str]:
    """Return ``SHADOWPRICE_HOST``, by default the host's name, and ``SHADOWPRICE_RACK``."""
    host = os.environ.get("SHADOWPRICE_HOST") or socket.gethostname()
    return host, os.environ.get("SHADOWPRICE_RACK", "")


def _in_all(collections: Sequence[Iterable[str]]) -> frozenset[str]:
    """Return the names that are in all collections, without the empty name."""
    first, *others = collections or [()]
    return frozenset(first).intersection(*others) - {""}


def _short(host: str) -> str:
    """Return the name of a host in lower case and without its domain, or its address."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().partition(".")[0]
