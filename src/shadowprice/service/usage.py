"""Tenants' use of the service's memory and connections, and the limits that protect others."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from shadowprice.service.problems import tenant_limit_problem
from shadowprice.service.settings import MAX_BODY_BYTES, ServiceSettings

MAX_BODIES: Final = 4 * MAX_BODY_BYTES
"""Maximum bytes of all bodies of a tenant's current requests."""
MAX_TENANT_REQUESTS: Final = 512  # of a tenant at once, including event streams
RESERVED_DIVISOR: Final = 8  # an eighth of the connections is reserved for operators and probes


def estimate_memory(value: object) -> int:
    """Return about how many bytes of memory a JSON value takes."""
    size = sys.getsizeof(value)
    if isinstance(value, Mapping):
        size += sum(estimate_memory(key) + estimate_memory(entry) for key, entry in value.items())
    elif isinstance(value, list | tuple):
        size += sum(map(estimate_memory, value))
    return size


def added_memory(record: Mapping[str, Any], changes: Mapping[str, Any]) -> int:
    """Return about how many bytes a revision adds to a job's record; 0 if the record shrinks."""
    # The key `deadline` of a revision changes a part of the record's `utility`.
    keys = {"utility" if key == "deadline" else key for key in changes}
    before = {key: record[key] for key in keys if key in record}
    return max(0, estimate_memory(changes) - estimate_memory(before))


class Usage:
    """What tenants use: open jobs, their memory and uploads, and current requests."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, int]] = {}  # tenant and memory of each open job
        self._uploads: dict[str, tuple[str | None, str]] = {}  # tenant and digest by open job
        # By tenant:
        self._jobs: Counter[str] = Counter()  # open and reserved jobs
        self._memory: Counter[str] = Counter()  # bytes of open and reserved jobs
        self._bodies: Counter[str] = Counter()  # bytes of the bodies of current requests
        self._requests: Counter[str] = Counter()  # current requests

    def set(self, name: str, record: Mapping[str, Any]) -> None:
        """Record an open job, or its revision."""
        self.remove(name)
        tenant = record.get("tenant")
        upload = (record.get("run") or {}).get("upload")
        if upload is not None:
            self._uploads[name] = None if tenant is None else str(tenant), str(upload)
        if tenant is not None:
            size = estimate_memory(record)
            self._open[name] = str(tenant), size
            self._jobs[str(tenant)] += 1
            self._memory[str(tenant)] += size

    def remove(self, name: str) -> None:
        """Remove a closed job."""
        self._uploads.pop(name, None)
        tenant, size = self._open.pop(name, (None, 0))
        if tenant is not None:
            self._jobs[tenant] -= 1
            self._memory[tenant] -= size

    def clear(self) -> None:
        """Remove all jobs."""
        self._open.clear()
        self._uploads.clear()
        self._jobs.clear()
        self._memory.clear()

    def uploads(self) -> Collection[tuple[str | None, str]]:
        """Return the tenant and digest of each upload that an open job uses."""
        return set(self._uploads.values())

    @contextmanager
    def reserve(
        self, settings: ServiceSettings, tenant: str | None, jobs: int, memory: int
    ) -> Iterator[None]:
        """Reserve jobs and memory of a tenant during a block, or raise `ProblemError`."""
        if tenant is None:  # an operator has no limits
            yield
            return
        if jobs and self._jobs[tenant] + jobs > settings.max_open_jobs:
            raise tenant_limit_problem(
                f"{self._jobs[tenant]:,} open jobs and {jobs:,} new ones exceed the limit of "
                f"{settings.max_open_jobs:,} open jobs of a tenant",
                "cancel jobs, wait until some end, or ask the operator for serve --max-open-jobs",
            )
        if memory and self._memory[tenant] + memory > settings.max_open_memory:
            raise tenant_limit_problem(
                f"the open jobs' records of {self._memory[tenant]:,} bytes and {memory:,} new "
                f"bytes exceed the limit of {settings.max_open_memory:,} bytes of a tenant",
                "put large inputs into files, wait until jobs end, or ask the operator for serve "
                "--max-open-memory",
            )
        self._jobs[tenant] += jobs
        self._memory[tenant] += memory
        try:
            yield
        finally:
            self._jobs[tenant] -= jobs
            self._memory[tenant] -= memory

    @contextmanager
    def handle(self, tenant: str, connections: int) -> Iterator[None]:
        """Count a request of a tenant during a block; raise `ProblemError` if it has too many.

        ``connections`` is the server's maximum. A tenant has at most as many requests as
        unreserved connections are free. So a tenant alone gets half of them, and tenants together
        can't take all.
        """
        number = self._requests[tenant]
        free = connections - connections // RESERVED_DIVISOR - self._requests.total()
        if number >= min(MAX_TENANT_REQUESTS, max(free, 1)):
            raise tenant_limit_problem(
                f"{number:,} requests of the tenant are being handled",
                "wait for some responses, or close event streams",
            )
        self._requests[tenant] += 1
        try:
            yield
        finally:
            self._requests[tenant] -= 1
            if not self._requests[tenant]:
                del self._requests[tenant]

    @contextmanager
    def receive(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes of a body; it raises `ProblemError` at the limit."""
        received = 0

        def count(size: int) -> None:
            nonlocal received
            if self._bodies[tenant] + size > MAX_BODIES:
                raise tenant_limit_problem(
                    f"the bodies of the tenant's present requests exceed {MAX_BODIES:,} bytes",
                    "send fewer large requests at once",
                )
            self._bodies[tenant] += size
            received += size

        try:
            yield count
        finally:
            self._bodies[tenant] -= received
            if not self._bodies[tenant]:
                del self._bodies[tenant]
