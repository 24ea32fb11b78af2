"""Tenants take turns at a resource that serves few requests at a time.

So the many requests of a tenant delay a request of another tenant by only one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final

from shadowprice.service.problems import ProblemError
from shadowprice.service.state.tenant_lanes import TenantLanes

requester: Final[ContextVar[str | None]] = ContextVar("requester", default=None)
"""Tenant whose request the current task handles; None for operators and the service itself.

The web application sets it for each request. `OperationQueue`, `Service.read` and
`requests.in_turn` read it to serve tenants in turn.
"""


class TenantTurns:
    """A semaphore whose waiting tenants take turns; operators (None) are one more tenant.

    ``width`` requests run at the same time. At most ``max_waiting`` requests of a tenant wait
    (None: any number). ``what`` is their noun in the error message.
    """

    def __init__(
        self, width: int = 1, *, max_waiting: int | None = None, what: str = "requests"
    ) -> None:
        self._free = width
        self._max_waiting = max_waiting
        self._what = what
        self._waiting: TenantLanes[asyncio.Future[None]] = TenantLanes()

    @asynccontextmanager
    async def turn(self, tenant: str | None) -> AsyncIterator[None]:
        """Run a block when it is the request's turn; raise `ProblemError` if too many wait."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, tenant: str | None) -> None:
        if self._max_waiting is not None and self._waiting.count(tenant) >= self._max_waiting:
            raise ProblemError("overloaded", f"{self._max_waiting} {self._what} already wait")
        turn = asyncio.get_running_loop().create_future()
        self._waiting.push(tenant, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._next()  # the turn began before the request was cancelled
            self._waiting.remove(tenant, turn)
            raise

    def _next(self) -> None:
        """Pass a turn that ended to the tenant that has waited for the most turns."""
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._free += 1
