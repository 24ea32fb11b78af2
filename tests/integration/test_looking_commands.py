"""``at``, ``jobs`` and ``diff`` on the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from shadowprice.cli.console import SafeConsole
from shadowprice.cli.main import main
from tests.support.command_line import Call, CommandResult

CLUSTER = """\
slot: 10min
horizon: 20
servers:
  - {name: gpu, count: 3, capacity: {gpu: 2}}
  - {name: spare, capacity: {gpu: 1}}
"""
JOB = (
    "  - {{name: {name}, arrival: {arrival} slots, chunks: 4, minibatches: {work}, "
    "minibatch_time: 60s, tenant: {tenant}, worker: {{gpu: 1}}, workers: {{min: 4}}, "
    "utility: {{kind: constant, value: {value}}}}}\n"
)
JOBS = "jobs:\n" + "".join(
    JOB.format(name=name, arrival=arrival, work=work, tenant=tenant, value=value)
    for name, arrival, work, tenant, value in (
        ("wide", 0, 30, "vision", 10),
        ("next", 1, 10, "speech", 5),
        ("gone", 1, 10, "speech", 5),
    )
)
INCIDENTS = "incidents:\n  - {slot: 2, server_lost: spare}\n  - {slot: 2, cancel: gone}\n"


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    monkeypatch.chdir(tmp_path)
    for name, text in (("c.yaml", CLUSTER), ("j.yaml", JOBS), ("i.yaml", INCIDENTS)):
        (tmp_path / name).write_text(text)

    def run(*words: str) -> CommandResult:
        capfd.readouterr()
        status = main(words)
        return CommandResult(status, *capfd.readouterr())

    simulate = ("simulate", "-c", "c.yaml", "-j", "j.yaml", "--incidents", "i.yaml", "-q")
    assert run(*simulate, "-p", "fifo", "-s", "workers=max", "--out", "run").status == 0
    return run


def test_at_shows_running_and_waiting_jobs(call: Call) -> None:
    answer = call("at", "run", "1")
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "slot 1 of fifo, 10min from the start: 1 running, 2 waiting"
    # Round robin puts a worker on each of the four servers; the spare one is full with it.
    assert lines[2].split() == ["gpu-[0-2]", "mixed", "3", "3", "3", "0", "3/6"]
    assert lines[3].split() == ["spare", "full", "1", "1", "1", "0", "1/1"]
    assert lines[5].split()[:7] == ["wide", "vision", "running", "0", "1", "4", "0"]
    assert "gpu-[0-2] x1 spare x1" in lines[5]
    assert "(queued, waiting for free capacity)" in lines[6]
    # In slot 2 the spare server is lost and a job cancelled: the others restart.
    later = json.loads(call("at", "run", "20min", "-o", "json").out)
    assert later["slot"] == 2
    assert [row["job"] for row in later["jobs"]] == ["wide", "next"]
    assert later["servers"][3]["state"] == "lost"
    assert later["usage"]["gpu"]["total"] == 6
    assert "spare" in call("at", "run", "1", "--servers").out


def test_jobs_are_filtered_sorted_and_printed_as_csv(call: Call) -> None:
    answer = call("jobs", "run", "--tenant", "sp*", "--sort", "-job", "-o", "csv")
    assert answer.status == 0
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert [row["job"] for row in rows] == ["next", "gone"]
    assert rows[1]["outcome"] == "cancelled"
    listed = json.loads(call("jobs", "run", "--columns", "job,utility", "-o", "json").out)
    assert listed[0] == {"job": "wide", "utility": 10.0}
    table = call("jobs", "run", "--limit", "1")
    assert "2 more; --limit 3 shows all" in table.err
    assert call("jobs", "run", "--limit", "0").err == "3 more; --limit 3 shows all\n"
    nothing = call("jobs", "run", "--job", "x")
    assert (nothing.status, nothing.out) == (0, "")


def test_names_are_exact_in_csv(call: Call) -> None:
    name = "a\x1b[31mred\x1b[0m"
    Path("j.yaml").write_text(JOBS.replace("name: wide", f"name: {json.dumps(name)}"))
    words = ("simulate", "-c", "c.yaml", "-j", "j.yaml", "-p", "fifo")
    assert call(*words, "--out", "named").status == 0
    assert f"\n{name}," in call("jobs", "named", "-o", "csv").out
    assert f"\n{name}\n" in call("jobs", "named", "--columns", "job", "-o", "csv").out


def test_narrow_terminal_omits_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowprice.cli.console.rows_console", lambda: SafeConsole(width=50))
    answer = call("jobs", "run")
    assert answer.status == 0
    heading, *rows = answer.out.splitlines()
    assert len(rows) == 3
    assert heading.split()[0] == "job"
    assert {"completion", "outcome", "utility"} <= set(heading.split())
    assert max(map(len, answer.out.splitlines())) <= 50
    left_out = answer.err.split(";")[0].removeprefix("no room for ").split(", ")
    assert "worker_slots" in left_out
    assert not set(left_out) & set(heading.split())
    # The requested columns are there, and fit on a page.
    result = call("jobs", "run", "--columns", "job,class,worker_slots,value,start,outcome,reason")
    assert result.err == ""
    assert "no room" not in call("jobs", "run", "-o", "csv").err


def test_diff_lists_jobs_with_different_results(call: Call) -> None:
    simulate = ("simulate", "-c", "c.yaml", "-j", "j.yaml", "-q")
    assert call(*simulate, "-p", "fifo", "-s", "workers=max", "--out", "quiet").status == 0
    answer = call("diff", "run", "quiet")
    assert answer.status == 0
    assert "note: the runs differ in their incidents input" in answer.err
    assert "cancelled under fifo" in answer.out
    result = json.loads(call("diff", "run", "quiet", "-o", "json").out)
    assert result["jobs"][0]["job"] == "gone"
    assert result["jobs"][0]["gain"] == 5.0
    rows = list(csv.DictReader(io.StringIO(call("diff", "run", "quiet", "-o", "csv").out)))
    assert [row["job"] for row in rows] == [row["job"] for row in result["jobs"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("at", "run", "99"), "slot 99 is not in this run; it has slots 0 to"),
        (("at", "run", "noon"), "SLOT: 'noon' is not a slot; write a number from 0 on"),
        (
            ("at", "run", "--", "-1"),
            "SLOT: '-1' is not a slot; write a number from 0 on",
        ),
        (
            ("at", "run", "-1"),
            "'-1' is not a known option, and negative numbers are not valid here; see shadowprice",
        ),
        (
            ("jobs", "run", "-3.5"),
            "'-3' is not a known option, and negative numbers are not valid here",
        ),
        (("at", "run", "1..2"), "'1..2' is not a slot"),
        (("at", "nowhere", "1"), "is not a run directory"),
        (("at", "x" * 300, "1"), "cannot be read: File name too long"),
        (("jobs", "run", "--sort", "value,tennant"), "did you mean 'tenant'"),
        (("jobs", "run", "--sort", "value,tennant"), "error: --sort: unknown column 'tennant'"),
        (("jobs", "run", "--columns", "tennant"), "error: --columns: unknown column 'tennant'"),
        (("jobs", "run", "--arrived", "9..2"), "ends before it begins"),
        (("diff", "run", "nowhere"), "is not a run directory"),
    ],
)
def test_invalid_arguments_are_refused(call: Call, words: tuple[str, ...], said: str) -> None:
    answer = call(*words)
    assert answer.status == 2
    assert said in answer.err
    assert answer.out == ""
