"""Watch of namespaces and quotas: the tenant of each namespace, and the declared shares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import ShadowpriceError
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.informer import Informer
from shadowprice.kubernetes.names import SHARE
from shadowprice.service.trainingjobs.shares import (
    ShareStatement,
    SyncShares,
    desired_shares,
    excess_message,
    share_from_namespace,
    share_from_quota,
)
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")

DEBOUNCE_SECONDS: Final = 0.2
"""Seconds for which changes are collected before they are applied together."""

RETRY_SECONDS: Final = 10.0
"""Seconds before refused shares are tried again, because nodes may have joined."""

REASON: Final = "ShareNotTaken"


class NamespaceShares:
    """Applies the tenants and shares that namespaces and labelled quotas declare.

    ``file`` is the cluster file's cluster. ``warn`` emits a warning about an object, with its
    reference, a reason and a text. ``may_write`` raises if this instance no longer leads.
    ``with_jobs`` returns the namespaces that have resources, and ``changed`` handles a change of a
    namespace's tenant.
    """

    def __init__(
        self,
        connection: ApiClient,
        writer: Writer,
        file: Cluster,
        *,
        warn: Callable[[Mapping[str, Any], str, str], None],
        may_write: Callable[[str, str], None],
        with_jobs: Callable[[], Iterable[str]],
        changed: Callable[[str], None],
    ) -> None:
        self._writer = writer
        self._file = file
        self._warn = warn
        self._may_write = may_write
        self._with_jobs = with_jobs
        self._changed = changed
        self._namespaces: Informer[ShareStatement] = Informer(
            connection, "/api/v1/namespaces", share_from_namespace, self._namespace_changed
        )
        self._quotas: Informer[ShareStatement] = Informer(
            connection,
            "/api/v1/resourcequotas",
            share_from_quota,
            lambda *_: self._wake.set(),
            {"labelSelector": f"{SHARE}=true"},
        )
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._warned: set[tuple[str, str]] = set()
        self._followed = False

    async def start(self) -> None:
        """Start the watches; raise `ApiError` if namespaces can't be read. Quotas are optional."""
        await self._namespaces.start()
        try:
            await self._quotas.start()
        except ApiError as error:
            if error.status != 403:
                raise
            log.warning("ResourceQuotas don't become shares, because they can't be read: %s", error)

    async def close(self) -> None:
        """Stop the watches."""
        await self._namespaces.close()
        await self._quotas.close()

    def of(self, namespace: str) -> str:
        """Return the tenant of a namespace."""
        declaration = self._namespaces.items.get(namespace)
        return namespace if declaration is None else declaration.tenant

    def _namespace_changed(
        self, name: str, old: ShareStatement | None, new: ShareStatement | None
    ) -> None:
        self._wake.set()
        if (old and old.tenant) != (new and new.tenant):
            self._changed(name)

    async def run(self) -> None:
        """Apply shares whenever they change, until cancelled; retry refused ones."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(DEBOUNCE_SECONDS)
            self._wake.clear()
            followed = False
            try:
                followed = await self.follow()
            finally:
                if not followed:
                    asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wake.set)

    async def follow(self) -> bool:
        """Apply the current declarations; return False if the shares were refused."""
        async with self._one_at_a_time:
            cluster = self._writer.published.servers.cluster
            namespaces = self._namespaces.items
            combined = desired_shares(
                namespaces,
                self._quotas.items.values(),
                file=self._file,
                cluster=cluster,
                also=[self.of(name) for name in self._with_jobs()],
            )
            faults = list(combined.wrong)
            reason = excess_message(combined.shares, cluster)
            if not reason:
                try:
                    self._may_write("shares", "")
                    await self._writer.do(
                        SyncShares(combined.shares, self._file.tenants, anew=not self._followed)
                    )
                    self._followed = True
                except ShadowpriceError as error:
                    reason = str(error)
                except Exception as error:  # jobs have to be reconciled regardless
                    self._writer.metrics.failures.labels("trainingjobs").inc()
                    log.exception("failed to watch the shares of namespaces")
                    reason = f"failed to apply them: {type(error).__name__}"
            if reason:
                declaring = [source for source in namespaces.values() if source.text is not None]
                refused_uids = {source.uid for source, _ in faults}
                faults += [
                    (source, reason)
                    for source in [*declaring, *self._quotas.items.values()]
                    if source.uid not in refused_uids
                ]
            self._warn_once(faults)
            return not reason

    def _warn_once(self, faults: list[tuple[ShareStatement, str]]) -> None:
        """Warn of refused declarations, each reason once."""
        current = {(source.uid, text) for source, text in faults}
        for source, text in faults:
            if (source.uid, text) not in self._warned:
                log.warning("the share of %s %s: %s", source.kind.lower(), source.name, text)
                self._warn(source.reference(), REASON, text)
        self._warned = current
