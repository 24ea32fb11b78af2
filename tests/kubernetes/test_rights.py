"""A namespace with missing or revoked rights, and two services on one cluster.

The service has the account of the manifests, on a real API server that checks its rights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tools.testbed import Testbed

from shadowprice.executors.contract import ExecutorOptions
from shadowprice.executors.kubernetes.executor import KubernetesExecutor
from tests.contract.harness import BASE
from tests.kubernetes.operators import (
    User,
    bind_jobs,
    eventually,
    installed,
    manifest,
    namespace,
    operated,
    service_account,
)
from tests.support.services import RunningService

CLUSTER: dict[str, Any] = {
    "slot": "4s",
    "horizon": 600,
    "servers": [{"name": "one", "capacity": {"cpu": 2}}],
}
PATIENCE = 300.0
"""Seconds from a job's submission until its pods run on a busy machine."""


@pytest.fixture(scope="module")
def user(testbed: Testbed) -> User:
    return installed(testbed)


@contextmanager
def scheduling(user: User, folder: Path) -> Iterator[RunningService]:
    """Run a service with one server, whose pods are the executor's."""
    config = service_account(user.bed)
    own = {"image": BASE, "namespace": "shadowprice"}
    options = ExecutorOptions(str(folder / "executor"), "shadowprice", str(config), own)
    with operated(
        user.bed,
        folder,
        config,
        KubernetesExecutor(options),
        cluster=CLUSTER,
        policy="fifo",
    ) as service:
        yield service


def sleeper(name: str, namespace: str) -> dict[str, Any]:
    run = {"command": ["sleep", "600"], "grace": "1s", "image": BASE, "pod": {"pull": "Never"}}
    return manifest(name, namespace, run=run, minibatches=500)


def events(user: User, namespace: str, name: str) -> list[tuple[str, str, str]]:
    """Return type, reason and message of a resource's events."""
    found = json.loads(user.bed.kubectl("get", "events", "-n", namespace, "-o", "json"))["items"]
    return [
        (one["type"], one["reason"], one["message"])
        for one in found
        if one["involvedObject"]["name"] == name
    ]


def running(user: User, name: str, namespace: str) -> bool:
    return user.condition(name, "Running", namespace).get("status") == "True"


def test_a_namespace_without_rights_says_so_and_holds_no_node(user: User, tmp_path: Path) -> None:
    with namespace(user.bed, "vision"), namespace(user.bed, "speech"):
        bind_jobs(user.bed, "speech")
        with scheduling(user, tmp_path) as service:
            user.apply(sleeper("barred", "vision"))

            def said() -> bool:
                condition = user.condition("barred", "Running", "vision")
                return condition.get("reason") == "StartRefused"

            eventually(said, "the condition", PATIENCE)
            message = user.condition("barred", "Running", "vision")["message"]
            assert 'cannot create resource "secrets"' in message
            assert 'in the namespace "vision"' in message
            user.apply(sleeper("other", "speech"))
            eventually(lambda: running(user, "other", "speech"), "another tenant's job", PATIENCE)
            assert ("Warning", "StartFailed") in [
                event[:2] for event in events(user, "vision", "barred")
            ]
            user.bed.kubectl("delete", "tj", "-n", "vision", "--wait=false", "barred")
            eventually(lambda: user.resource("barred", "vision") is None, "its end", PATIENCE)
            assert service.client.get("/readyz").status_code == 200
            user.bed.kubectl("delete", "tj", "-n", "speech", "--wait=false", "other")
            eventually(lambda: user.resource("other", "speech") is None, "its end", PATIENCE)


def test_rights_revoked_under_a_running_job_block_no_other(user: User, tmp_path: Path) -> None:
    with namespace(user.bed, "vision"), namespace(user.bed, "speech"):
        bind_jobs(user.bed, "vision")
        bind_jobs(user.bed, "speech")
        with scheduling(user, tmp_path) as service:
            user.apply(sleeper("stuck", "vision"))
            eventually(lambda: running(user, "stuck", "vision"), "the job", PATIENCE)
            user.bed.kubectl("delete", "rolebinding", "-n", "vision", "shadowprice-jobs")
            job = user.status("stuck", "vision")["job"]
            assert service.client.delete(f"/v1/jobs/{job}").is_success

            def loss_message() -> str:
                lost = [event for event in events(user, "vision", "stuck") if event[1] == "Lost"]
                return lost[0][2] if lost else ""

            message = eventually(loss_message, "the event", PATIENCE)
            assert 'cannot delete resource "pods"' in message
            # The pod runs on, and the status shows it.
            assert service.client.get("/readyz").json() == {"status": "degraded"}
            [warning] = service.client.get("/v1/service").json()["warnings"]
            assert warning["code"] == "generation-obstructed"
            assert warning["servers"] == ["one"]
            user.apply(sleeper("other", "speech"))
            eventually(lambda: running(user, "other", "speech"), "another tenant's job", PATIENCE)
            # The cluster removes the pod with its resource.
            user.bed.kubectl("delete", "tj", "-n", "vision", "--wait=false", "stuck")
            eventually(lambda: user.resource("stuck", "vision") is None, "its end", PATIENCE)
            eventually(
                lambda: service.client.get("/readyz").json() == {"status": "ready"},
                "the end of its pod",
                PATIENCE,
            )
            user.bed.kubectl("delete", "tj", "-n", "speech", "--wait=false", "other")
            eventually(lambda: user.resource("other", "speech") is None, "its end", PATIENCE)


def test_of_two_services_one_drives_a_resource(user: User, tmp_path: Path) -> None:
    def jobs(service: RunningService) -> list[str]:
        return [job["name"] for job in service.client.get("/v1/jobs").json()["jobs"]]

    with (
        operated(user.bed, tmp_path / "left") as left,
        operated(user.bed, tmp_path / "right") as right,
    ):
        user.apply(*(manifest(f"shared-{number}") for number in range(6)))
        eventually(
            lambda: all(user.status(f"shared-{number}").get("state") for number in range(6)),
            "their statuses",
        )
        claims = {
            (user.resource(f"shared-{number}") or {})["metadata"]["annotations"][
                "shadowprice.io/service"
            ]
            for number in range(6)
        }
        assert 1 <= len(claims) <= 2
        assert len(jobs(left)) + len(jobs(right)) == 6
        assert set(jobs(left)).isdisjoint(jobs(right))
        user.delete(*(f"shared-{number}" for number in range(6)))
        for number in range(6):
            user.gone(f"shared-{number}")
