"""Nodes as servers that are unready for a moment, for long, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until_async

pytest.importorskip("kubernetes_asyncio")

from shadowprice.executors.contract import (
    Receipt,
    Report,
    ServerAllocation,
    ServerGone,
    ServerInfo,
    ServerSeen,
    Started,
    StartRefused,
)
from shadowprice.executors.kubernetes import cluster_cache
from shadowprice.executors.kubernetes import executor as module
from shadowprice.executors.kubernetes.cluster_cache import ClusterCache
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.settings import KubernetesSettings
from shadowprice.executors.kubernetes.views import NodeView
from tests.support.kubernetes_executors import generation_spec, open_executor, run_scenario
from tests.unit.executors.kubernetes.newer import Newer


class Clock:
    """The monotonic clock of the node poll."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    chosen = Clock()
    monkeypatch.setattr(cluster_cache, "time", chosen)
    return chosen


@pytest.fixture
def cluster(clock: Clock) -> ClusterCache:
    nothing: Any = None
    service, settings = ServiceId("s", "default"), KubernetesSettings(tolerate_unready=30.0)
    chosen = ClusterCache(nothing, service, settings, lambda *_: None, lambda _: None)
    chosen.nodes.healthy = True
    say(chosen)
    assert diff(chosen) == ([ServerInfo("n", {"cpu": 4000})], [])
    return chosen


def diff(
    cluster: ClusterCache, expected: Collection[str] = ()
) -> tuple[list[ServerInfo], list[str]]:
    """Refresh the servers; return new or changed ones, and the names of lost ones."""
    previous = cluster.servers
    cluster.refresh_servers(expected)
    servers = cluster.servers
    changed = [server for name, server in servers.items() if previous.get(name) != server]
    return changed, sorted(previous.keys() - servers.keys())


def say(cluster: ClusterCache, *, ready: bool = True, off: bool = False) -> None:
    cluster.nodes.items["n"] = NodeView("n", "u", {"cpu": 4000}, ready=ready, out_of_service=off)


def test_a_node_may_flicker_as_long_as_it_is_tolerated(cluster: ClusterCache, clock: Clock) -> None:
    for _ in range(5):
        say(cluster, ready=False)
        assert diff(cluster) == ([], [])
        clock.now += 29.0
        assert diff(cluster) == ([], [])
        say(cluster)
        assert diff(cluster) == ([], [])
    say(cluster, ready=False)
    assert diff(cluster) == ([], [])
    clock.now += 30.0
    assert diff(cluster) == ([], ["n"])
    say(cluster)
    assert diff(cluster) == ([ServerInfo("n", {"cpu": 4000})], [])


def test_one_that_is_deleted_or_off_is_gone_at_once(cluster: ClusterCache) -> None:
    say(cluster, ready=False, off=True)
    assert diff(cluster) == ([], ["n"])
    say(cluster)
    diff(cluster)
    del cluster.nodes.items["n"]
    assert diff(cluster) == ([], ["n"])


def test_no_process_counts_as_gone_without_evidence(cluster: ClusterCache, clock: Clock) -> None:
    say(cluster, ready=False)
    cluster.nodes.healthy = False
    clock.now += 3600.0
    assert diff(cluster) == ([], [])
    cluster.nodes.healthy = True  # it is polled again: from now on it counts
    assert diff(cluster) == ([], [])
    clock.now += 31.0
    assert diff(cluster) == ([], ["n"])


def test_a_node_that_was_never_ready_is_no_server_unless_expected(
    cluster: ClusterCache, clock: Clock
) -> None:
    say(cluster, ready=False)
    cluster.servers = {}  # as a new poll sees it
    assert diff(cluster) == ([], [])
    assert diff(cluster, {"other"}) == ([], [])
    assert diff(cluster, {"n"}) == ([ServerInfo("n", {"cpu": 4000})], [])
    clock.now += 31.0
    assert diff(cluster, {"n"}) == ([], ["n"])
    assert diff(cluster, {"n"}) == ([], [])


# ---------------------------------------------------------------------- the whole executor


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll nodes all the time."""
    monkeypatch.setattr(module, "RESYNC_SECONDS", 0.02)


def gone(reports: list[Report]) -> list[str]:
    return [report.server for report in reports if isinstance(report, ServerGone)]


def test_a_job_begins_on_a_node_that_flickers_and_is_never_reported_lost(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            server.say("two", "Unknown")
            await wait_until_async(lambda: not executor.session.cluster.node("two").ready)
            assert (
                await executor.start(generation_spec(ServerAllocation("two", 1)))
                == Receipt.ACCEPTED
            )
            await wait_until_async(lambda: any(isinstance(report, Started) for report in reports))
            await asyncio.sleep(0.3)
            server.say("two", "True")
            await wait_until_async(lambda: bool(executor.session.cluster.node("two").ready))
            await asyncio.sleep(0.3)
            assert gone(reports) == []
            assert not [report for report in reports if isinstance(report, StartRefused)]

    run_scenario(tmp_path, scenario)


def test_one_that_stays_not_ready_is_reported_gone_and_takes_nothing(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path, tolerate_unready="1") as (executor, reports):
            server.say("two", "False")
            await wait_until_async(lambda: gone(reports) == ["two"])
            assert (
                await executor.start(generation_spec(ServerAllocation("two", 1)))
                == Receipt.ACCEPTED
            )
            await wait_until_async(
                lambda: any(isinstance(report, StartRefused) for report in reports)
            )
            [refused] = [report for report in reports if isinstance(report, StartRefused)]
            assert refused.reason == "the node two is not ready"
            count = len(reports)
            server.say("two", "True")
            await wait_until_async(
                lambda: any(isinstance(report, ServerSeen) for report in reports[count:])
            )
            server.remove("one")
            await wait_until_async(lambda: gone(reports) == ["two", "one"])

    run_scenario(tmp_path, scenario)


def test_a_service_that_begins_while_a_node_flickers_keeps_it(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        server.say("two", "Unknown")
        async with open_executor(kubeconfig, tmp_path) as (_, reports):
            await asyncio.sleep(0.3)
            assert gone(reports) == []
            seen = {report.server.name for report in reports if isinstance(report, ServerSeen)}
            assert seen == {"one", "two"}

    run_scenario(tmp_path, scenario)
