"""What only this executor has: faults of its API server, late requests, reasons, rights."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.testbed import Testbed

from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    ExecutorError,
    ExecutorOptions,
    Phase,
    Receipt,
    Refused,
    Share,
    Started,
)
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from shadowprice.executors.kubernetes.names import pod_name
from shadowprice.executors.registry import create
from shadowprice.kubernetes.errors import UnreachableError
from tests.contract.harness import POLITE, KubernetesHarness, Told, eventually, ready, spec

RIGHTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "executor-rights.yaml"
PATIENCE = 60.0


@pytest.fixture
def harness(tmp_path: Path, testbed: Testbed) -> Iterator[KubernetesHarness]:
    chosen = KubernetesHarness(tmp_path / "executor", testbed)
    yield chosen
    chosen.end()


def test_an_api_server_that_is_away_for_a_while_costs_nothing(harness: KubernetesHarness) -> None:
    async def scenario(own: KubernetesHarness, executor: Executor, told: Told) -> None:
        command = "echo ready; until [ -e $SHADOWPRICE_CHECKPOINT_DIR/go ]; do sleep 0.1; done"
        await executor.start(spec("runs", 1, command))
        await executor.start(spec("stays", 1, POLITE))
        await ready(executor, "runs")
        await ready(executor, "stays")
        await told.one(Started, "runs")
        await told.one(Started, "stays")
        own.bed.kill("kube-apiserver")
        try:
            with pytest.raises(ExecutorError):
                await executor.start(spec("late", 1, "true"))
            with pytest.raises(ExecutorError):
                await executor.stop(5, "stays", 1)
            assert {held.phase for held in await executor.list()} == {Phase.RUNNING}
            for folder in own.path.glob("files/*/checkpoints"):
                (folder / "go").touch()
            await asyncio.sleep(20.0)  # the lease runs out meanwhile
            assert not told.of(Ended, "runs")
        finally:
            own.bed.restart("kube-apiserver")
        assert (await told.one(Ended, "runs")).ending is Ending.DONE
        assert not told.of(Ended, "stays")

        async def ordered(order: Any) -> Receipt:
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    return Receipt(await order())
                except ExecutorError:
                    assert time.monotonic() < until
                    await asyncio.sleep(0.2)

        assert await ordered(lambda: executor.start(spec("late", 1, "true"))) == Receipt.ACCEPTED
        assert (await told.one(Ended, "late")).ending is Ending.DONE
        assert await ordered(lambda: executor.stop(5, "stays", 1)) == Receipt.ACCEPTED
        assert (await told.one(Ended, "stays")).ending is Ending.STOPPED

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


class Killed:
    """Cuts a service off from its API server before or after one of its requests that write.

    Parameters
    ----------
    executor : KubernetesExecutor
        The service's.
    count : int
        Which of them, from 1 on.
    after : bool
        Whether the server did what it was asked.
    """

    def __init__(self, executor: KubernetesExecutor, count: int, *, after: bool) -> None:
        self._left = count
        self._after = after
        self.dead = False
        self._request = executor.connection.request
        executor.connection.request = self.request  # type: ignore[method-assign]

    async def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if "/leases" in path:  # it would have to run out
            return await self._request(method, path, **more)
        if method != "GET" and not self.dead:
            self._left -= 1
            if self._left == 0:
                self.dead = True
                if self._after:
                    await self._request(method, path, **more)
        if self.dead:
            raise UnreachableError("killed")
        return await self._request(method, path, **more)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", range(1, 10))
def test_a_service_killed_at_any_write_of_a_generations_life_doubles_nothing(
    harness: KubernetesHarness, tmp_path: Path, count: int, *, after: bool
) -> None:
    ran = tmp_path / "ran"
    order = spec("job", 1, f"echo $RANK >> {ran}", Share("one", 1), Share("two", 1))

    async def scenario(own: KubernetesHarness, executor: Executor, told: Told) -> None:
        assert isinstance(executor, KubernetesExecutor)
        killed = Killed(executor, count, after=after)
        try:
            await executor.start(order)
            await eventually(lambda: killed.dead or bool(told.of(Ended, "job")))
        except ExecutorError:
            assert killed.dead
        await executor.close()
        again = await own.open()
        heard = Told(again)
        assert await again.start(order) in {Receipt.ACCEPTED, Receipt.DUPLICATE}
        await eventually(lambda: bool(heard.of(Ended, "job") or heard.of(Refused, "job")))
        for end in heard.of(Ended, "job"):
            assert end.ending is Ending.DONE or end.ending is Ending.LOST
        done = bool(heard.of(Ended, "job"))
        ranks = ran.read_text().split() if ran.exists() else []
        assert len(ranks) == len(set(ranks))
        assert not done or heard.of(Ended, "job")[0].ending is Ending.LOST or len(ranks) == 2
        # The next one begins in any case: nothing is stuck.
        assert await again.start(spec("job", 2, "true")) == Receipt.ACCEPTED
        assert (await heard.one(Ended, "job", 2)).ending is Ending.DONE
        await again.close()
        await heard.end()

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


def test_a_pod_that_is_asked_for_late_never_runs_and_is_removed(
    harness: KubernetesHarness, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"

    async def scenario(own: KubernetesHarness, executor: Executor, told: Told) -> None:
        assert isinstance(executor, KubernetesExecutor)
        asked: list[dict[str, Any]] = []
        post = executor.connection.post

        async def noted(path: str, body: Any, **query: object) -> dict[str, Any]:
            if path.endswith("/pods"):
                asked.append(json.loads(json.dumps(body)))
            return await post(path, body, **query)

        executor.connection.post = noted  # type: ignore[method-assign]
        await executor.start(spec("job", 1, f"echo x >> {ran}"))
        await told.one(Ended, "job")
        (body,) = asked
        own.bed.ask("POST", "/api/v1/namespaces/default/pods", body)
        name = pod_name("job", 1, "worker-0")

        def there() -> bool:
            found = own.bed.ask("GET", "/api/v1/namespaces/default/pods")
            return name in {one["metadata"]["name"] for one in found["items"]}

        assert there()
        await eventually(lambda: not there())
        assert ran.read_text() == "x\n"

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"image": "nowhere.test/none:1"}, ["ErrImageNeverPull", "nowhere.test/none:1"]),
        ({"pod": {"volumes": [{"path": "/x", "secret": "s"}]}}, ["allow=secrets"]),
        ({"pod": {"priority_class": "none"}}, ["the API server refused it", "none"]),
    ],
)
def test_what_cannot_begin_is_refused_with_the_clusters_reason(
    harness: KubernetesHarness, more: dict[str, Any], words: list[str]
) -> None:
    async def scenario(_: KubernetesHarness, executor: Executor, told: Told) -> None:
        order = spec("job", 1, "true")
        program = type(order.program)(order.program.command, **more)
        fields = {name: getattr(order, name) for name in order.__dataclass_fields__}
        await executor.start(type(order)(**{**fields, "program": program}))
        reason = (await told.one(Refused, "job")).reason
        assert all(word in reason for word in words), reason
        assert await executor.start(spec("job", 2, "true")) == Receipt.ACCEPTED
        assert (await told.one(Ended, "job", 2)).ending is Ending.DONE

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


def test_a_pod_that_needs_more_memory_than_its_job_asks_for_failed(
    harness: KubernetesHarness,
) -> None:
    async def scenario(_: KubernetesHarness, executor: Executor, told: Told) -> None:
        words = ("/bin/sh", "-c", "exec tail /dev/zero")
        await executor.start(spec("job", 1, words, worker={"memory": 32 << 20}))
        ended = await told.one(Ended, "job")
        assert (ended.ending, ended.code) == (Ending.FAILED, 137)

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


def test_it_asks_for_what_its_role_says_and_for_nothing_else(
    harness: KubernetesHarness, testbed: Testbed
) -> None:
    rules = list(yaml.safe_load_all(RIGHTS.read_text()))
    for rule in rules:
        rule["metadata"]["namespace"] = "default"
        testbed.kubectl("apply", "-f", "-", given=json.dumps(rule))
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": f"{rule['kind']}Binding",
            "metadata": {"name": "executor", "namespace": "default"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": rule["kind"]}
            | {"name": rule["metadata"]["name"]},
            "subjects": [{"kind": "User", "name": "shadowprice"}],
        }
        testbed.kubectl("apply", "-f", "-", given=json.dumps(binding))
    own = {name: value for name, value in harness.settings.items() if name != "cgroup"}
    config = str(testbed.kubeconfig_of("shadowprice"))

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Executor, Told]]:
        executor = create(
            "kubernetes", ExecutorOptions(str(harness.path), "of-a-role", config, own)
        )
        await executor.open()
        told = Told(executor)
        try:
            yield executor, told
        finally:
            await executor.close()
            await told.end()

    async def life() -> None:
        async with opened() as (executor, told):
            await executor.start(spec("job", 1, POLITE, Share("one", 1), Share("two", 1)))
            await told.one(Started, "job")
            await ready(executor, "job")
            await executor.stop(7, "job", 1)
            assert (await told.one(Ended, "job")).ending is Ending.STOPPED
            await executor.forget("job", 1)
            await executor.discard("job")
            await executor.start(spec("two", 1, POLITE))
            await told.one(Started, "two")
        async with opened() as (executor, told):
            await executor.stop(7, "two", 1)
            await told.one(Ended, "two")

    asyncio.run(life())
    allowed = {
        (resource, verb)
        for rule in rules
        for one in rule["rules"]
        for resource in one["resources"]
        for verb in one["verbs"]
    }
    used = set()
    for line in testbed.audit.read_text().splitlines():
        entry = json.loads(line)
        about = entry.get("objectRef")
        if entry["user"]["username"] != "shadowprice" or not about or about.get("name") == "x":
            continue
        if entry.get("responseStatus", {}).get("code") == 403:
            raise AssertionError(entry["requestURI"])
        part = f"/{about['subresource']}" if "subresource" in about else ""
        used.add((about["resource"] + part, entry["verb"]))
    assert used <= allowed
    # Gates are what this server lacks.
    assert allowed - used <= {("pods", "patch")}, allowed - used
