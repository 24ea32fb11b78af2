"""A job of which one process has exited while others hang, and a server that leaves the file."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.restore_scenario import RestoreScenario, submit
from tests.support.service_process import ServiceProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes


def test_job_with_a_hanging_worker_reports_its_finished_one(tmp_path: Path) -> None:
    scenario = RestoreScenario(tmp_path)
    _write_servers(scenario, {"g": 3})
    go = tmp_path / "go"
    record = scenario.job("uneven", "any")
    record |= {"chunks": 3, "workers": {"min": 3, "max": 3}, "minibatches": 1000}
    record["run"]["command"] = (
        f"[ $SHADOWPRICE_RANK = 0 ] && exit 0; while [ ! -e {go} ]; do sleep 0.05; done"
    )
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        submit(service, record)

        def reason() -> Any:
            return service.client.get("/v1/jobs/uneven").json()["reason"]

        wait_until(lambda: (reason() or {}).get("code") == "partly-ended")
        message = reason()["message"]
        assert re.fullmatch(
            r"worker-0 exited 0 at [-0-9]+T[:.0-9]+Z; worker-1, worker-2 have not ended, and "
            r"the job ends with the last worker\. Cancel the job if it hangs: it has no walltime "
            r"that ends it",
            message,
        )
        assert service.client.get("/v1/jobs/uneven").json()["state"] == "running"
        lines = service.client.get("/v1/jobs/uneven/explain").json()["lines"]
        assert sum(f"generation 1 has partly ended: {message}" in line for line in lines) == 1
        service.kill(signal.SIGKILL)  # a restarted service says it once
        service = ServiceProcess(scenario.data, scenario.cluster)
        wait_until(lambda: service.client.get("/v1/jobs/uneven").json()["state"] == "running")
        lines = service.client.get("/v1/jobs/uneven/explain").json()["lines"]
        assert sum("has partly ended" in line for line in lines) == 1
        go.touch()
        service.wait_for_state("uneven", {"finished"})
        assert reason() is None
    finally:
        service.kill(signal.SIGTERM)


def test_removing_a_server_from_the_file_stops_only_its_jobs(tmp_path: Path) -> None:
    scenario = RestoreScenario(tmp_path)
    _write_servers(scenario, {"a": 1, "b": 1, "c": 1})
    service = ServiceProcess(scenario.data, scenario.cluster)
    try:
        for name in ("one", "two", "three"):
            submit(service, scenario.job(name, name) | {"minibatches": 1000})
        for name in ("one", "two", "three"):
            service.wait_for_state(name, {"running"})
            wait_until(lambda name=name: len(scenario.alive(name)) == 1)  # type: ignore[misc]  # bound now
        on = {
            name: service.client.get(f"/v1/jobs/{name}").json()["servers"][0]
            for name in ("one", "two", "three")
        }
        assert sorted(on.values()) == ["a", "b", "c"]
        [moved] = [name for name, server in on.items() if server == "b"]
        before = {name: scenario.began(name) for name in on}
        service.kill(signal.SIGTERM)
        _write_servers(scenario, {"a": 1, "c": 1, "d": 1})
        service = ServiceProcess(scenario.data, scenario.cluster)
        wait_until(lambda: len(scenario.began(moved)) == 2)
        wait_until(lambda: len(scenario.alive(moved)) == 1)
        assert scenario.alive(moved) != before[moved]
        view = service.client.get(f"/v1/jobs/{moved}").json()
        assert (view["generation"], view["servers"], view["failures"]) == (2, ["d"], 0)
        for name in on.keys() - {moved}:
            assert scenario.began(name) == scenario.alive(name) == before[name]
            view = service.client.get(f"/v1/jobs/{name}").json()
            assert (view["generation"], view["servers"]) == (1, [on[name]])
            scenario.go(name)
            service.wait_for_state(name, {"finished"})
        scenario.go(moved)
        service.wait_for_state(moved, {"finished"})
    finally:
        service.kill(signal.SIGTERM)
        for name in ("one", "two", "three"):
            scenario.go(name)


def _write_servers(scenario: RestoreScenario, cpus: dict[str, int]) -> None:
    servers = [{"name": name, "capacity": {"cpu": count}} for name, count in cpus.items()]
    cluster = {"slot": "2s", "horizon": 300, "servers": servers}
    scenario.cluster.write_text(yaml.safe_dump(cluster))
