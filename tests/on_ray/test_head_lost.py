"""The head is killed without Redis: everything that ran is lost, and resumes with a new head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.on_ray.started import StartedCluster
from tests.support.ray_serving import job, jobs, serving, until

pytestmark = [pytest.mark.ray, pytest.mark.long]


@pytest.fixture
def forgetful() -> Iterator[StartedCluster]:
    """A cluster whose raylets give up a lost head after 5 s, instead of Ray's 60 s."""
    pytest.importorskip("ray")
    cluster = StartedCluster(RAY_gcs_rpc_server_reconnect_timeout_s="5")
    yield cluster
    cluster.end()


@pytest.mark.extended
def test_jobs_continue_under_a_new_head(forgetful: StartedCluster, tmp_path: Path) -> None:
    with serving(tmp_path, forgetful) as (client, _):
        until(lambda: "other" in {s["name"] for s in client.get("/v1/servers").json()["servers"]})
        assert client.post("/v1/jobs", json=job("only", 1, 1)).is_success
        until(lambda: jobs(client)["only"]["progress"] > 10, lambda: jobs(client))
        assert forgetful.kill("gcs_server") == 1
        # Raylets that give up kill their processes, so nothing runs unseen.
        until(lambda: not forgetful.count("raylet/raylet"))
        until(lambda: not running(tmp_path))
        before = jobs(client)["only"]
        assert (before["state"], before["generation"]) == ("running", 1)  # the end was not observed
        message = "failed to reach Ray; retrying: no Ray answers at"
        until(lambda: message in (tmp_path / "log").read_text())
        assert client.get("/readyz").status_code == 503
        health_error = client.get("/v1/service").json()["health_error"]
        assert health_error.startswith("Ray cannot be reached: no Ray answers at"), health_error
        forgetful.kill()
        forgetful.begin_head(forgetful.address.rpartition(":")[2])
        forgetful.join_node()
        until(lambda: jobs(client)["only"]["state"] == "finished", lambda: jobs(client))
        over = jobs(client)["only"]
        assert over["generation"] > 1
        kinds = [event["kind"] for event in client.get("/v1/jobs/only/explain").json()["events"]]
        assert "retrying" not in kinds  # not its own failure: lost, or moved with its server
        text = client.get("/v1/jobs/only/logs").json()["text"]
        assert "done: loss" in text
        assert "step 0" not in text  # it resumed from its checkpoint
        assert "Ray can be reached again" in (tmp_path / "log").read_text()
        assert client.get("/readyz").is_success


def running(folder: Path) -> list[str]:
    """Return the live processes of jobs."""
    results = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "SHADOWPRICE_JOB=" in environment and str(folder) in environment:
            results.append(entry.name)
    return results
