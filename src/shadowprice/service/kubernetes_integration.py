"""The service's integration with a Kubernetes cluster: leader election and `TrainingJob`s."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
from typing import Any, Final

from shadowprice.core.errors import ShadowpriceError
from shadowprice.executors.background import BackgroundTasks, run_all
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.lease import Lease
from shadowprice.kubernetes.names import ACTIVE_LABEL
from shadowprice.service.host import ServiceHost
from shadowprice.service.trainingjobs.controller import Controller

log = logging.getLogger("shadowprice.service")

POD, NAMESPACE = "POD_NAME", "POD_NAMESPACE"
"""Environment variables with the pod's name and namespace."""

POD_LABEL_RETRY_SECONDS: Final = 5.0  # seconds between two attempts to label the leader's pod


class KubernetesIntegration:
    """Lease, pod label and controller of a service. Executors use it as `contract.Election`."""

    def __init__(self, service: ServiceHost) -> None:
        self._service = service
        self._lease: Lease | None = None
        self._connection: ApiClient | None = None
        self._background = BackgroundTasks(log, service.metrics.count_failure)
        self.controller: Controller | None = None

    @property
    def health_error(self) -> str | None:
        """Why a background task is failing; None if all are healthy."""
        controller = None if self.controller is None else self.controller.task_error
        return self._background.health_error or controller

    @property
    def watch_error(self) -> str | None:
        """Why TrainingJobs aren't followed; None if they are, or needn't be."""
        return None if self.controller is None else self.controller.health_error

    async def check(self) -> None:
        """Validate the connection settings without a request, or raise `ConfigError`."""
        connection = await ApiClient.open(self._service.settings.cluster_address)
        await connection.close()

    async def acquire_leadership(self, above: int = 0) -> int | None:
        """Try to acquire the lease; return the epoch, or None if another instance leads.

        The epoch is higher than ``above``, the epoch of the last leader that wrote the store. It is
        0 if no lease is configured, because then only the store elects the writer. Raise
        `ConfigError` if the settings name no cluster.
        """
        settings = self._service.settings
        if settings.lease is None:
            return 0
        if self._lease is not None and self._lease.holds():
            if self._lease.epoch > above:
                return self._lease.epoch
            log.warning(
                "the Lease %s was created again: its epoch %d isn't above %d, that of the last "
                "leader; acquiring it with a higher epoch",
                self.name,
                self._lease.epoch,
                above,
            )
            lease, self._lease = self._lease, None
            await lease.release()
        if self._connection is None:
            self._connection = await ApiClient.open(settings.cluster_address)
            await self._mark(active=False)  # an earlier process may have labelled the pod
        identity = f"{os.environ.get(POD, 'shadowprice')}_{secrets.token_hex(8)}"
        lease = Lease(self._connection, *settings.lease, identity, above)
        try:
            if not await lease.acquire():
                return None
        except ApiError as error:
            log.warning("leader election failed: %s", error)
            return None
        self._lease = lease
        self._connection.restrict_writes(lease.holds)
        self._background.spawn("election", self._until_lost(lease), "watching the lease")
        log.info("this instance is the leader, epoch %d", lease.epoch)
        return lease.epoch

    async def yield_leadership(self, seconds: float) -> None:
        """Release the lease of an instance that can't open the store, and let others be elected."""
        lease, self._lease = self._lease, None
        if lease is not None:
            log.info("this instance is no longer the leader, and may not write")
            await lease.release()
            await asyncio.sleep(seconds)

    async def _until_lost(self, lease: Lease) -> None:
        await lease.lost.wait()
        if lease is self._lease and not self._service.stopping:
            log.error("lost leadership; exiting so that another instance takes over")
            self._service.fail()

    async def begin(self) -> None:
        """Label the pod and start the controller; called after this instance became the writer."""
        settings, lease = self._service.settings, self._lease
        if lease is not None:
            self._background.spawn_repeating("mark", self._mark_pod, "marking the pod that writes")
        if settings.trainingjobs is None:
            return
        connection = await ApiClient.open(settings.trainingjobs)
        identity = hashlib.sha256(b"trainingjobs" + self._service.key).hexdigest()[:16]
        fence: dict[str, Any] = {}
        if lease is not None:
            fence = {"epoch": lease.epoch, "leads": lease.holds}
        self.controller = Controller(self._service, connection, identity=identity, **fence)
        self.controller.begin()

    async def close(self) -> None:
        """Stop the controller."""
        if self.controller is not None:
            await self.controller.close()
            self.controller = None

    async def leave(self) -> None:
        """Release the lease and close the connection; call after the last write."""
        steps = [] if self._lease is None else [self._lease.release]
        steps += [self._background.end]
        steps += [] if self._connection is None else [self._connection.close]
        await run_all(*steps)

    @property
    def name(self) -> str:
        """Namespace and name of the lease."""
        return "/".join(self._service.settings.lease or ())

    @property
    def number(self) -> int:
        """Epoch of this leader; 0 before it is elected."""
        return 0 if self._lease is None else self._lease.epoch

    def holds(self) -> bool:
        """Return whether this instance holds the lease, so that no other can lead."""
        return self._lease is not None and self._lease.holds()

    async def _mark_pod(self) -> bool:
        """Label this pod as active; return False after a delay if that failed."""
        if await self._mark(active=True):
            return True
        await asyncio.sleep(POD_LABEL_RETRY_SECONDS)
        return False

    async def _mark(self, *, active: bool) -> bool:
        """Label this pod as active or inactive; return whether that succeeded.

        An active pod also labels all other pods as inactive.
        """
        pod, namespace = os.environ.get(POD), os.environ.get(NAMESPACE)
        if not pod or not namespace or self._connection is None:
            return True
        pods = f"/api/v1/namespaces/{namespace}/pods"
        try:
            if active:
                active_pods = await self._connection.get(pods, labelSelector=f"{ACTIVE_LABEL}=true")
                for item in active_pods.get("items") or ():
                    if item["metadata"]["name"] != pod:
                        await self._label(f"{pods}/{item['metadata']['name']}", active=False)
            await self._label(f"{pods}/{pod}", active=active)
        except ShadowpriceError as error:
            log.warning("failed to label the pod: %s", error)
            return False
        return True

    async def _label(self, path: str, *, active: bool) -> None:
        assert self._connection is not None
        body: dict[str, Any] = {"metadata": {"labels": {ACTIVE_LABEL: str(active).lower()}}}
        try:
            await self._connection.patch(path, body)
        except ApiError as error:
            if not error.not_found:
                raise
