"""Runs with nothing to do for a thousand million slots, and runs that never end."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import polars as pl
import pytest

from shadowprice import simulate as simulated
from shadowprice.cli.main import main
from shadowprice.core import bounds
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.registry import policy_info
from shadowprice.simulator.scenario import record_run
from shadowprice.simulator.source import ScenarioSource
from tests.support.policy_cases import PLACE_COUNTING_POLICIES, policy_names

CLUSTER = """\
slot: 10min
horizon: 20
servers: [{name: g, count: 2, capacity: {gpu: 4}}]
"""
FAR = 1_000_000_000
JOB = (
    "- {{name: {name}, arrival: {arrival} slots, chunks: 4, minibatches: {work}, "
    "minibatch_time: 60s, worker: {{gpu: 1}}, utility: {{kind: constant, value: 5}}}}\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CLUSTER)
    return tmp_path


def write_jobs(*jobs: tuple[str, int, int]) -> None:
    rows = (JOB.format(name=name, arrival=at, work=work) for name, at, work in jobs)
    Path("j.yaml").write_text("jobs:\n" + "".join(rows))


def simulate(*words: str) -> int:
    return main(["simulate", "-c", "c.yaml", "-j", "j.yaml", "-q", "-o", "json", *words])


@pytest.mark.parametrize("policy", ["fifo", "oasis"])
def test_slots_with_nothing_to_do_are_skipped(folder: Path, policy: str) -> None:
    write_jobs(("near", 3, 100), ("far", FAR, 100))
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert simulate("-p", policy, "--out", "run") == 0
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 500 << 10
    info = json.loads(Path("run/run.json").read_text())
    slots = pl.read_parquet("run/slots.parquet")
    assert info["summary"]["finished"] == 2
    # One row a slot while something happens; one row for the whole idle interval.
    first = int(slots["slot"][0])
    assert first == 3
    gaps = slots["slot"].diff().fill_null(1)
    assert (gaps > 1).sum() == 1
    at = int((gaps > 1).arg_true()[0])
    assert slots["slot"][at] == FAR
    assert slots["running"][at - 1] == 0
    # That row stands for the whole interval: by hand, 80 GPU-slots of 8 GPUs.
    last = int(slots["slot"][-1])
    expected = slots["used_gpu"].sum() / (8 * (last - first + 1))
    assert info["summary"]["utilisation"]["gpu"] == pytest.approx(expected)


def test_unplaceable_job_does_not_prolong_the_run(folder: Path) -> None:
    # The first job needs both servers at its width; one is lost for good while it waits.
    Path("j.yaml").write_text(
        "jobs:\n"
        "- {name: wide, arrival: 1 slots, chunks: 8, minibatches: 10, minibatch_time: 60s, "
        "workers: {min: 8, max: 8}, worker: {gpu: 1}, utility: {kind: constant, value: 5}}\n"
        + JOB.format(name="far", arrival=FAR, work=10)
    )
    Path("i.yaml").write_text("incidents: [{slot: 0, server_lost: g-1}]\n")
    assert simulate("-p", "fifo", "--incidents", "i.yaml", "--out", "run") == 0
    info = json.loads(Path("run/run.json").read_text())
    assert info["summary"]["unfinished"] + info["summary"]["finished"] == 2
    assert len(pl.read_parquet("run/slots.parquet")) < 100


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("later", [None, 100])
def test_a_run_lasts_until_the_last_job_is_done(policy: str, later: int | None) -> None:
    # One at a time, each for a slot, and all over with the slot. More such slots than the horizon
    # has are no deadlock, neither at the end of a run nor before a late arrival.
    cluster = {"slot": "10min", "horizon": 8, "servers": [{"name": "s", "capacity": {"gpu": 1}}]}
    options: dict[str, object] = {"worker": {"gpu": 1}}
    if policy in PLACE_COUNTING_POLICIES:
        cluster["servers"] = [{"name": "s", "capacity": {"worker": 1, "ps": 0}}]
        cluster["tenants"] = [{"name": "a", "share": {"worker": 1}}]
        options = {"worker": {"worker": 1}, "tenant": "a"}
    jobs = [
        {"name": f"j{index}", "arrival": f"{slot} slots", "chunks": 1, "minibatches": 1}
        | {"minibatch_time": "10min", "utility": {"kind": "constant", "value": 1}}
        | options
        for index, slot in enumerate([0] * 20 + ([] if later is None else [later]))
    ]
    ran = simulated(cluster, jobs, policy=policy).jobs
    assert "waiting" not in ran["outcome"].to_list()
    # Planners may refuse. What they admit doesn't wait for the late arrival. With all jobs known
    # there is no hurry, because their values never fall.
    if policy_info(policy).knows_all_jobs:
        return
    assert all(slot < 100 for slot in ran.head(20)["completion"].drop_nulls())


def test_run_above_the_slot_limit_names_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bounds, "SIMULATED", bounds.InputLimit("simulated", 50, "slots simulated"))
    write_jobs(("long", 0, 1000))
    assert simulate("-p", "fifo", "-s", "workers=1", "--out", "run") == 2
    assert "51 exceeds the limit of 50 slots simulated" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_job_longer_than_any_run_is_refused_when_it_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jobs(("long", 0, 10**9))
    assert simulate("-p", "fifo") == 2
    assert "slots that a job runs with its fastest worker count" in capsys.readouterr().err


def test_long_run_reports_its_slot_without_arrivals(folder: Path) -> None:
    write_jobs(("long", 3, 400_000))
    source = ScenarioSource(cluster=Path("c.yaml"), jobs=Path("j.yaml"), until="5000 slots")
    scenario, _ = source.scenario()
    received: list[tuple[int, int, int | None]] = []

    def tell(arrived: int, jobs: int, slot: int | None = None, /) -> None:
        received.append((arrived, jobs, slot))

    record_run(scenario, "fifo", PolicyChoice("fifo").build(scenario.context()), progress=tell)
    assert received[0] == (1, 1, 3)
    assert [slot for _, _, slot in received[1:]] == [3 + 1024 * n for n in range(1, 5)]
