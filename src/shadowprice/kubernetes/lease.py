"""Leader election by a Lease, with an epoch as the fencing token.

Clocks of other machines aren't trusted. A candidate measures the lease's duration by its own clock,
from the moment when it first saw the last renewal. The holder measures from before each renewal
request, on a clock that also advances while the machine sleeps. So the holder stops at least
`RENEW_DEADLINE_MARGIN_SECONDS` seconds before a candidate may acquire the lease.

A suspended holder doesn't notice that it lost the lease. So its writes to the service's store carry
`Lease.epoch`, and the store refuses an epoch lower than the highest one that it has seen.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Backoff

log = logging.getLogger("shadowprice.kubernetes")

LEASE_DURATION_SECONDS: Final = 15  # seconds after which a lease without renewal expires
RENEW_INTERVAL_SECONDS: Final = 4.0  # seconds between renewals
RENEW_DEADLINE_MARGIN_SECONDS: Final = 5.0  # before expiry, the holder gives up a lease
INITIAL_POLL_SECONDS: Final = 0.5  # between polls of a lease that another process holds
MAX_POLL_SECONDS: Final = 2.0


class Lease:
    """A lease that one process holds at a time.

    ``identity`` is a unique identifier of this process. ``lost`` is set while this process doesn't
    hold the lease. ``epoch`` is a fencing token, 0 before the lease is held. It is higher than the
    epochs of all earlier holders, and than ``above``. If the Lease object was deleted, only
    ``above`` counts, because the object stores the epoch.
    """

    def __init__(
        self, connection: ApiClient, namespace: str, name: str, identity: str, above: int = 0
    ) -> None:
        self._above = above
        self._connection = connection
        self._collection_path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection_path}/{name}"
        self._namespace, self._name = namespace, name
        self._identity = identity
        self._renewing: asyncio.Task[None] | None = None
        self._written: dict[str, Any] = {}  # the Lease object after this process's last write
        self._until = 0.0  # until then, this process holds the lease unless another one acquired it
        self._last_renewal, self._seen_since = "", _now()  # of another holder
        self.lost = asyncio.Event()
        self.lost.set()
        self.epoch = 0

    def holds(self) -> bool:
        """Return whether this process holds the lease, without a request."""
        return not self.lost.is_set() and _now() < self._until

    async def acquire(
        self,
        timeout: float = 2.0 * LEASE_DURATION_SECONDS,
        is_deposed: Callable[[str], bool] = lambda _: False,
    ) -> bool:
        """Acquire the lease; return False if another process holds it.

        It returns as soon as the other holder renews the lease, or after ``timeout`` seconds.
        Repeated short attempts succeed too, because they remember the last renewal. If
        ``is_deposed`` returns True for the holder's identity, the lease is acquired at once.
        """
        until = time.monotonic() + timeout
        backoff = Backoff(INITIAL_POLL_SECONDS, MAX_POLL_SECONDS)
        while True:
            current = await self._read()
            spec = current.get("spec", {})
            holder, renewed = spec.get("holderIdentity") or "", str(spec.get("renewTime", ""))
            is_free = holder in {"", self._identity} or is_deposed(holder)
            if renewed != self._last_renewal:
                was_seen = bool(self._last_renewal)
                self._last_renewal, self._seen_since = renewed, _now()
                if was_seen and not is_free:
                    return False  # the holder is alive
            duration = float(spec.get("leaseDurationSeconds") or LEASE_DURATION_SECONDS)
            if is_free or _now() - self._seen_since > duration:
                self._last_renewal = ""  # if another process is quicker, watch it from the start
                if await self._write(current, taking=True):
                    self.epoch = int(self._written["spec"]["leaseTransitions"])
                    self.lost.clear()
                    self._renewing = asyncio.create_task(self._renew())
                    return True
            if time.monotonic() > until:
                return False
            await asyncio.sleep(backoff.record_failure())

    async def release(self) -> None:
        """Release the lease, so that the next holder needn't wait."""
        if self._renewing is None:
            return
        still_held = not self.lost.is_set()
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        self._renewing = None
        if still_held:
            with suppress(ApiError):
                await self._write(self._written, holder="")

    async def _read(self) -> dict[str, Any]:
        return await self._connection.find(self._path, urgent=True) or {}

    async def _write(
        self, before: dict[str, Any], holder: str | None = None, *, taking: bool = False
    ) -> bool:
        """Replace the object ``before``; return False if another process has changed it.

        The epoch is increased if the holder changes, or if ``taking``.
        """
        holder = self._identity if holder is None else holder
        requested = _now()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(before.get("spec", {}))
        if taking or spec.get("holderIdentity") != holder:
            previous = max(int(spec.get("leaseTransitions") or 0), self._above)
            spec |= {"leaseTransitions": previous + 1}
            spec["acquireTime"] = now
        spec |= {
            "holderIdentity": holder,
            "renewTime": now,
            "leaseDurationSeconds": LEASE_DURATION_SECONDS,
        }
        meta = before.get("metadata") or {"name": self._name}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        document = {**body, "metadata": meta, "spec": spec}
        try:
            method, path = ("PUT", self._path) if before else ("POST", self._collection_path)
            self._written = await self._connection.request(method, path, body=document, urgent=True)
        except ApiError as error:
            if error.not_found and not before:
                message = (
                    f"the namespace {self._namespace} of the lease {self._name} doesn't exist: "
                    f"{error}"
                )
                raise ApiError(error.status, error.reason, message) from error
            if error.conflict or error.exists or error.not_found:
                return False
            raise
        self._until = requested + LEASE_DURATION_SECONDS - RENEW_DEADLINE_MARGIN_SECONDS
        return True

    async def _renew(self) -> None:
        try:
            while await self._renew_once():
                await asyncio.sleep(
                    RENEW_INTERVAL_SECONDS if self._until - _now() > RENEW_INTERVAL_SECONDS else 1.0
                )
        finally:
            self.lost.set()

    async def _renew_once(self) -> bool:
        """Renew the lease once; return whether it is still held."""
        try:
            async with asyncio.timeout(max(0.1, self._until - _now())):
                if await self._write(self._written):
                    return True
                current = await self._read()
            if current.get("spec", {}).get("holderIdentity") == self._identity:
                self._written = current  # this process's own write, whose response was lost
                return True
            holder = current.get("spec", {}).get("holderIdentity") or "no holder"
            log.warning("lost the lease %s to %s", self._name, holder)
            return False
        except (ApiError, TimeoutError) as error:
            log.info("failed to renew the lease %s: %s", self._name, error)
        if _now() < self._until:
            return True
        log.warning("the lease %s expired", self._name)
        return False


def _now() -> float:
    """Return monotonic seconds that include the machine's sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
