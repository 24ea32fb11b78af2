"""``shadowprice serve --executor ray`` while nodes join and are killed, and the service too."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.ray_cluster import RayCluster
from tests.support.ray_serving import job, jobs, serving, until

pytestmark = pytest.mark.ray


def servers(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {server["name"]: server for server in client.get("/v1/servers").json()["servers"]}


@pytest.mark.extended
def test_jobs_finish_though_a_raylet_and_the_service_are_killed(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    def finished(client: httpx.Client) -> bool:
        states = {record["state"] for record in jobs(client).values()}
        assert not states & {"refused", "failed", "cancelled"}, jobs(client)
        return states == {"finished"}

    with serving(tmp_path, ray_cluster) as (client, process):
        result = until(lambda: "two" in servers(client) and servers(client))
        assert result["two"]["capacity"]["cpu"] == "1"
        until(lambda: servers(client)["gone"]["state"] == "lost", lambda: servers(client))
        # `wide` takes all of server one, so the other job must be on the server that joined.
        for one in (job("wide", 2, 1), job("narrow", 1, 2)):
            assert client.post("/v1/jobs", json=one).is_success
        until(
            lambda: all(record["progress"] > 0 for record in jobs(client).values()),
            lambda: jobs(client),
        )
        assert jobs(client)["narrow"]["servers"] == ["two"]
        ray_cluster.kill("two")
        until(lambda: servers(client)["two"]["state"] == "lost", lambda: servers(client))
        os.kill(process, signal.SIGKILL)
    ray_cluster.restore()
    with serving(tmp_path, ray_cluster) as (client, _):
        until(lambda: servers(client)["two"]["state"] != "lost", lambda: servers(client))
        until(lambda: finished(client), lambda: jobs(client))
        over = jobs(client)
        assert over["wide"]["generation"] == 1  # it ran all the time
        assert over["narrow"]["generation"] > 1
        for name in over:
            assert "done: loss" in client.get(f"/v1/jobs/{name}/logs").json()["text"]
        assert list((tmp_path / "nodes" / "parts").glob("*")) == []


def actors() -> list[int]:
    """Return the processes of the actors on the raylets of this process."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (folder / "stat").read_text()
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::ProcessActor"):
                found.append(int(folder.name))

    def own(process: int) -> bool:
        return process == os.getpid() or (process in parents and own(parents[process]))

    return [process for process in found if own(process)]


def test_slots_without_reports_do_not_measure_a_jobs_speed(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    with serving(tmp_path, ray_cluster) as (client, _):
        long = job("heard", 1, 3)
        long["run"]["command"][long["run"]["command"].index("160")] = "2000"
        long |= {"minibatches": 2000, "minibatch_time": "110ms"}
        assert client.post("/v1/jobs", json=long).is_success
        until(lambda: jobs(client)["heard"]["progress"] > 30, lambda: jobs(client))
        [actor] = actors()
        before = jobs(client)["heard"]["progress"]
        os.kill(actor, signal.SIGSTOP)
        try:
            time.sleep(13)  # four slots: the job runs, and no report arrives
            unheard = jobs(client)["heard"]["progress"]
        finally:
            os.kill(actor, signal.SIGCONT)
        until(lambda: jobs(client)["heard"]["progress"] > unheard + 100, lambda: jobs(client))
        assert unheard - before < 60  # or a report arrived, and nothing was tried
        time.sleep(10)
        history = client.get("/v1/jobs/heard/explain").json()
        text = json.dumps(history)
        assert jobs(client)["heard"]["generation"] == 1, text
        events = [event for event in history["events"] if event["kind"] == "remeasured"]
        assert [one for one in events if not 0.6 < one["data"]["factor"] < 1.6] == [], text
        client.delete("/v1/jobs/heard")
        until(lambda: jobs(client)["heard"]["state"] == "cancelled", lambda: jobs(client))
