"""Election of a service by a Lease, and the epoch in its store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("kubernetes_asyncio")

from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import MonotonicWallClock
from shadowprice.service.kubernetes_integration import KubernetesIntegration
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.store.locks import EPOCH_KEY
from shadowprice.service.store.store import Store
from tests.support.services import run_service
from tests.support.simulated_hours import CLUSTER
from tests.support.simulated_world import ManualClock
from tests.unit.kubernetes.apiserver import Leases, Scripted, served


def test_a_lease_that_was_created_again_continues_above_the_stored_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(tmp_path / "store"))
    assert store.open(41)  # an earlier leader
    store.close()

    async def main(integration: KubernetesIntegration) -> None:
        server = Scripted()
        server.answer = Leases().answer  # type: ignore[method-assign]  # the Lease was deleted
        async with served(server, tmp_path):
            epoch = await integration.acquire_leadership(store.later_epoch)
            assert epoch == 1
            assert not store.open(epoch)
            epoch = await integration.acquire_leadership(store.later_epoch)
            assert epoch is not None
            assert epoch > 41
            assert store.open(epoch)
            assert await integration.acquire_leadership(store.later_epoch) == epoch
            assert integration.holds()
            await integration.leave()

    with run_service(tmp_path) as live:
        settings = live.service.settings
        kubeconfig = str(tmp_path / "kubeconfig")
        live.service.settings = replace(settings, lease=("n", "lease"), trainingjobs=kubeconfig)
        asyncio.run(main(KubernetesIntegration(live.service)))
        live.service.settings = settings
    store.close()
    assert "the Lease n/lease was created again: its epoch 1 isn't above 41" in caplog.text


def test_the_first_start_of_a_store_keeps_the_epoch_of_its_leader(tmp_path: Path) -> None:
    """Otherwise an earlier leader could still become the writer."""
    store = Store(str(tmp_path / "store"))
    assert store.open(41)
    DurableEngine(store, CLUSTER, PolicyChoice("fifo"), MonotonicWallClock(ManualClock()))
    assert store.get(EPOCH_KEY) == "41"
    store.close()
    assert not store.open(40)
    store.close()
