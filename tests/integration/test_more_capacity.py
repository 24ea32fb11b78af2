"""``compare --more``: what more capacity would have earned, and saved in waiting time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import shadowprice
from shadowprice.cli.main import main
from shadowprice.core.errors import InputError
from shadowprice.simulator.whatif import capacity_changes

CLUSTER: dict[str, Any] = {
    "slot": "10min",
    "horizon": 60,
    "servers": [
        {"name": "a", "count": 1, "capacity": {"gpu/a100": 4, "cpu": 32}},
        {"name": "v", "capacity": {"gpu/v100": 8, "cpu": 32}},
        {"name": "host", "capacity": {"cpu": 64}},
    ],
}

JOBS = [
    {
        "name": f"job-{index}",
        "arrival": f"{index // 3} slots",
        "steps": 60,
        "workers": {"max": 2},
        "minibatch_time": "1min",
        "worker": {("gpu/a100" if index % 2 else "gpu/v100"): 2, "cpu": 2},
        "utility": {"kind": "sigmoid", "value": 10 + index, "decay": 0.5, "target": "8 slots"},
    }
    for index in range(24)
]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(yaml.safe_dump(CLUSTER))
    Path("jobs.yaml").write_text(yaml.safe_dump({"jobs": JOBS}))
    capsys.readouterr()

    def call(*more: str) -> tuple[int, str, str]:
        status = main(["compare", "-c", "cluster.yaml", "-j", "jobs.yaml", *more])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def test_eight_more_of_each_type_gain_what_whatif_finds(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    status, printed, _ = call("-p", "rolling,srtf?workers=max", "--more", "8", "-o", "json")
    assert status == 0
    record = json.loads(printed)
    assert [(gain["change"], gain["policy"]) for gain in record["more"]] == [
        ("+8 gpu/a100 (2 a servers)", "rolling"),
        ("+8 gpu/a100 (2 a servers)", "srtf workers=max"),
        ("+8 gpu/v100 (1 v server)", "rolling"),
        ("+8 gpu/v100 (1 v server)", "srtf workers=max"),
    ]
    assert record["drawn"] == []
    assert main(
        ["whatif", "-c", "cluster.yaml", "-j", "jobs.yaml", "-p", "rolling,srtf?workers=max",
         "--add", "a:2", "--add", "v:1", "-o", "json", "-q"]
    ) == 0  # fmt: skip
    runs = json.loads(capsys.readouterr().out)["runs"]
    gains = {(row["change"], row["policy"]): row["gain"] for row in runs}
    waits = {(row["change"], row["policy"]): row["waiting_saved_hours"] for row in runs}
    for gain in record["more"]:
        [(name, count)] = gain["servers"].items()
        assert gain["gain"] == pytest.approx(gains[f"+{count} {name}", gain["policy"]])
        assert gain["waiting_saved_hours"] == pytest.approx(
            waits[f"+{count} {name}", gain["policy"]]
        )
    assert any(gain["waiting_saved_hours"] > 0 for gain in record["more"])


def test_servers_listed_one_by_one_are_one_type() -> None:
    capacity = {"gpu/a100": 8}
    entries = [
        {"name": "a-0", "capacity": capacity},
        {"name": "a-1", "capacity": capacity, "count": 2},
        {"name": "dear", "capacity": capacity, "cost": 3},
    ]
    labels = [change.label for change in capacity_changes(["8"], entries)]
    assert labels == ["+8 gpu/a100 (1 a-0 server)", "+8 gpu/a100 (1 dear server)"]
    [named] = capacity_changes(["a-1=8"], entries)
    assert named.added == (("a-1", 1),)


def test_whatif_takes_an_amount_of_gpus_too(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    del call  # it sets the directory
    workload = ["-c", "cluster.yaml", "-j", "jobs.yaml"]
    assert main(["whatif", *workload, "-p", "srtf?workers=max", "--more", "8", "-q"]) == 0
    head, as_is, *rows = capsys.readouterr().out.splitlines()
    assert head.endswith("hours of waiting saved")
    assert as_is.split()[-1] == "-"
    assert [row.split("  ")[0] for row in rows] == [
        "+8 gpu/a100 (2 a servers)", "+8 gpu/v100 (1 v server)",
    ]  # fmt: skip
    assert all(float(row.split()[-1]) > 0 for row in rows)
    frame = shadowprice.whatif(CLUSTER, JOBS, "srtf", more=["gpu/v100=8"]).frame
    assert frame["change"].to_list() == ["as it is", "+8 gpu/v100 (1 v server)"]


def test_the_table_and_the_page_show_the_gains(call: Call) -> None:
    status, printed, _ = call("-p", "srtf?workers=max", "--more", "gpu/a100=3,cpu=40", "--out", "x")
    assert status == 0
    rows = [line for line in printed.splitlines() if line.startswith("+")]
    assert [row.split("  ")[0] for row in rows] == [
        "+4 gpu/a100 (1 a server)", "+64 cpu (2 a servers)", "+64 cpu (2 v servers)",
        "+64 cpu (1 host server)",
    ]  # fmt: skip
    assert "drawn at random" not in printed
    page = Path("x/compare.html").read_text("utf-8")
    assert '<section id="with-more-servers">' in page
    assert "+4 gpu/a100 (1 a server)" in page
    assert len(json.loads(Path("x/compare.json").read_text())["more"]) == 4


def test_the_first_line_states_what_is_drawn(call: Call) -> None:
    status, printed, _ = call("-p", "fifo,srtf,las?workers=max", "--seed", "7", "--out", "x")
    assert status == 0
    expected = "drawn at random with seed 7: the numbers of workers under fifo, srtf"
    assert printed.splitlines()[0].startswith(expected)
    assert expected.capitalize() in Path("x/compare.html").read_text("utf-8")
    assert json.loads(Path("x/compare.json").read_text())["drawn"] == [
        "the numbers of workers under fifo, srtf"
    ]


def test_a_trace_says_what_it_lacks(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    del call  # it sets the directory
    rows = "".join(f"{index},{index * 60},900,1\n" for index in range(20))
    Path("log.csv").write_text("job_id,submit_time,duration,gpus\n" + rows)
    drawn = "csv:log.csv?elasticity=2&utility=drawn"
    assert main(["compare", "--trace", drawn, "-p", "rolling", "-q"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("drawn at random with seed 0: the model families of 20 jobs")
    assert "the utilities and targets of 20 jobs" in first
    # A comparison over seeds names them all.
    assert main(["compare", "--trace", drawn, "-p", "rolling", "--seeds", "3", "-q"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("drawn at random with 3 seeds, 0 to 2: the model families of 20 jobs")
    # Jobs of one's own log stay as they are.
    assert main(["compare", "--trace", "csv:log.csv", "-p", "rolling,fifo", "-q"]) == 0
    assert "drawn" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpu=8", "--more: no server has 'tpu'; write RESOURCE=AMOUNT"),
        ("gpu/a100=1600000", "exceeds the limit"),
        ("many", "--more: expected an amount of 1 or more, got 'many'; write 8"),
        ("0", "--more: expected an amount of 1 or more, got '0'"),
        ("gpu/a100=999999999", "--more: "),
    ],
)
def test_wrong_amounts(call: Call, text: str, message: str) -> None:
    status, _, errors = call("-p", "fifo", "--more", text)
    assert status == 2
    assert message in " ".join(errors.split())


@pytest.mark.parametrize("more", ["16", 16, np.int64(16), [16], ("16",), "gpu/a100=16,gpu/v100=16"])
def test_amounts_are_a_text_a_number_or_several(more: Any) -> None:
    labels = shadowprice.whatif(CLUSTER, JOBS, "fifo", more=more).frame["change"].to_list()
    assert sorted(labels) == [
        "+16 gpu/a100 (4 a servers)", "+16 gpu/v100 (2 v servers)", "as it is",
    ]  # fmt: skip


def test_an_empty_text_is_no_amount() -> None:
    for call in (shadowprice.whatif, shadowprice.compare):
        with pytest.raises(InputError, match="got ''"):
            call(CLUSTER, JOBS, "fifo", more="")
        with pytest.raises(InputError, match="got '0'"):
            call(CLUSTER, JOBS, "fifo", more=0)


def test_it_is_the_function_too() -> None:
    compared = shadowprice.compare(CLUSTER, JOBS, policies=["srtf"], more=["gpu/v100=8"])
    [gain] = compared.gains
    assert (gain.change, dict(gain.servers)) == ("+8 gpu/v100 (1 v server)", {"v": 1})
    assert compared.drawn == ["the numbers of workers under srtf"]
