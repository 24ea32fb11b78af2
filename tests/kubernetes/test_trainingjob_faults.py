"""The controller cut off in the middle of a resource, and an API server that goes away."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.testbed import Testbed

from tests.kubernetes.operators import User, eventually, installed, manifest, operated


@pytest.fixture(scope="module")
def user(control_plane: Testbed) -> User:
    return installed(control_plane)


@pytest.mark.parametrize("step", ["hold done", "submitted", "status"])
def test_a_controller_cut_off_at_any_step_goes_on(user: User, tmp_path: Path, step: str) -> None:
    name = f"cut-{step.replace(' ', '-')}"
    cut: list[str] = []

    def fault(at: str, key: str) -> None:
        if at == step and key.endswith(name) and not cut:
            cut.append(at)
            raise RuntimeError("cut off")

    with operated(user.bed, tmp_path) as service:
        resident = service.service._resident
        assert resident is not None
        assert resident.controller is not None
        resident.controller.fault = fault
        user.apply(manifest(name))
        eventually(lambda: cut, f"{step}")
    # The service went on to its end; another begins on what is there.
    with operated(user.bed, tmp_path) as service:
        user.waits_for(name, "Running")
        jobs = service.client.get("/v1/jobs").json()["jobs"]
        assert [one["state"] for one in jobs] == ["running"]
        user.delete(name)
        user.gone(name)
        assert service.client.get("/v1/jobs").json()["jobs"][0]["state"] == "cancelled"


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
