"""``serve --until`` with real processes: kept after kills, ends all jobs, removable."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.service_process import ServiceProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long]

CLUSTER = {"slot": "1s", "horizon": 700, "servers": [{"name": "box", "capacity": {"cpu": 2}}]}
LOOP = "echo $$ > pid; trap 'echo saved > saved; exit 143' TERM; while :; do sleep 0.1; done"
PLANNERS = {"oasis", "pdors", "rolling"}


def record(name: str, seconds: int, folder: Path) -> dict[str, Any]:
    return {
        "name": name,
        "chunks": 1,
        "minibatches": seconds,
        "minibatch_time": "1s",
        "worker": {"cpu": 1},
        "utility": {"kind": "constant", "value": 50},
        "run": {"command": ["sh", "-c", LOOP], "workdir": str(folder), "grace": "5s"},
    }


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "policy",
    [
        "rolling",
        "fifo",
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("oasis", "pdors")),
    ],
)
def test_until_ends_all_jobs_also_after_a_kill(tmp_path: Path, policy: str) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump(CLUSTER))
    here = tmp_path / "work"
    here.mkdir()

    def begin() -> ServiceProcess:
        return ServiceProcess(tmp_path / "data", cluster, "-p", policy, "--until", "600 slots")

    def end() -> dict[str, Any]:
        return dict(service.client.get("/v1/timespan").json())

    def job(name: str) -> dict[str, Any]:
        return dict(service.client.get(f"/v1/jobs/{name}").json())

    def generations(name: str) -> list[dict[str, Any]]:
        return list(service.client.get(f"/v1/jobs/{name}/generations").json()["generations"])

    service = begin()
    try:
        first = end()
        assert not first["ended"]
        service.kill(signal.SIGKILL)
        service = begin()
        assert end() == first

        assert service.client.post("/v1/jobs", json=record("loops", 3, here)).is_success
        service.wait_for_state("loops", {"running"})
        pid = int(wait_until(lambda: (here / "pid").exists() and (here / "pid").read_text()))
        moved = service.client.put("/v1/timespan", json={"until": "300 slots"}).json()
        assert moved["until"] < first["until"]
        service.kill(signal.SIGKILL)
        service = begin()
        # The operator's end stays: the option is the one that was followed before.
        assert {key: end()[key] for key in ("until", "ends", "slot")} == {
            key: moved[key] for key in ("until", "ends", "slot")
        }

        quote = service.client.post("/v1/quote", json=record("long", 400, here)).json()
        assert quote["timespan"]["ends"] == moved["ends"]
        assert quote["timespan"]["admitted_without"] is (policy in PLANNERS)
        expected = f"without the end of the timespan at {moved['ends']} it would be admitted"
        assert (expected in str(quote.get("refusal"))) is (policy in PLANNERS)
        long = service.client.post("/v1/jobs", json=record("long", 400, here)).json()
        if policy in PLANNERS:
            assert long["state"] == "refused"
            assert expected in long["reason"]["message"]

        last = service.client.put("/v1/timespan", json={"until": "2 slots"}).json()
        waits = wait_until(
            lambda: (
                (view := job("loops"))["reason"] and view["reason"]["code"] == "timespan" and view
            )
        )
        assert waits["state"] in {"standby", "admitted"}
        assert last["ends"] in waits["reason"]["message"]
        assert waits["promise"] is None
        wait_until(lambda: not is_alive(pid) and (here / "saved").exists())
        assert end()["ended"]
        late = service.client.post("/v1/jobs", json=record("late", 3, here)).json()
        if policy in PLANNERS:
            assert late["state"] == "refused"
        else:
            assert late["reason"]["code"] == "timespan"
        metrics = service.client.get("/metrics").text
        assert "shadowprice_timespan_ended 1.0" in metrics
        body = service.client.get("/v1/jobs/loops/explain").json()["lines"]
        assert any(f"the timespan ends at {last['ends']}" in line for line in body), body
        wait_until(lambda: all(generation["ended"] for generation in generations("loops")))
        wait_until(lambda: not service.client.get("/v1/servers").json()["servers"][0]["jobs"])

        assert service.client.put("/v1/timespan", json={"until": None}).is_success
        assert service.wait_for_state("loops", {"running"})["generation"] > waits["generation"]
        assert job("loops")["reason"] is None
    finally:
        for name in ("loops", "late", "long"):
            service.client.delete(f"/v1/jobs/{name}")
        service.kill(signal.SIGTERM)
