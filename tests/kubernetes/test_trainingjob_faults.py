"""The controller interrupted in the middle of a resource, and an API server that goes away."""

from __future__ import annotations

import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tools.testbed import ApiError, Testbed, missing
from tools.testbed.audit import entries

from tests.kubernetes.operators import (
    PATIENCE,
    User,
    eventually,
    installed,
    joined,
    manifest,
    operated,
)

RESOURCES = "/apis/shadowprice.io/v1alpha1/namespaces/default/trainingjobs"


@pytest.fixture(scope="module")
def user(control_plane: Testbed) -> User:
    return installed(control_plane)


STEPS = {
    "hold", "hold done", "submit", "submitted", "status", "status done", "revise", "cancel",
    "release", "release done",
}  # fmt: skip
"""Everything that a controller does about a resource from its creation to its deletion."""


def life(user: User, name: str) -> None:
    """Apply a resource, edit it while it runs, and delete it, as far as that isn't done yet."""
    user.apply(manifest(name))
    user.waits_for(name, "Running")
    user.apply(manifest(name, utility={"kind": "constant", "value": 7}))
    user.waits_for(name, "Edited")
    user.delete(name)
    user.gone(name)


def test_the_steps_that_are_tried_are_all_there_are(user: User, tmp_path: Path) -> None:
    seen: set[str] = set()
    with operated(user.bed, tmp_path) as service:
        kubernetes = service.service._kubernetes
        assert kubernetes is not None
        assert kubernetes.controller is not None
        kubernetes.controller.fault = lambda at, key: seen.add(at) if "/" in key else None
        life(user, "whole")
    assert seen == STEPS


@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_controller_interrupted_at_any_step_continues(
    user: User, tmp_path: Path, step: str
) -> None:
    name = f"cut-{step.replace(' ', '-')}"
    cut: list[str] = []

    def fault(at: str, key: str) -> None:
        if key.endswith(f"/{name}") and (cut or at == step):
            cut.append(at)
            raise RuntimeError("cut off")  # and the controller does nothing more about it

    with operated(user.bed, tmp_path) as service:
        kubernetes = service.service._kubernetes
        assert kubernetes is not None
        assert kubernetes.controller is not None
        kubernetes.controller.fault = fault
        living = threading.Thread(target=_until, args=(user, name, cut))
        living.start()
        eventually(lambda: cut, f"{step}")
    # The service stopped; another one starts with the same state.
    with operated(user.bed, tmp_path) as service:
        living.join(PATIENCE)
        assert not living.is_alive()
        if step == "release done":  # it was gone, and so it stays
            assert user.resource(name) is None
        elif step in {"cancel", "release"}:
            user.gone(name)
        else:
            life(user, name)
        jobs = service.client.get("/v1/jobs").json()["jobs"]
        assert [job["state"] for job in jobs] == ["cancelled"]


def _until(user: User, name: str, cut: list[str]) -> None:
    """Do what users do until the controller is interrupted; give up what waits for it then."""
    user.apply(manifest(name))
    waits = [
        lambda: user.condition(name, "Running").get("status") == "True",
        lambda: user.condition(name, "Edited").get("status") == "True",
    ]
    actions = [
        lambda: user.apply(manifest(name, utility={"kind": "constant", "value": 7})),
        lambda: user.delete(name),
    ]
    for wait, act in zip(waits, actions, strict=True):
        eventually(lambda wait=wait: bool(cut) or wait(), "the next")  # type: ignore[misc]
        if cut:
            return
        act()


def test_a_server_that_throttles_requests_loses_nothing(tmp_path: Path) -> None:
    """One write at a time, and many clients: the service's writes get 429."""
    reason = missing(nodes=False)
    if reason:
        pytest.skip(reason)
    few = ("--feature-gates=APIPriorityAndFairness=false", "--max-mutating-requests-inflight=1")
    names = {f"many-{number}" for number in range(20)}
    with Testbed(apiserver=few, users={"shadowprice": (), "crowd": ()}) as bed:
        installed(bed)
        # By a role: members of system:masters are never throttled.
        words = ("--clusterrole=cluster-admin", "--user=shadowprice", "--user=crowd")
        bed.kubectl("create", "clusterrolebinding", "all", *words)
        over = threading.Event()

        def create_resources() -> None:
            body = {"metadata": {"generateName": "crowd-"}}
            while not over.is_set():
                with suppress(ApiError):
                    bed.ask("POST", "/api/v1/namespaces/default/configmaps", body, user="crowd")

        def all_finished() -> bool:
            items = bed.ask("GET", RESOURCES)["items"]
            states = {
                item["metadata"]["name"]: item.get("status", {}).get("state") for item in items
            }
            return states.keys() == names and all(states.values())

        crowding = [threading.Thread(target=create_resources) for _ in range(4)]
        with operated(bed, tmp_path, bed.kubeconfig_of("shadowprice")) as service:
            try:
                for one in crowding:
                    one.start()
                for name in names:
                    eventually(lambda name=name: _created(bed, name), name)  # type: ignore[misc]
                eventually(all_finished, "all of their statuses")
            finally:
                over.set()
                joined(*crowding)
            jobs = service.client.get("/v1/jobs?limit=100").json()["jobs"]
            assert len(jobs) == len(names)
            for job in jobs:  # the executor's processes outlive the service
                service.client.delete(f"/v1/jobs/{job['name']}")
            eventually(lambda: not _running(tmp_path), "the end of all processes")
        own = [entry for entry in entries(bed.audit) if entry["user"]["username"] == "shadowprice"]
    codes = [one.get("responseStatus", {}).get("code") for one in own]
    assert codes.count(429) > 0


def _running(folder: Path) -> list[str]:
    commands = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True, timeout=60
    )
    return [line for line in commands.stdout.splitlines() if f"agent.py {folder}" in line]


def _created(bed: Testbed, name: str) -> bool:
    try:
        bed.ask("POST", RESOURCES, manifest(name))
    except ApiError as error:
        if error.status != 429:
            raise
        return False
    return True


def test_an_api_server_that_was_away_and_histories_that_ended_lose_nothing(
    user: User, tmp_path: Path
) -> None:
    with operated(user.bed, tmp_path) as service:
        user.apply(manifest("before"))
        user.waits_for("before", "Running")
        job = user.status("before")["job"]
        user.bed.kill("kube-apiserver")
        assert service.client.delete(f"/v1/jobs/{job}").json()["state"] == "cancelled"
        user.bed.restart("kube-apiserver")
        user.bed.expire_watches()
        assert user.waits_for("before", "Failed")["reason"] == "Cancelled"
        user.apply(manifest("after"))
        user.waits_for("after", "Running")
        user.delete("before", "after")
        user.gone("before")
        user.gone("after")
