"""Numbers of requests to the API server, by its own log: limits a generation, change and minute."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from tools.testbed import Testbed, missing
from tools.testbed.audit import Audit, entries

from shadowprice.core.job_keys import key_digest
from shadowprice.executors.contract import (
    Ended,
    Executor,
    ExecutorOptions,
    Receipt,
    ServerAllocation,
    Started,
)
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from shadowprice.executors.kubernetes.pod_logs import (
    MAX_FETCH_BACKOFF_SECONDS,
    MIN_FETCH_INTERVAL_SECONDS,
)
from shadowprice.kubernetes.informer import WATCH_TIMEOUT_SECONDS
from shadowprice.kubernetes.lease import INITIAL_POLL_SECONDS, RENEW_INTERVAL_SECONDS
from shadowprice.service.trainingjobs.controller import STATUS_WRITE_SECONDS
from shadowprice.service.trainingjobs.event_recorder import UNREPORTED_KINDS
from tests.contract.harness import EXECUTOR_USER, POLITE, KubernetesHarness, ReportLog, spec
from tests.kubernetes.operators import ACCOUNT, eventually, installed, manifest, operated
from tests.kubernetes.replicas import account, accounts, paired
from tests.support.backoffs import max_attempts
from tests.support.postgres import binaries


@pytest.fixture
def harness(testbed: Testbed, tmp_path: Path) -> Iterator[KubernetesHarness]:
    chosen = KubernetesHarness(tmp_path / "executor", testbed)
    yield chosen
    chosen.end()


def most(generations: int, processes: int) -> dict[str, int]:
    """Return the limits of docs/kubernetes-reference.md for one job if nothing fails."""
    pods = generations * processes
    return {
        # A command to start, the start, a command to stop, the end, and its acknowledgement.
        "create configmaps": 1,
        "update configmaps": 5 * generations + 1,
        "get configmaps": generations + 1,
        "create secrets": generations,
        "delete secrets": 2 * generations,
        "create services": generations if processes > 1 else 0,
        "delete services": generations if processes > 1 else 0,
        "create pods": pods,
        "delete pods": 2 * pods,
        # Get by name, which a server looks up; it answers a list by labels by reading all objects.
        "list pods": 3 * pods,
        # Before the command to stop, from it on, and after the end.
        "get pods/log": 3 * pods,
    }


@pytest.mark.parametrize("processes", [1, 3])
def test_a_jobs_calls_are_no_more_than_its_generations_and_pods_allow(
    harness: KubernetesHarness, processes: int
) -> None:
    job, shares = (
        f"counted-{processes}",
        [ServerAllocation("one", 1), ServerAllocation("two", 1), ServerAllocation("one", 1)],
    )
    shares = [
        ServerAllocation("one", processes - processes // 2),
        ServerAllocation("two", processes // 2),
    ]
    placement = tuple(share for share in shares if share.workers)

    async def scenario(own: KubernetesHarness, executor: Executor, reports: ReportLog) -> None:
        for number in (1, 2, 3):
            last = number == 3
            line = "true" if last else POLITE
            order = spec(job, number, line, *placement, worker={"cpu": 10})
            assert await executor.start(order) == Receipt.ACCEPTED
            if not last:
                await reports.first(Started, job, number)
                assert await executor.stop(100 + number, job, number) == Receipt.ACCEPTED
            await reports.first(Ended, job, number)
            await executor.acknowledge_end(job, number)
        await executor.delete_job_data(job)
        await asyncio.sleep(3.0)  # requests that repeat would come now
        count_requests = Audit.read(own.bed.audit).counts(EXECUTOR_USER)[key_digest(job)[:16]]
        allowed = most(3, processes)
        over = {what: (count, allowed.get(what, 0)) for what, count in count_requests.items()}
        assert all(count <= bound for count, bound in over.values()), over
        assert count_requests["create pods"] == 3 * processes  # calls for this job are counted
        assert count_requests["get pods/log"] >= processes
        assert count_requests["list pods"] >= 3 * processes

    harness.run(scenario)  # type: ignore[arg-type]  # its own kind of harness


def test_logs_that_a_node_withholds_are_requested_less_and_less(tmp_path: Path) -> None:
    """Hollow nodes have no logs; while the pods end, and for readers, they are requested again."""
    reason = missing(nodes=False)
    if reason:
        pytest.skip(reason)
    jobs = [f"untold-{number}" for number in range(4)]
    with Testbed(hollow=2) as bed:

        async def scenario() -> float:
            own = {"image": "none:1"}
            executor = KubernetesExecutor(
                ExecutorOptions(str(tmp_path / "logs"), "untold", str(bed.kubeconfig), own)
            )
            await executor.open()
            reports = ReportLog(executor)
            for number, job in enumerate(jobs):
                order = spec(
                    job, 1, "sleep 600", ServerAllocation(f"hollow-{number % 2}", 1), grace=8.0
                )
                assert await executor.start(order) == Receipt.ACCEPTED
            for job in jobs:
                await reports.first(Started, job)
            began = time.monotonic()
            while time.monotonic() - began < 10.0:  # a user follows one of them all the time
                with pytest.raises(KeyError):
                    await executor.logs(jobs[0], 1)
                await asyncio.sleep(0.05)
            for job in jobs:
                await executor.stop(11, job, 1)
            for job in jobs:
                await reports.first(Ended, job)
            spent = time.monotonic() - began
            await executor.close()
            await reports.end()
            return spent

        spent = asyncio.run(scenario())
        counted = Counter(
            line["objectRef"]["name"]
            for line in entries(bed.audit)
            if (line.get("objectRef") or {}).get("subresource") == "log"
            and line["stage"] == "ResponseComplete"  # a stream also has a line when it begins
        )
    assert len(counted) == len(jobs)
    # One poll before the command to stop, one after the end, and the lines between.
    bound = 2 + max_attempts(MIN_FETCH_INTERVAL_SECONDS, MAX_FETCH_BACKOFF_SECONDS, spent)
    assert max(counted.values()) <= bound, (counted, spent)
    assert (
        bound < spent / MIN_FETCH_INTERVAL_SECONDS / 3
    )  # it prints something; otherwise there would be as many


def test_figures_are_written_at_most_every_ten_seconds(
    control_plane: Testbed, tmp_path: Path
) -> None:
    """A job that reports five times a second is no load for the API server."""
    user = installed(control_plane)
    script = """
import json, os, time, urllib.request
for done in range(1, 2000):
    headers = {"Authorization": "Bearer " + os.environ["SHADOWPRICE_PROGRESS_TOKEN"]}
    headers["Content-Type"] = "application/json"
    body = json.dumps({"minibatches": done / 1000}).encode()
    url = os.environ["SHADOWPRICE_PROGRESS_URL"]
    urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).close()
    time.sleep(0.2)
"""
    name = "reports"
    run = {"command": [sys.executable, "-I", "-S", "-c", script], "grace": "1s"}
    with operated(user.bed, tmp_path) as service:
        user.apply(manifest(name, run=run, minibatches=500))
        user.waits_for(name, "Running")

        def progress() -> float:
            return float(user.status(name).get("progress") or 0.0)

        def written() -> list[float]:
            return [
                call.at
                for call in Audit.read(user.bed.audit).calls
                if call.resource == "trainingjobs/status" and call.status == 200
            ]

        until = time.monotonic() + 60.0
        while not progress():
            assert time.monotonic() < until, service.client.get("/v1/jobs").text
            time.sleep(0.2)
        before, since, reported = len(written()), time.monotonic(), progress()
        time.sleep(3.2 * STATUS_WRITE_SECONDS)
        assert progress() > reported  # it is reported, but not each time
        count, spent = len(written()) - before, time.monotonic() - since
        # The promise may move with measured progress, so its condition changes.
        assert 2 <= count <= spent / STATUS_WRITE_SECONDS + 1, (count, spent)
        user.delete(name)
        user.gone(name)


def count_requests(bed: Testbed, since: float, user: str = ACCOUNT) -> Counter[str]:
    """Return the service's requests of each kind since a time; watches once they are over."""
    counted: Counter[str] = Counter()
    for line in entries(bed.audit):
        if line["user"].get("username") != user:
            continue
        if line["stage"] != "ResponseComplete":
            continue
        came = line["requestReceivedTimestamp"].replace("Z", "+00:00")
        if datetime.fromisoformat(came).timestamp() >= since:
            about = line.get("objectRef") or {}
            place = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
            counted[f"{line['verb']} {place}"] += 1
    return counted


def test_an_event_is_written_for_every_line_of_the_history_and_no_other(
    control_plane: Testbed, tmp_path: Path
) -> None:
    user, name = installed(control_plane), "told"
    since = time.time()
    with operated(user.bed, tmp_path) as service:
        user.apply(manifest(name, run={"command": ["sleep", "3"], "grace": "1s"}))
        user.waits_for(name, "Running")
        user.apply(manifest(name, utility={"kind": "constant", "value": 7}))
        user.waits_for(name, "Finished")
        job = user.status(name)["job"]
        history = service.client.get(f"/v1/jobs/{job}/explain").json()["events"]
        lines = [one for one in history if one["kind"] not in UNREPORTED_KINDS]
        assert {"standby", "started", "running", "finished"} <= {line["kind"] for line in lines}

        def events() -> int:
            return count_requests(user.bed, since)["create events"]

        eventually(lambda: events() >= len(lines), "all of them")
        user.apply(manifest("untold", workers={"min": 3, "max": 2}))
        user.waits_for("untold", "Rejected")
        eventually(lambda: events() > len(lines), "that it is invalid")
        time.sleep(3.0)  # polls of both that come by themselves
        assert events() == len(lines) + 1, lines
        user.delete(name, "untold")
        user.gone(name)
        user.gone("untold")
    assert events() == len(lines) + 1  # an end is reported once, whatever happens then


@pytest.mark.extended
@pytest.mark.skipif(binaries() is None, reason="there is no PostgreSQL")
def test_idle_replicas_request_only_leases_and_watches(
    control_plane: Testbed, tmp_path: Path
) -> None:
    bed, span = control_plane, 60.0
    began = time.time()
    with paired(accounts(bed), tmp_path, quick=False) as pair:
        leader, standby = sorted(pair.replicas, key=lambda one: not one.leads())
        time.sleep(10.0)  # what begins with the start is over
        since = time.time()
        time.sleep(span)
        led, waited = (
            count_requests(bed, since, account(leader.name)),
            count_requests(bed, since, account(standby.name)),
        )
        spent = time.time() - since
    kinds = {"nodes", "pods", "trainingjobs", "namespaces", "resourcequotas"}
    watches = {f"watch {kind}" for kind in kinds}

    def followed() -> set[str]:
        return {
            one
            for one in count_requests(bed, began, account(leader.name))
            if one.startswith("watch")
        }

    eventually(lambda: followed() == watches, "the end of its watches")
    # Its own lease, and the executor's.
    assert (
        spent / RENEW_INTERVAL_SECONDS
        <= led["update leases"]
        <= 2 * (spent / RENEW_INTERVAL_SECONDS + 1)
    ), led
    assert led.keys() <= watches | {"update leases"}, led
    assert all(led[watch] <= 1 for watch in watches), led
    assert span < WATCH_TIMEOUT_SECONDS * 3 / 4  # so a watch restarts at most once
    assert spent / 2 <= waited["get leases"] <= spent / INITIAL_POLL_SECONDS, waited
    assert waited.keys() == {"get leases"}, waited
