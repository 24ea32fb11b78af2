"""``compare --seeds`` and ``whatif`` agree with separate runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from shadowprice.simulator.source import ScenarioSource, with_servers_changed
from tests.support.command_line import Call, CommandResult

CLUSTER = """\
slot: 10min
horizon: 20
servers:
  - {name: gpu, count: 1, capacity: {gpu: 2}, cost: 6}
  - {name: net, role: ps, capacity: {cpu: 4}, cost: 1.5}
"""
JOB = (
    "  - {{name: j{at}, arrival: {at} slots, chunks: 4, minibatches: 10, minibatch_time: 60s, "
    "worker: {{gpu: 1}}, utility: {{kind: linear, value: 12, slope: -1}}}}\n"
)
JOBS = "jobs:\n" + "".join(JOB.format(at=index) for index in range(5))


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "j.yaml").write_text(JOBS)
    rng = np.random.default_rng(0)
    rows = [
        f"2017-10-03 0{index % 10}:{index:02}:00,{int(rng.integers(600, 9000))},"
        f"{index % 2 + 1},0,vc{index % 2}"
        for index in range(24)
    ]
    head = "timestamp,duration,num_gpus,gpu_time,cluster"
    (tmp_path / "t.csv").write_text("\n".join([head, *rows]) + "\n")

    def run(*words: str) -> CommandResult:
        capfd.readouterr()
        status = main(words)
        return CommandResult(status, *capfd.readouterr())

    return run


TRACE = ("--trace", "philly:t.csv", "--load", "2")


def test_seeds_combine_separate_comparisons(call: Call) -> None:
    words = ("compare", *TRACE, "-p", "fifo,srtf,drf", "-q")
    answer = call(*words, "--seeds", "3", "--seed", "4", "--out", "many", "-o", "json")
    assert answer.status == 0, answer.err
    trials = json.loads(answer.out)["trials"]
    assert trials["seeds"] == [4, 5, 6]
    for index, seed in enumerate(trials["seeds"]):
        alone = json.loads(call(*words, "--seed", str(seed), "-o", "json").out)
        for name, record in alone["policies"].items():
            summary, kept = record["summary"], trials["policies"][name]
            assert kept["total_utility"]["values"][index] == summary["total_utility"]
            assert kept["in_time"]["values"][index] == summary["met_target"]["share"]
    for entry in trials["policies"]["srtf"].values():
        if "against_first" in entry:
            first = next(iter(trials["policies"]))
            assert first == "fifo"
    values = {name: kept["total_utility"]["values"] for name, kept in trials["policies"].items()}
    test = trials["policies"]["srtf"]["total_utility"]["against_first"]
    differences = np.subtract(values["srtf"], values["fifo"])
    assert test["mean"] == pytest.approx(differences.mean())
    assert "against_first" not in trials["policies"]["fifo"]["total_utility"]
    assert json.loads(Path("many/compare.json").read_text())["trials"] == trials
    assert {entry.name for entry in Path("many").iterdir()} == {
        "compare.html", "compare.json", "fifo", "srtf", "drf",
    }  # fmt: skip
    shown = call(*words, "--seeds", "3")
    assert "mean of 3 seeds ± 95 %" in shown.out
    assert "difference from fifo" in shown.out


def test_a_comparison_that_no_seed_changes_has_a_remark(call: Call) -> None:
    answer = call(
        "compare", "-c", "c.yaml", "-j", "j.yaml", "-p", "drf,srtf", "-s", "workers=max",
        "--seeds", "2", "-q", "--out", "fixed",
    )  # fmt: skip
    assert answer.status == 0
    assert "nothing in this comparison depends on the seed" in answer.err
    assert "difference from" not in answer.out
    kept = json.loads(Path("fixed/compare.json").read_text())["trials"]
    assert "nothing in this comparison depends on the seed" in kept["remark"]
    entries = [entry for policy in kept["policies"].values() for entry in policy.values()]
    assert not any("against_first" in entry for entry in entries)
    page = Path("fixed/compare.html").read_text()
    assert "Nothing in this comparison depends on the seed" in page
    assert "seed by seed" not in page
    answer = call(
        "compare", "-c", "c.yaml", "-j", "j.yaml", "-p", "drf,srtf?workers=max,fifo",
        "--seeds", "2", "-q",
    )  # fmt: skip
    assert "depends on the seed" not in answer.err
    [row] = [line for line in answer.out.splitlines() if line.startswith("restricted mean JCT")][1:]
    assert re.search(r" - +[+-]", row)  # DRF and this SRTF draw nothing, FIFO does


def test_whatif_is_the_difference_of_two_simulations(call: Call) -> None:
    answer = call(
        "whatif", "-c", "c.yaml", "-j", "j.yaml", "-p", "drf,fifo", "--add", "gpu:2",
        "--add", "gpu:1,net:2", "-o", "json", "-q",
    )  # fmt: skip
    assert answer.status == 0, answer.err
    result = json.loads(answer.out)
    assert result["changes"] == [{}, {"gpu": 2}, {"gpu": 1, "net": 2}]
    Path("more.yaml").write_text(CLUSTER.replace("count: 1,", "count: 3,"))

    def summary(file: str, policy: str) -> dict[str, Any]:
        words = ("simulate", "-c", file, "-j", "j.yaml", "-p", policy, "-o", "json", "-q")
        return json.loads(call(*words).out)["summary"]  # type: ignore[no-any-return]

    rows = {(row["change"], row["policy"]): row for row in result["runs"]}
    for policy in ("drf", "fifo"):
        before, after = summary("c.yaml", policy), summary("more.yaml", policy)
        row = rows["+2 gpu", policy]
        gain = after["total_utility"] - before["total_utility"]
        dearer = after["money"]["whole"] - before["money"]["whole"]
        assert row["gain"] == pytest.approx(gain)
        assert row["gain_per_server"] == pytest.approx(gain / 2)
        assert row["gain_per_cost"] == pytest.approx(gain / dearer)
        assert rows["as it is", policy]["gain"] == 0
    assert rows["+2 gpu", "drf"]["gain"] > 0


def test_whatif_tries_every_kind_by_itself(call: Call) -> None:
    answer = call("whatif", "-c", "c.yaml", "-j", "j.yaml", "-p", "drf")
    assert answer.status == 0
    lines = [line.split()[:2] for line in answer.out.splitlines()]
    assert ["+1", "gpu"] in lines
    assert ["+1", "net"] in lines
    sized = call("whatif", *TRACE, "-p", "srtf", "--add", "gpu:1", "--seeds", "2")
    assert sized.status == 0, sized.err
    assert "+1 gpu" in sized.out
    assert "±" in sized.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--add", "gp:1"), "unknown servers 'gp'; did you mean 'gpu'?"),
        (
            ("--add", "gpu"),
            "--add: expected NAME:COUNT with a count of 1 or more, got 'gpu'; write",
        ),
        (("--add", "gpu:0"), "or more, got 'gpu:0'"),
        (("--add", "gpu:1000000000"), "--add: 1,000,000,000 exceeds the limit of 200,000 servers"),
        (("--remove", f"gpu:{'9' * 1000}"), "--remove: a number of hundreds of digits exceeds"),
        (("--remove", "gpu:2"), "can't remove 2 of 1 servers 'gpu'"),
        (("--remove", "gpu:1"), "no server has 'gpu'"),
        (("--add", "gpu:999999"), "exceeds the limit"),
        (("--seeds", "0"), "--seeds"),
        (("-p", "nobody"), "unknown policy 'nobody'"),
    ],
)
def test_invalid_arguments_are_refused(call: Call, words: tuple[str, ...], said: str) -> None:
    answer = call("whatif", "-c", "c.yaml", "-j", "j.yaml", *words)
    assert answer.status == 2
    assert said in answer.err
    assert answer.out == ""


def test_servers_are_added_after_the_existing_ones() -> None:
    document = {
        "servers": [
            {"name": "gpu", "count": 2, "capacity": {"gpu": 8}},
            {"name": "net", "capacity": {"cpu": 4}},
        ],
        "slot": "1h",
    }
    more = with_servers_changed(document, {"gpu": 1, "net": 2}, "c")
    assert [(entry["name"], entry.get("count")) for entry in more["servers"]] == [
        ("gpu", 3),
        ("net", None),
        ("net-more", 2),
    ]
    fewer = with_servers_changed(document, {"gpu": -2, "net": -1}, "c")
    assert fewer["servers"] == []
    assert document["servers"][0]["count"] == 2
    with pytest.raises(InputError, match="--cluster is missing"):
        ScenarioSource(jobs=Path("j.yaml"))
