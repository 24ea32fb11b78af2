"""Who gives orders: one executor at a time, of the service that leads."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from shadowprice.executors.contract import Election, ExecutorError
from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.errors import ApiError, DeposedError
from shadowprice.kubernetes.lease import Lease

log = logging.getLogger("shadowprice.executors")

AGAIN: Final = 2.0
"""Seconds of each try to hold the lease again."""

TURN: Final = 45.0
"""Seconds that a service which was killed has to be taken for gone."""


class Charge:
    """The lease of an executor, under the election of its service.

    Two leases, since they end apart: a service without an election has the executor's alone, and
    one of several replicas may be elected while the one before still holds the executor's.

    Parameters
    ----------
    service : str
        Label of the service.
    election : Election or None
        By which its replicas chose this one; None where there is one service only.
    """

    def __init__(self, service: str, election: Election | None) -> None:
        self._service, self._election = service, election
        self._identity = secrets.token_hex(8)
        self._lease: Lease | None = None

    def holds(self) -> bool:
        """Whether nobody else gives orders at this moment, by this machine's clock alone."""
        return self._elected() and self._lease is not None and self._lease.holds()

    @property
    def lost(self) -> bool:
        """Whether the lease is not held any more, and could be taken again."""
        return self._lease is None or self._lease.lost.is_set()

    async def take(self, connection: Connection, namespace: str) -> None:
        """Hold the lease, so that no other serves beside.

        Raises
        ------
        ExecutorError
            If another service holds it.
        ApiError
            If the server refuses.
        """
        lease = self._new(connection, namespace)
        if not await lease.take(TURN, self._is_deposed):
            raise ExecutorError(
                f"the lease {self._service}-executor in {namespace} is held: the cluster is used "
                "by another service; stop that one, or serve from another namespace"
            )
        self._lease = lease

    async def take_again(self, connection: Connection, namespace: str) -> None:
        """Hold the lease again that ran out while nobody answered.

        Where another holds it now, orders are refused until that one lets go.

        Raises
        ------
        ApiError
            If another holds it, or leads, or nobody answers.
        """
        if not self._elected():
            raise DeposedError
        lease = self._new(connection, namespace)
        if not await lease.take(AGAIN):
            raise ApiError(409, "Conflict", f"another holds the lease of {self._service}")
        self._lease = lease
        log.info("the lease of %s is held again", self._service)

    async def release(self) -> None:
        """Let it go, so that the next need not wait."""
        if self._lease is not None:
            await self._lease.release()
            self._lease = None

    def _elected(self) -> bool:
        return self._election is None or self._election.holds()

    def _new(self, connection: Connection, namespace: str) -> Lease:
        identity, election = self._identity, self._election
        if election is not None and election.number:
            identity = f"{election.name} {election.number} {identity}"
        return Lease(connection, namespace, f"{self._service}-executor", identity)

    def _is_deposed(self, holder: str) -> bool:
        """Whether a holder of the lease was elected before this service, which was since.

        By the time somebody else is elected it gives no order any more: see `holds`.
        """
        name, number, *_ = [*holder.split(" "), "", ""]
        mine = self._election
        return (
            mine is not None
            and name == mine.name
            and number.isdecimal()
            and (int(number) < mine.number)
        )
