"""The executor's lease: only one executor sends commands at a time."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from shadowprice.executors.contract import Election, ExecutorError
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError, LeadershipLostError
from shadowprice.kubernetes.lease import Lease

log = logging.getLogger("shadowprice.executors")

ACQUIRE_TIMEOUT_SECONDS: Final = 45.0  # at the start, until a killed service's lease expires
REACQUIRE_TIMEOUT_SECONDS: Final = 2.0  # after an outage; short, as the resync tries again


class ExecutorLease:
    """The lease of an executor, subject to the leader election of its service.

    The two leases expire independently: a newly elected replica may have to wait until its
    predecessor's executor lease expires.
    """

    def __init__(self, service: str, election: Election | None) -> None:
        self._service, self._election = service, election
        self._identity = secrets.token_hex(8)
        self._lease: Lease | None = None
        self._candidate: Lease | None = None
        """The lease while it isn't reacquired: it remembers when the holder last renewed it."""

    def holds(self) -> bool:
        """Return whether only this executor may send commands, by this machine's clock."""
        return self._is_elected() and self._lease is not None and self._lease.holds()

    @property
    def lost(self) -> bool:
        """Whether the lease isn't held and may be reacquired."""
        return self._lease is None or self._lease.lost.is_set()

    async def acquire(self, connection: ApiClient, namespace: str) -> None:
        """Acquire the lease; raise `ExecutorError` if another service holds it."""
        lease = self._new(connection, namespace)
        if not await lease.acquire(ACQUIRE_TIMEOUT_SECONDS, self._is_deposed):
            raise ExecutorError(
                f"the lease {self._service}-executor in {namespace} is held: the cluster is used "
                "by another service; stop that one, or serve from another namespace"
            )
        self._lease = lease

    async def reacquire(self, connection: ApiClient, namespace: str) -> None:
        """Reacquire a lease that expired while the API server was away, or raise `ApiError`."""
        if not self._is_elected():
            raise LeadershipLostError
        lease = self._candidate = self._candidate or self._new(connection, namespace)
        if not await lease.acquire(REACQUIRE_TIMEOUT_SECONDS, self._is_deposed):
            raise ApiError(409, "Conflict", f"another service holds the lease of {self._service}")
        self._lease, self._candidate = lease, None
        log.info("the lease of %s is held again", self._service)

    async def release(self) -> None:
        """Release the lease, so that the next holder needn't wait."""
        if self._lease is not None:
            await self._lease.release()
            self._lease = None

    def _is_elected(self) -> bool:
        return self._election is None or self._election.holds()

    def _new(self, connection: ApiClient, namespace: str) -> Lease:
        identity, election = self._identity, self._election
        if election is not None and election.number:
            identity = f"{election.name} {election.number} {identity}"
        return Lease(connection, namespace, f"{self._service}-executor", identity)

    def _is_deposed(self, holder: str) -> bool:
        """Return whether the lease's holder was elected before this service.

        That holder no longer sends commands once this service is elected; see `holds`.
        """
        name, number, *_ = [*holder.split(" "), "", ""]
        election = self._election
        return (
            election is not None
            and name == election.name
            and number.isdecimal()
            and (int(number) < election.number)
        )
