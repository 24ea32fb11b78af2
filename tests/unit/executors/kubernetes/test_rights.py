"""Rights that are missing or revoked while a job runs, and names of foreign objects."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.waiting import wait_until_async

pytest.importorskip("kubernetes_asyncio")

from shadowprice.executors.contract import (
    Ended,
    Ending,
    Receipt,
    Report,
    ServerAllocation,
    ServerSeen,
    Started,
    StartRefused,
)
from shadowprice.executors.kubernetes import controller
from shadowprice.executors.kubernetes import executor as module
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from shadowprice.executors.kubernetes.names import generation_name, pod_name
from tests.support.kubernetes_executors import generation_spec, open_executor, run_scenario
from tests.unit.executors.kubernetes.newer import Newer

ONE = ServerAllocation("one", 1)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry and give up at once."""
    monkeypatch.setattr(module, "RESYNC_SECONDS", 0.02)
    monkeypatch.setattr(module, "ORPHAN_CHECK_SECONDS", 0.02)
    monkeypatch.setattr(controller, "REFUSED_SECONDS", 0.1)
    monkeypatch.setattr(controller, "INITIAL_BACKOFF_SECONDS", 0.02)
    monkeypatch.setattr(controller, "MAX_BACKOFF_SECONDS", 0.05)


def of(kind: type, reports: list[Report], generation: int = 1) -> list[Report]:
    return [
        report
        for report in reports
        if isinstance(report, kind) and getattr(report, "generation", generation) == generation
    ]


def no_rights(method: str, kind: str) -> bool:
    """Whether a request needs a right of the RoleBinding in a namespace of jobs."""
    return kind in {"secrets", "services"} or (kind == "pods" and method != "GET")


async def refused(reports: list[Report], generation: int = 1) -> str:
    await wait_until_async(lambda: bool(of(StartRefused, reports, generation)), lambda: reports)
    [report] = of(StartRefused, reports, generation)
    assert isinstance(report, StartRefused)
    return report.reason


def test_a_namespace_without_rights_holds_no_node(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            server.deny = no_rights
            assert await executor.start(generation_spec(ONE)) == Receipt.ACCEPTED
            assert 'cannot POST resource "secrets"' in await refused(reports)
            assert server.requests["DELETE secrets"] == 0  # there is none
            assert executor.obstacles() == ()
            server.deny = lambda _method, _kind: False
            assert (
                await executor.start(replace(generation_spec(ONE), job="other")) == Receipt.ACCEPTED
            )
            await wait_until_async(lambda: bool(of(Started, reports)))

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("kind", ["pods", "services"])
def test_a_role_without_one_of_its_rights_refuses_the_start(tmp_path: Path, kind: str) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            server.deny = lambda method, of_: (method, of_) == ("POST", kind)
            assert (
                await executor.start(generation_spec(ONE, ServerAllocation("two", 1)))
                == Receipt.ACCEPTED
            )
            assert f'cannot POST resource "{kind}"' in await refused(reports)
            assert server.pods() == server.names("secrets") == []

    run_scenario(tmp_path, scenario)


def test_gates_that_may_not_be_removed_refuse_the_start(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            server.deny = lambda method, _: method == "PATCH"
            assert (
                await executor.start(generation_spec(ONE, ServerAllocation("two", 1)))
                == Receipt.ACCEPTED
            )
            assert 'cannot PATCH resource "pods"' in await refused(reports)
            assert server.pods() == []

    run_scenario(tmp_path, scenario)


def test_rights_revoked_while_a_job_runs_withhold_only_its_resources(tmp_path: Path) -> None:
    def cpu(executor: KubernetesExecutor) -> int:
        return executor.session.cluster.servers["one"].capacity["cpu"]

    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            assert await executor.start(generation_spec(ONE)) == Receipt.ACCEPTED
            await wait_until_async(lambda: bool(of(Started, reports)))
            server.deny = no_rights
            assert await executor.stop(11, "job", 1) == Receipt.ACCEPTED
            await wait_until_async(lambda: bool(executor.obstacles()))
            assert 'cannot DELETE resource "pods"' in executor.obstacles()[0].reason
            await wait_until_async(lambda: bool(of(Ended, reports)))
            [ended] = of(Ended, reports)
            assert isinstance(ended, Ended)
            assert ended.ending is Ending.LOST
            assert 'cannot DELETE resource "pods"' in ended.reason
            # Its pod runs on: it counts, is visible, and keeps the job from running twice.
            assert cpu(executor) == 3500
            assert any(
                isinstance(report, ServerSeen) and report.server.capacity["cpu"] == 3500
                for report in reports
            )
            await executor.acknowledge_end("job", 1)
            await wait_until_async(lambda: "cannot DELETE" in executor.obstacles()[0].reason)
            [obstacle] = executor.obstacles()
            assert (obstacle.job, obstacle.generation, obstacle.servers) == ("job", 1, ("one",))
            assert (
                await executor.start(replace(generation_spec(ONE), generation=2))
                == Receipt.ACCEPTED
            )
            assert pod_name("job", 1, "worker-0") in await refused(reports, 2)
            other = replace(generation_spec(ONE), job="other", generation=3)
            assert await executor.start(other) == Receipt.ACCEPTED
            await wait_until_async(
                lambda: bool(of(StartRefused, reports, 3))
            )  # it has no rights either
            server.deny = lambda _method, _kind: False
            await wait_until_async(lambda: executor.obstacles() == () and cpu(executor) == 4000)
            assert server.pods() == []
            assert (
                await executor.start(replace(generation_spec(ONE), generation=4))
                == Receipt.ACCEPTED
            )
            await wait_until_async(lambda: bool(of(Started, reports, 4)))

    run_scenario(tmp_path, scenario)


def test_errors_are_an_obstacle_once_they_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "REFUSED_SECONDS", 3600.0)

    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async def some(request: str) -> None:
            """Wait until a request was repeated a few times."""
            before = server.requests[request]
            await wait_until_async(lambda: server.requests[request] > before + 3)

        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            server.fail = lambda method, kind: (method, kind) == ("POST", "secrets")
            assert await executor.start(generation_spec(ONE)) == Receipt.ACCEPTED
            await some("POST secrets")
            assert executor.obstacles() == ()
            server.fail = lambda _method, _kind: False
            await wait_until_async(lambda: bool(of(Started, reports)))
        server.fail = lambda method, kind: (method, kind) == ("GET", "secrets")
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            monkeypatch.setattr(controller, "REFUSED_SECONDS", 0.0)
            await some("GET secrets")
            assert executor.obstacles() == ()  # a running generation needs nothing
            monkeypatch.setattr(controller, "REFUSED_SECONDS", 3600.0)
            assert await executor.stop(11, "job", 1) == Receipt.ACCEPTED
            await some("GET secrets")
            assert executor.obstacles() == ()
            monkeypatch.setattr(controller, "REFUSED_SECONDS", 0.0)
            await wait_until_async(lambda: bool(executor.obstacles()))
            assert "request timed out" in executor.obstacles()[0].reason
            server.fail = lambda _method, _kind: False
            await wait_until_async(lambda: bool(of(Ended, reports)))
            assert executor.obstacles() == ()

    run_scenario(tmp_path, scenario)


def test_a_job_that_completes_without_rights_is_done(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            assert await executor.start(generation_spec(ONE)) == Receipt.ACCEPTED
            await wait_until_async(lambda: bool(of(Started, reports)))
            server.deny = no_rights
            server.complete(pod_name("job", 1, "worker-0"))
            await wait_until_async(lambda: bool(of(Ended, reports)))
            [ended] = of(Ended, reports)
            assert isinstance(ended, Ended)
            assert ended.ending is Ending.DONE
            assert executor.obstacles() == ()

    run_scenario(tmp_path, scenario)


def test_a_service_that_starts_without_rights_counts_what_runs(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            assert await executor.start(generation_spec(ONE)) == Receipt.ACCEPTED
            await wait_until_async(lambda: bool(of(Started, reports)))
        server.deny = no_rights
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            assert await executor.stop(11, "job", 1) == Receipt.ACCEPTED
            await wait_until_async(lambda: bool(of(Ended, reports)))
            await executor.acknowledge_end("job", 1)
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            await wait_until_async(
                lambda: executor.session.cluster.servers["one"].capacity["cpu"] == 3500
            )
            assert (
                await executor.start(replace(generation_spec(ONE), generation=2))
                == Receipt.ACCEPTED
            )
            await refused(reports, 2)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("kind", ["secrets", "pods", "services"])
def test_an_object_of_something_else_with_a_generations_name_is_left_alone(
    tmp_path: Path, kind: str
) -> None:
    name = pod_name("job", 1, "worker-0") if kind == "pods" else generation_name("job", 1)
    meta = {"name": name, "namespace": "default", "labels": {}, "annotations": {}}

    async def scenario(server: Newer, kubeconfig: Path) -> None:
        async with open_executor(kubeconfig, tmp_path) as (executor, reports):
            server.put(kind, {"metadata": meta, "spec": {"containers": []}, "status": {}})
            assert (
                await executor.start(generation_spec(ONE, ServerAllocation("two", 1)))
                == Receipt.ACCEPTED
            )
            assert "already exists, and has another owner" in await refused(reports)
            await wait_until_async(lambda: server.names(kind) == [name])

    run_scenario(tmp_path, scenario)


def test_services_with_one_name_in_two_namespaces_leave_each_others_pods(tmp_path: Path) -> None:
    async def scenario(server: Newer, kubeconfig: Path) -> None:
        folders = [tmp_path / name for name in ("left", "right")]
        async with (
            open_executor(kubeconfig, folders[0], namespace="left") as (left, reports),
            open_executor(kubeconfig, folders[1], namespace="right") as (right, others),
        ):
            assert await left.start(generation_spec(ONE)) == Receipt.ACCEPTED
            await wait_until_async(lambda: bool(of(Started, reports)))
            assert await right.start(generation_spec(ONE)) == Receipt.ACCEPTED
            assert "has another owner" in await refused(others)
            await wait_until_async(
                lambda: right.session.cluster.servers["one"].capacity["cpu"] == 3500
            )
            await asyncio.sleep(0.5)  # many sweeps
            assert server.pods() == [pod_name("job", 1, "worker-0")]
            assert not of(Ended, reports)

    run_scenario(tmp_path, scenario)
