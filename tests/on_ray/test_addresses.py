"""``--address`` and ``--on`` in all their forms, on clusters begun by ``ray start``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowprice.cli.main import main
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    ExecutorOptions,
    ServerAllocation,
    ServerGone,
    ServerInfo,
)
from shadowprice.executors.registry import create_executor
from shadowprice.experiments.spreading import RayBackend
from tests.contract import harness as contract
from tests.contract.harness import POLITE, LocalHarness, RayHarness, ReportLog, ready, spec
from tests.on_ray.started import StartedCluster
from tests.support.ray_serving import until
from tests.support.services import job, run_service

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def started() -> Iterator[StartedCluster]:
    pytest.importorskip("ray")
    cluster = StartedCluster(labels="shadowprice.io/role=worker,zone=a")
    yield cluster
    cluster.end()


@pytest.fixture
def inside(started: StartedCluster, monkeypatch: pytest.MonkeyPatch) -> StartedCluster:
    """A program that knows only the address of its machine's cluster."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in started.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(contract, "SERVERS", (ServerInfo("head", {"cpu": 2000}),))
    return started


class Addressed(RayHarness):
    """The executor at an address as a user writes it."""

    def __init__(self, path: Path, address: str) -> None:
        super().__init__(path, cluster=None)  # type: ignore[arg-type]  # it is begun elsewhere
        self.address = address

    def make(self) -> Executor:
        """Return an executor that isn't open."""
        own = {"lost_after": "2", "node_dir": str(self.path / "nodes")}
        return create_executor("ray", ExecutorOptions(str(self.path), "test", self.address, own))

    def end(self) -> None:
        """Check that every scenario stopped what it started."""
        LocalHarness.end(self)


async def over_the_whole_life(
    harness: LocalHarness, executor: Executor, reports: ReportLog
) -> None:
    """One job ends, one is stopped, one loses its actor, and one loses one of two nodes."""
    await executor.start(spec("polite", 1, POLITE, ServerAllocation("head", 1)))
    await ready(executor, "polite")
    await executor.start(spec("short", 1, "echo hi", ServerAllocation("head", 1)))
    short = await reports.first(Ended, "short")
    assert (short.ending, short.tail) == (Ending.DONE, ("hi",))
    await executor.start(spec("killed", 1, POLITE, ServerAllocation("head", 1)))
    await ready(executor, "killed")
    harness.kill_agent("killed", 1)
    assert (await reports.first(Ended, "killed")).ending is Ending.LOST
    assert (await executor.logs("short", 1)).text == "hi\n"
    await executor.stop(7, "polite", 1)
    polite = await reports.first(Ended, "polite")
    assert (polite.ending, polite.code) == (Ending.STOPPED, 143)


@pytest.mark.parametrize("written", ["auto", "client"])
def test_jobs_run_at_an_address(inside: StartedCluster, tmp_path: Path, written: str) -> None:
    address = inside.by_client if written == "client" else "auto"
    Addressed(tmp_path / "executor", address).run(over_the_whole_life)


def test_the_label_of_a_node_sets_its_role(inside: StartedCluster, tmp_path: Path) -> None:
    cluster = {
        "slot": "2s",
        "horizon": 200,
        "servers": [{"name": "head", "capacity": {"cpu": 2}, "role": "ps"}],
    }
    harness = Addressed(tmp_path / "executor", inside.by_client)
    try:
        with run_service(tmp_path, cluster=cluster, executor=harness.make()) as live:
            until(lambda: len(live.client.get("/v1/servers").json()["servers"]) == 2)
            body = live.client.get("/v1/servers").json()["servers"]
            assert {one["name"]: one["role"] for one in body} == {"head": "ps", "other": "worker"}
            requested = job(
                "both",
                chunks=1,
                worker={"cpu": 1},
                ps={"cpu": 1},
                minibatch_time="1s",
                run={"command": "[ $SHADOWPRICE_ROLE = ps ] && exec sleep 600; exit 0"},
            )
            answer = live.client.post("/v1/jobs", json=requested)
            assert answer.is_success, answer.text
            until(
                lambda: live.client.get("/v1/jobs/both").json()["state"] == "finished",
                lambda: live.client.get("/v1/jobs/both/explain").json()["lines"],
            )
            ran = live.client.get("/v1/jobs/both/generations").json()["generations"]
            assert {(one["server"], one["workers"], one["ps"]) for one in ran[-1]["placement"]} == {
                ("head", 0, 1),
                ("other", 1, 0),
            }
    finally:
        harness.end()


@pytest.mark.extended
def test_a_client_survives_its_server_and_a_node(inside: StartedCluster, tmp_path: Path) -> None:
    async def scenario(_: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("stays", 1, POLITE, ServerAllocation("head", 1)))
        await ready(executor, "stays")
        shares = (
            ServerAllocation("head", 1),
            ServerAllocation("other", 1),
        )  # it tolerates the loss of one worker
        await executor.start(spec("goes", 1, POLITE, *shares, tolerates_workers=True))
        await ready(executor, "goes")
        assert inside.kill("raylet/raylet", "--node_ip_address=127.0.0.7") == 1
        lost = await reports.first(Ended, "goes")
        assert (lost.ending, lost.reason) == (
            Ending.LOST,
            "the node other left the Ray cluster while worker-1 ran on it",
        )
        # Its node is gone, so it is planned again. The worker that lives was stopped and has saved.
        assert "saved" in (await executor.logs("goes", 1)).text
        assert any(isinstance(report, ServerGone) for report in reports.received)
        # The process on the head that acts for this client is lost; the executor needs a new one.
        assert inside.kill("ray.util.client.server", "--mode=specific-server") >= 1
        await executor.stop(7, "stays", 1)
        assert (await reports.first(Ended, "stays")).code == 143
        await executor.start(spec("after", 1, "echo hi", ServerAllocation("head", 1)))
        assert (await reports.first(Ended, "after")).ending is Ending.DONE

    try:
        Addressed(tmp_path / "executor", inside.by_client).run(scenario)
    finally:
        inside.join_node()


def test_runs_are_spread_by_either_address(inside: StartedCluster) -> None:
    for address in (inside.by_client, "ray"):
        with RayBackend(address) as spread:
            assert spread.cores == 3
            runs = spread.run(pow, [(3, n) for n in range(4)], lambda _: None)
            assert {index: result for index, result, _ in runs} == {n: 3**n for n in range(4)}
            with pytest.raises(ValueError, match="invalid literal"):
                list(spread.run(int, [("x",)], lambda _: None))


@pytest.mark.extended
def test_a_comparison_by_either_address_is_that_of_one_machine(
    inside: StartedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[2] / "examples"
    words = ["compare", "-c", str(root / "cluster.yaml"), "-j", str(root / "jobs.yaml"), "-q"]
    # Files of this machine are copied to the nodes with the runs.
    policy = tmp_path / "policy.py"
    shutil.copy(root / "policy.py", policy)
    words += ["-p", f"fifo,drf,{policy}:FirstFit", "--seeds", "2", "--out"]
    assert main([*words, str(tmp_path / "here")]) == 0
    for name, address in (("client", inside.by_client), ("ray", "ray")):
        assert main([*words, str(tmp_path / name), "--on", address]) == 0
        assert not (tmp_path / f"{name}.runs").exists()
        for label in ("fifo", "drf", "policy.FirstFit"):
            here, there = (tmp_path / one / label for one in ("here", name))
            files = {path.name for path in here.iterdir()}
            assert files == {path.name for path in there.iterdir()}
            for file in files - {"run.json", "report.html"}:  # these contain durations
                assert (here / file).read_bytes() == (there / file).read_bytes(), file
            documents = [json.loads((one / "run.json").read_text()) for one in (here, there)]
            assert documents[0]["summary"] == documents[1]["summary"]
    assert capsys.readouterr().err == ""
    assert "RAY_ADDRESS" not in os.environ
