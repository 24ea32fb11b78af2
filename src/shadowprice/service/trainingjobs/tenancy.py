"""Who the jobs of a namespace belong to, and the shares that namespaces state, as they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import ShadowpriceError
from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.informer import Informer
from shadowprice.kubernetes.names import SHARE
from shadowprice.service.driver import Driver
from shadowprice.service.trainingjobs.shares import (
    FollowShares,
    Stated,
    excess,
    of_namespace,
    of_quota,
    wanted,
)

log = logging.getLogger("shadowprice.service")

GATHER: Final = 0.2
"""Seconds in which changes of namespaces are taken together."""

AGAIN: Final = 10.0
"""Seconds before shares that could not be taken are tried again: nodes may have joined."""

REASON: Final = "ShareNotTaken"


class Tenancy:
    """Follows namespaces, and quotas that are shares.

    Parameters
    ----------
    connection : Connection
        To the API server.
    driver : Driver
        Whose tenants they are.
    file : Cluster
        As the cluster file has it.
    warn : callable
        Tells people of an object what is wrong with it: reference, reason, text.
    may_write : callable
        Raises where another instance leads.
    with_jobs : callable
        Returns the namespaces that have resources.
    changed : callable
        Told the name of a namespace whose tenant is another now.
    """

    def __init__(
        self,
        connection: Connection,
        driver: Driver,
        file: Cluster,
        *,
        warn: Callable[[Mapping[str, Any], str, str], None],
        may_write: Callable[[str, str], None],
        with_jobs: Callable[[], Iterable[str]],
        changed: Callable[[str], None],
    ) -> None:
        self._driver = driver
        self._file = file
        self._warn = warn
        self._may_write = may_write
        self._with_jobs = with_jobs
        self._changed = changed
        self._namespaces: Informer[Stated] = Informer(
            connection, "/api/v1/namespaces", of_namespace, self._namespace_changed
        )
        self._quotas: Informer[Stated] = Informer(
            connection,
            "/api/v1/resourcequotas",
            of_quota,
            lambda *_: self._wake.set(),
            {"labelSelector": f"{SHARE}=true"},
        )
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._told: set[tuple[str, str]] = set()
        self._followed = False

    async def start(self) -> None:
        """List both, and follow them.

        Raises
        ------
        ApiError
            If namespaces may not be read.
        """
        await self._namespaces.start()
        try:
            await self._quotas.start()
        except ApiError as error:
            if error.status != 403:
                raise
            log.warning("quotas are no shares here, for they may not be read: %s", error)

    async def close(self) -> None:
        """Follow them no longer."""
        await self._namespaces.close()
        await self._quotas.close()

    def of(self, namespace: str) -> str:
        """Return the tenant of a namespace."""
        found = self._namespaces.items.get(namespace)
        return namespace if found is None else found.tenant

    def _namespace_changed(self, name: str, old: Stated | None, new: Stated | None) -> None:
        self._wake.set()
        if (old and old.tenant) != (new and new.tenant):
            self._changed(name)

    async def run(self) -> None:
        """Follow shares as they change, until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER)
            self._wake.clear()
            followed = False
            try:
                followed = await self.follow()
            finally:
                if not followed:
                    asyncio.get_running_loop().call_later(AGAIN, self._wake.set)

    async def follow(self) -> bool:
        """Let tenants be what namespaces say now; return whether all that is said could be."""
        async with self._one_at_a_time:
            cluster = self._driver.published.servers.cluster
            namespaces = self._namespaces.items
            found = wanted(
                namespaces,
                self._quotas.items.values(),
                file=self._file,
                cluster=cluster,
                also=[self.of(name) for name in self._with_jobs()],
            )
            faults = list(found.wrong)
            why = excess(found.shares, cluster)
            if not why:
                try:
                    self._may_write("shares", "")
                    await self._driver.do(FollowShares(found.shares, anew=not self._followed))
                    self._followed = True
                except ShadowpriceError as error:
                    why = str(error)
                except Exception as error:  # jobs are followed all the same
                    self._driver.metrics.failures.labels("trainingjobs").inc()
                    log.exception("the shares of namespaces could not be followed")
                    why = f"they could not be taken: {type(error).__name__}"
            if why:
                stating = [one for one in namespaces.values() if one.text is not None]
                wrong = {one.uid for one, _ in faults}
                faults += [
                    (one, why)
                    for one in [*stating, *self._quotas.items.values()]
                    if one.uid not in wrong
                ]
            self._tell(faults)
            return not why

    def _tell(self, faults: list[tuple[Stated, str]]) -> None:
        """Say what is not taken, once."""
        told = {(one.uid, text) for one, text in faults}
        for one, text in faults:
            if (one.uid, text) not in self._told:
                log.warning("the share of %s %s: %s", one.kind.lower(), one.name, text)
                self._warn(one.reference(), REASON, text)
        self._told = told
