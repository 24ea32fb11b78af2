"""What-if on a live service: a background simulation of the submitted jobs."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shadowprice.cli.main import main
from shadowprice.client import Client
from shadowprice.core import bounds
from shadowprice.inputs.files import resolve_cluster
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND
from shadowprice.service.queries import whatif as whatif_queries
from shadowprice.service.queries.whatif import _to_duration, modified_cluster_document
from tests.support.services import CLUSTER, RunningService, job, run_service
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    small = CLUSTER | {
        "servers": [{"name": "g", "count": 1, "capacity": {"gpu": 4, "memory": "3.5GiB"}}]
    }
    with run_service(tmp_path_factory.mktemp("whatif"), cluster=small, policy="fifo") as found:
        yield found


def test_a_deadline_on_the_clock_becomes_a_duration_because_simulations_have_no_calendar() -> None:
    submitted = int(datetime(2026, 12, 1, 17, tzinfo=UTC).timestamp()) * SECOND
    assert _to_duration("2026-12-01T18:00:00+00:00", submitted) == "3600s"
    assert _to_duration("6h", submitted) == "6h"


def _finished(live: RunningService, number: int) -> dict:
    def result() -> dict:
        record = live.client.get(f"/v1/whatif/{number}").json()
        return dict(record) if record["state"] not in {"waiting", "running"} else {}

    return wait_until(result)


@pytest.mark.extended
def test_more_servers_earn_more_for_jobs_that_wait(live: RunningService) -> None:
    refused = live.client.post("/v1/whatif", json={})
    assert refused.json()["code"] == "conflict"  # nothing was submitted yet
    jobs = [
        job(f"w-{index}", worker={"gpu": 4}, chunks=1, minibatches=30, run={"command": ["x"]})
        for index in range(4)
    ]
    assert live.client.post("/v1/jobs", json={"jobs": jobs}).status_code == 202
    began = live.client.post("/v1/whatif", json={"days": 1, "servers": {"g": 3}})
    assert began.status_code == 202, began.text
    body = _finished(live, began.json()["id"])
    assert body["state"] == "done", body
    assert body["jobs"] == 4
    assert body["progress"] == {"done": 2, "of": 2}
    assert body["changed"]["total_utility"] > body["as_is"]["total_utility"]
    assert {"mean_jct", "finished"} <= body["as_is"].keys()
    assert body["gain"] == pytest.approx(
        body["changed"]["total_utility"] - body["as_is"]["total_utility"]
    )
    # Each job of 30 steps runs alone for as long as it takes: with four servers none waits.
    assert body["times"]["jobs"] == 4
    assert body["times"]["mean_wait_seconds"] < 0
    assert body["times"]["waiting_saved_hours"] == pytest.approx(
        -4 * body["times"]["mean_wait_seconds"] / 3600
    )
    listed = live.client.get("/v1/whatif").json()["runs"]
    assert [run["id"] for run in listed] == [body["id"]]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"servers": {"h": 1}}, "unknown kind of server 'h'"),
        ({"servers": {"g": -2}}, "can't remove 2 of 1 servers"),
        ({"servers": {"g": -1}}, "no server remains"),
        ({"servers": {"g": 1.5}}, "expected an integer, got 1.5"),
        ({"days": 0}, "greater than 0"),
        ({"at": "2026-12-01T00:00:00"}, "has no time zone"),
        ({"policy": "fifoo"}, "did you mean 'fifo'?"),
        ({"policy": "fifo", "set": {"x": 1}}, "unknown"),
        ({"server": {}}, "did you mean 'servers'?"),
    ],
)
def test_invalid_queries_return_problem_details(
    live: RunningService, body: dict, message: str
) -> None:
    response = live.client.post("/v1/whatif", json=body)
    assert response.status_code == 422, response.text
    assert message in response.text.replace('\\"', '"')


def test_unknown_whatif_is_not_found(live: RunningService) -> None:
    assert live.client.get("/v1/whatif/99").status_code == 404
    assert live.client.get("/v1/whatif/x").status_code == 422


def test_exported_cluster_matches_its_file(tmp_path: Path) -> None:
    del tmp_path
    cluster = resolve_cluster(
        {
            "slot": "1.5s",
            "horizon": 7,
            "restart": "250ms",
            "servers": [
                {"name": "a", "count": 2, "capacity": {"gpu": 2.5, "memory": "244GiB"}, "cost": 9},
                {"name": "a-2", "capacity": {"gpu": 2.5, "memory": "244GiB"}, "cost": 0.1},
                {"name": "c", "capacity": {"memory": "1TB", "bandwidth": "0Gbps"}},
                {"name": "b", "role": "ps", "capacity": {"memory": "1TB", "bandwidth": "25Gbps"}},
            ],
            "tenants": [{"name": "t", "share": {"gpu": 3}}],
        }
    )
    resolved = resolve_cluster(modified_cluster_document(cluster, {}))
    assert resolved.names == cluster.names
    assert resolved.slot_seconds == cluster.slot_seconds
    assert resolved.restart_seconds == cluster.restart_seconds
    assert (resolved.capacity == cluster.capacity).all()
    assert resolved.roles == cluster.roles
    assert resolved.tenants == cluster.tenants
    assert resolved.costs is not None
    assert resolved.costs.tolist() == [9.0, 9.0, 0.1, 0.0, 0.0]
    changed = resolve_cluster(modified_cluster_document(cluster, {"a": -2, "b": 1}))
    assert changed.names == ("a-0", "c", "b", "b (added 1)")
    more = resolve_cluster(modified_cluster_document(cluster, {"a": 1}))
    assert more.costs is not None
    assert more.costs.tolist() == [9.0, 9.0, 0.1, 9.0, 0.0, 0.0]


def test_added_servers_have_valid_names_of_their_own() -> None:
    long = "x" * int(bounds.NAME.maximum)
    servers = [{"name": name, "capacity": {"gpu": 1}} for name in (long, f"{long[:-10]} (added 1)")]
    cluster = resolve_cluster({"slot": "1min", "servers": servers})
    changed = resolve_cluster(modified_cluster_document(cluster, {long: 2}))
    assert changed.names[2:] == (f"{long[:-10]} (added 2)", f"{long[:-10]} (added 3)")


# ------------------------------------------------------------------ the command


@pytest.fixture
def address(live: RunningService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SHADOWPRICE_SERVER", live.address)
    monkeypatch.setenv("SHADOWPRICE_TOKEN", live.service.token_file.read_text().strip())
    if not live.client.get("/v1/jobs").json()["jobs"]:
        live.client.post("/v1/jobs", json=job("only", worker={"gpu": 4}, run={"command": ["x"]}))
    return live.address


@pytest.mark.extended
def test_whatif_command_queries_the_service(
    address: str, live: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["whatif", "--server", address, "--days", "1", "--add", "g:2"]
    assert main([*words, "-p", "fifo", "-o", "json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["state"] == "done"
    assert run["question"] == {
        "days": 1.0, "at": run["question"]["at"], "servers": {"g": 2}, "policy": "fifo", "set": {}
    }  # fmt: skip
    assert run["gain"] == live.client.get(f"/v1/whatif/{run['id']}").json()["gain"]
    assert main(["whatif", "--days", "1"]) == 0  # one more of every kind, by the last login
    captured = capsys.readouterr().out
    assert "+1 g" in captured
    assert "done" in captured


@pytest.mark.extended
def test_whatif_tries_more_gpus_of_each_type_on_the_same_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capacities = ({"gpu/v100": 8}, {"gpu/a100": 4}, {"cpu": 8})
    servers = [
        {"name": name, "capacity": capacity | {"memory": "64GiB"}}
        for name, capacity in zip(("v", "a", "host"), capacities, strict=True)
    ]
    with run_service(tmp_path, cluster=CLUSTER | {"servers": servers}, policy="fifo") as live:
        monkeypatch.setenv("SHADOWPRICE_SERVER", live.address)
        monkeypatch.setenv("SHADOWPRICE_TOKEN", live.service.token_file.read_text().strip())
        jobs = [
            job(f"{kind}-{at}", worker={f"gpu/{kind}": 4}, chunks=1, minibatches=30)
            for kind in ("v100", "a100")
            for at in range(4)
        ]
        assert live.client.post("/v1/jobs", json={"jobs": jobs}).status_code == 202
        assert live.client.post("/v1/jobs", json=job("huge", worker={"gpu": 64})).is_success
        simulated = []
        original = whatif_queries._simulate

        async def simulate(jobs: Path, cluster: dict, *more: Any) -> dict:
            simulated.append([server["name"] for server in cluster["servers"]])
            if len(simulated) == 1:  # later submissions are no part of the question
                await asyncio.to_thread(live.client.post, "/v1/jobs", json=job("late"))
            return await original(jobs, cluster, *more)

        monkeypatch.setattr(whatif_queries, "_simulate", simulate)
        assert main(["whatif", "--more", "8", "--days", "1"]) == 0
        assert [len(names) for names in simulated] == [3, 4, 5]  # the cluster as it is: once
        printed = capsys.readouterr()
        rows = [line.split("  ")[0] for line in printed.out.splitlines()[1:]]
        assert rows == ["+8 gpu/v100 (1 v server)", "+8 gpu/a100 (2 a servers)"]
        note = "left out 1 of 9 jobs: they can't be simulated on the current servers"
        assert note in printed.err
        first, second = live.client.get("/v1/whatif").json()["runs"]
        assert first["question"]["at"] == second["question"]["at"]
        assert (first["jobs"], second["jobs"]) == (9, 9)
        assert first["as_is"] == second["as_is"]
        assert first["times"]["waiting_saved_hours"] > 0
        assert main(["whatif", "--more", "8", "--days", "1", "-q"]) == 0
        assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--more", "tpu=8"], "--more: no server has 'tpu'"),
        (["--add", "h:1"], "unknown kind of server 'h'"),
        (["--add", "g"], "expected NAME:COUNT"),
        (["--jobs", "j.yaml"], "--jobs: not valid with a live service, which has its own workload"),
        (["--days", "0"], "'--days': must be at least 0.000001, got '0'"),
        (["--seeds", "3"], "--seeds: not valid with a live service"),
        (["--set", "prices=given"], "requires --policy"),
        (["-p", "nobody"], "nobody"),
    ],
)
def test_unsupported_whatif_options_are_refused_in_one_line(
    address: str, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(["whatif", "--server", address, *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_python_client_starts_lists_and_cancels_whatifs(address: str) -> None:
    with Client(address) as client:
        run = client.start_whatif(1, {"g": 1}, "drf")
        ended = client.cancel_whatif(run.id)
        assert ended.state in {"cancelled", "done"}
        assert client.whatifs()[0].id == run.id
        assert client.whatif(run.id).question.policy == "drf"


@pytest.mark.extended
def test_a_simulation_whose_files_were_deleted_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = []
    original = whatif_queries._simulate

    async def simulate(jobs: Path, *more: Any) -> dict:
        simulated.append(jobs)
        return await original(jobs, *more)

    monkeypatch.setattr(whatif_queries, "_simulate", simulate)
    folder = tmp_path / "data" / "whatif"
    folder.parent.mkdir(mode=0o700)
    (folder / "as-is-killed").mkdir(parents=True)
    with run_service(tmp_path, policy="fifo") as live:
        assert not folder.exists()
        assert live.client.post("/v1/jobs", json=job("w")).status_code == 200
        for count in (2, 3, 5):
            response = live.client.post("/v1/whatif", json={"servers": {"g": 1}})
            result = _finished(live, response.json()["id"])
            assert result["state"] == "done", result
            assert len(simulated) == count
            assert simulated[-1].parent.parent == folder
            if count == 3:
                next((simulated[-1].parent / "run").glob("*.parquet")).unlink()
    assert not folder.exists()


@pytest.mark.extended
def test_service_with_a_policy_file_simulates_the_loaded_version(tmp_path: Path) -> None:
    file = tmp_path / "policy.py"
    shutil.copy(Path(__file__).parents[2] / "examples" / "policy.py", file)
    choice = PolicyChoice.named(f"{file}:FirstFit", {"workers": "max"})
    with run_service(tmp_path, policy=choice) as live:
        file.unlink()  # a later version would simulate another policy
        assert live.client.get("/v1/service").json()["policy"] == "policy.FirstFit"
        assert live.client.post("/v1/jobs", json=job("w")).status_code == 200
        response = live.client.post("/v1/whatif", json={"policy": f"{file}:FirstFit"})
        assert response.status_code == 422
        assert "unknown policy" in response.text
        response = live.client.post("/v1/whatif", json={"servers": {"g": 1}})
        result = _finished(live, response.json()["id"])
        assert result["state"] == "done", result
        assert result["question"]["set"] == {}  # its own parameters are no change
        assert result["as_is"]["policy"] == result["changed"]["policy"] == "policy.FirstFit"


@pytest.mark.extended
def test_whatif_changes_no_state_of_the_service(tmp_path: Path) -> None:
    cluster = CLUSTER | {"slot": "1000h"}  # no slot begins meanwhile, except at the end of 1,000 h
    with run_service(tmp_path, cluster=cluster, policy="rolling") as live:
        jobs = [job(f"j-{index}", run={"command": ["sleep", "600"]}) for index in range(3)]
        submitted = live.client.post("/v1/jobs", params={"wait": 20}, json={"jobs": jobs})
        assert {record["state"] for record in submitted.json()["jobs"]} != {"pending"}

        def state() -> list[object]:
            routes = ("jobs", "decisions", "prices", "servers", "tenants")
            return [live.client.get(f"/v1/{route}").json() for route in routes]

        wait_until(lambda: state() == state())  # all is decided
        before = state()
        began = live.client.post("/v1/whatif", json={"days": 1, "servers": {"g": 3}})
        assert _finished(live, began.json()["id"])["state"] == "done"
        assert state() == before
