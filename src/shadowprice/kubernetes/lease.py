"""One of several at a time, by a Lease, and a number that only grows from one holder to the next.

Clocks of others are not believed: a lease is free when nobody renewed it for as long as it says,
counted here from when it was first seen so. Whoever holds it counts from before each renewal was
asked for, on a clock that goes on while the machine sleeps, and stops `MARGIN` earlier than anybody
else may begin.

A holder that was frozen does not know that it holds no more. So nothing rests on the lease alone:
what is written carries `Lease.epoch`, and where it is kept a lower number is refused after a
higher one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Pauses

log = logging.getLogger("shadowprice.kubernetes")

DURATION: Final = 15
"""Seconds that a lease lasts without being renewed."""

RENEW: Final = 4.0
"""Seconds between renewals."""

MARGIN: Final = 5.0
"""Seconds before its end at which a lease that was not renewed is let go."""

LOOK: Final = 0.5
LOOK_AT_LAST: Final = 2.0
"""Seconds between looks at a lease that another holds, from the first to the last."""


class Lease:
    """Held by one at a time.

    Parameters
    ----------
    connection : Connection
        To the server.
    namespace, name : str
        Which lease.
    identity : str
        Who asks: another one for every process, whatever its name was.

    Attributes
    ----------
    lost : asyncio.Event
        Set once it was not renewed in time, or another took it.
    epoch : int
        Number of this holding: higher than that of every one before; 0 before it is held.
    """

    def __init__(self, connection: Connection, namespace: str, name: str, identity: str) -> None:
        self._connection = connection
        self._list = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._list}/{name}"
        self._name = name
        self._identity = identity
        self._renewing: asyncio.Task[None] | None = None
        self._held: dict[str, Any] = {}
        self._until = 0.0
        self.lost = asyncio.Event()
        self.epoch = 0

    def holds(self) -> bool:
        """Whether nobody else can hold it at this moment, by this machine's clock alone."""
        return self._renewing is not None and not self.lost.is_set() and _now() < self._until

    async def take(
        self,
        patience: float = 2.0 * DURATION,
        over: Callable[[str], bool] = lambda _: False,
    ) -> bool:
        """Take it; False where another holds it, and renews it or goes on to for that long.

        Parameters
        ----------
        patience : float
            Seconds.
        over : callable
            Whether it is known of a holder, by its identity, that it does nothing by it any more:
            from that one it is taken at once.

        Raises
        ------
        ApiError
            If the server refuses.
        """
        until = time.monotonic() + patience
        seen, since = "", _now()
        pauses = Pauses(LOOK, LOOK_AT_LAST)
        while True:
            found = await self._read()
            told = found.get("spec", {})
            holder, renewed = told.get("holderIdentity") or "", str(told.get("renewTime", ""))
            if renewed != seen:
                if seen and holder not in {"", self._identity} and not over(holder):
                    return False  # it is there, and renews
                seen, since = renewed, _now()
            lasts = float(told.get("leaseDurationSeconds") or DURATION)
            if holder in {"", self._identity} or over(holder) or _now() - since > lasts:
                if await self._write(found, taking=True):
                    self.epoch = int(self._held["spec"]["leaseTransitions"])
                    self._renewing = asyncio.create_task(self._renew())
                    return True
                seen = ""
            if time.monotonic() > until:
                return False
            await asyncio.sleep(pauses.failed())

    async def release(self) -> None:
        """Let it go, so that the next need not wait."""
        if self._renewing is None:
            return
        held = not self.lost.is_set()
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        self._renewing = None
        if held:
            with suppress(ApiError):
                await self._write(self._held, holder="")

    async def _read(self) -> dict[str, Any]:
        try:
            return await self._connection.request("GET", self._path, urgent=True)
        except ApiError as error:
            if not error.not_found:
                raise
            return {}

    async def _write(
        self, before: dict[str, Any], holder: str | None = None, *, taking: bool = False
    ) -> bool:
        """Write it in place of what was read; whether nobody else did."""
        holder = self._identity if holder is None else holder
        asked = _now()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        told = dict(before.get("spec", {}))
        if taking or told.get("holderIdentity") != holder:
            told |= {"leaseTransitions": int(told.get("leaseTransitions") or 0) + 1}
            told["acquireTime"] = now
        told |= {"holderIdentity": holder, "renewTime": now, "leaseDurationSeconds": DURATION}
        meta = before.get("metadata") or {"name": self._name}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        written = {**body, "metadata": meta, "spec": told}
        try:
            method, path = ("PUT", self._path) if before else ("POST", self._list)
            self._held = await self._connection.request(method, path, body=written, urgent=True)
        except ApiError as error:
            if error.conflict or error.exists or error.not_found:
                return False
            raise
        self._until = asked + DURATION - MARGIN
        return True

    async def _renew(self) -> None:
        try:
            while await self._renewed():
                await asyncio.sleep(RENEW if self._until - _now() > RENEW else 1.0)
        finally:
            self.lost.set()

    async def _renewed(self) -> bool:
        """Renew it once; whether it is still held."""
        try:
            async with asyncio.timeout(max(0.1, self._until - _now())):
                if await self._write(self._held):
                    return True
                found = await self._read()
            if found.get("spec", {}).get("holderIdentity") == self._identity:
                self._held = found  # an answer of ours was lost on its way
                return True
            log.warning("another has taken the lease %s", self._name)
            return False
        except (ApiError, TimeoutError) as error:
            log.info("the lease %s was not renewed: %s", self._name, error)
        if _now() < self._until:
            return True
        log.warning("the lease %s ran out", self._name)
        return False


def _now() -> float:
    """Return seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
