"""The command line from end to end, on workloads small enough to compute by hand."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import yaml

from shadowprice.core.errors import InputError
from shadowprice.results.output_paths import AtomicDirectory
from shadowprice.results.run_directory import FILES, read_run
from tests.support.command_line import CLUSTER, JOBS, Call, call
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

__all__ = ["call"]

pytestmark = pytest.mark.processes


SIMULATE = ("simulate", "-c", "c.yaml", "-j", "j.yaml", "-p", "flat-rate", "-s", "price=1")


def test_run_matches_manual_calculation(call: Call) -> None:
    answer = call(*SIMULATE, "--out", "run")
    assert answer.status == 0, answer.err
    assert answer.err == ""
    assert re.search(r"total utility +16\n", answer.out)
    lines = [json.loads(line) for line in Path("run/decisions.jsonl").read_text().splitlines()]
    # Each job is 40 mini-batches of 60 s, 4 worker-slots of 10 min: one slot at full width.
    assert lines[0] == {
        "job": "first",
        "slot": 0,
        "outcome": "admitted",
        "reason": None,
        "payoff": 6.0,
        "utility": 10.0,
        "cost": 4.0,
        "completion": 0,
        "promise": 0,
        "plan": [[0, "gpu-0", 2, 0], [0, "gpu-1", 2, 0]],
    }
    assert lines[1]["plan"] == [[1, "gpu-0", 2, 0], [1, "gpu-1", 2, 0]]
    assert lines[1]["payoff"] == 2.0
    assert lines[2]["outcome"] == "rejected"
    assert lines[2]["slot"] == 1
    assert lines[2]["reason"] == "price"
    assert lines[2]["payoff"] == -4.0
    assert lines[2]["refusal"]["bottleneck"] == "gpu of worker servers in slots 2-2"
    jobs = pl.read_parquet("run/jobs.parquet")
    columns = jobs.select("job", "arrival", "start", "completion", "utility", "outcome", "late")
    assert columns.rows() == [
        ("first", 0, 0, 0, 10.0, "finished", None),
        ("second", 0, 1, 1, 6.0, "finished", -1.0),
        ("third", 1, None, None, 0.0, "refused", None),
    ]
    # By 9 min after 5 min, that is before slot 1 is over; the others count from slot 0.
    timed = jobs.select("submitted", "jct", "target", "due")
    assert timed.rows() == [
        (0.0, 1.0, None, None),
        (0.0, 2.0, 2.0, 3.0),
        (0.5, None, 0.4 - 1.0, 1.4),
    ]
    assert pl.read_parquet("run/allocations.parquet").rows() == [
        (0, "first", 0, 2, 0),
        (0, "first", 1, 2, 0),
        (1, "second", 0, 2, 0),
        (1, "second", 1, 2, 0),
    ]
    slots = pl.read_parquet("run/slots.parquet")
    assert slots.select(
        "slot", "running", "queue", "used_gpu", "total_gpu", "price_gpu"
    ).rows() == [
        (0, 1, 1, 4.0, 4.0, 1.0),
        (1, 1, 0, 4.0, 4.0, 1.0),
    ]
    info = json.loads(Path("run/run.json").read_text())
    assert info["partial"] is False
    assert info["parameters"] == {"price": 1.0}
    assert info["summary"]["utilisation"] == {"gpu": 1.0}
    assert [part["kind"] for part in info["inputs"]] == ["cluster", "jobs"]
    assert "<h2>Refusals</h2>" in Path("run/report.html").read_text()
    assert {entry.name for entry in Path("run").iterdir()} < FILES


def test_equal_inputs_give_identical_files(call: Call) -> None:
    for name in ("one", "two"):
        assert call(*SIMULATE, "--out", name, "--journal").status == 0
    for name in sorted(FILES - {"run.json", "payments.jsonl", "advice.jsonl", "report.html"}):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes(), name
    first, second = (json.loads(Path(run, "run.json").read_text()) for run in ("one", "two"))
    assert first.pop("timing").keys() == second.pop("timing").keys()
    assert first.pop("digest") != second.pop("digest")  # of the timing as well
    assert first == second


def test_json_output_contains_only_json(call: Call) -> None:
    answer = call(*SIMULATE, "-o", "json", "--quiet")
    assert answer.err == ""
    assert json.loads(answer.out)["summary"]["total_utility"] == 16.0
    assert sorted(entry.name for entry in Path().iterdir()) == ["c.yaml", "j.yaml"]
    listed = json.loads(call("policies", "-o", "json").out)
    assert "flat-rate" in [policy["name"] for policy in listed]
    assert json.loads(call("policies", "flat-rate", "-o", "json").out)["parameters"] == [
        {"name": "price", "type": "float", "default": "0.01", "description": ""}
    ]


def test_output_replaces_an_earlier_run_only(call: Call) -> None:
    assert call(*SIMULATE, "--out", "a/b/run").status == 0
    before = Path("a/b/run/decisions.jsonl").read_text()
    assert call(*SIMULATE, "-s", "price=0", "--out", "a/b/run").status == 0
    assert Path("a/b/run/decisions.jsonl").read_text() != before
    Path("a/b/run/notes.txt").write_text("mine")
    answer = call(*SIMULATE, "--out", "a/b/run")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        "error: a/b/run: contains files that no earlier run of this kind wrote; "
        "give --out a new directory\n"
    )
    assert Path("a/b/run/notes.txt").read_text() == "mine"
    assert call(*SIMULATE, "--out", "c.yaml").status == 2
    assert [entry.name for entry in Path("a/b").iterdir()] == ["run"]


def test_until_option_ends_the_run(call: Call) -> None:
    answer = call(*SIMULATE, "--until", "15min", "-o", "json")
    assert json.loads(answer.out)["until"] == 1
    summary = json.loads(answer.out)["summary"]
    assert (summary["finished"], summary["refused"], summary["not_arrived"]) == (1, 1, 1)


def test_incidents_replan_and_cancel_jobs(call: Call) -> None:
    Path("i.yaml").write_text("incidents: [{slot: 1, server_lost: gpu-1}]\n")
    answer = call(*SIMULATE, "--incidents", "i.yaml", "--out", "run", "-q")
    assert answer.status == 0, answer.err
    lines = [json.loads(line) for line in Path("run/decisions.jsonl").read_text().splitlines()]
    # The second job loses half of its slot 1 and is planned again on the remaining server.
    second = [line for line in lines if line["job"] == "second"]
    assert [line["outcome"] for line in second] == ["admitted", "admitted"]
    assert second[1]["plan"] == [[1, "gpu-0", 2, 0], [2, "gpu-0", 2, 0]]
    total = pl.read_parquet("run/slots.parquet")["total_gpu"].to_list()
    assert total[:3] == [4.0, 2.0, 2.0]
    output = call("explain", "run", "second").out
    assert "admitted again  in slot 1" in output
    assert "slots 1-2: 2 workers (2 on gpu-0)" in output


def test_explain_prints_the_job_history(call: Call) -> None:
    call(*SIMULATE, "--out", "run")
    explained = call("explain", "run", "third")
    assert explained.status == 0
    for words in (
        "refused",
        "value 0 is below price 4: payoff -4",
        "gpu of worker servers",
        "never",
    ):
        assert words in explained.out
    explained = call("explain", "run", "second")
    assert "finished in time" in explained.out
    assert "value 6 exceeds price 4: payoff 2, done in slot 1" in explained.out
    history = re.sub(r"[│\s]+", " ", explained.out)
    assert "completed in slot 1, 2 slots (20min) after its submission" in history
    assert "1 slot (10min) before its target" in history
    assert "by the end of slot 2: its target is 30min after its submission" in history
    record = json.loads(call("explain", "run", "second", "-o", "json").out)
    assert record["ran"] == [
        {
            "slots": [1, 1],
            "placement": [
                {"server": "gpu-0", "workers": 2, "ps": 0},
                {"server": "gpu-1", "workers": 2, "ps": 0},
            ],
        }
    ]
    unknown = call("explain", "run", "secnd")
    assert (unknown.status, unknown.out) == (2, "")
    assert unknown.err == "error: run: unknown job 'secnd'; did you mean 'second'?\n"


def test_report_is_rendered_from_the_run_files(call: Call) -> None:
    call(*SIMULATE, "--out", "run")
    first = Path("run/report.html").read_bytes()
    Path("run/report.html").unlink()
    assert call("report", "run").status == 0
    assert Path("run/report.html").read_bytes() == first
    assert call("report", "run", "--to", "elsewhere.html").status == 0
    assert Path("elsewhere.html").read_bytes() == first
    assert call("report", "run", "--to", "no/folder.html").status == 2


def test_compare_runs_all_policies_with_one_seed(call: Call) -> None:
    words = ("compare", "-c", "c.yaml", "-j", "j.yaml", "-p", "flat-rate,fifo", "--seed", "3")
    answer = call(*words, "--out", "both", "-s", "flat-rate.price=1")
    assert answer.status == 0, answer.err
    assert re.search(r"flat-rate +fifo\n", answer.out)
    assert {entry.name for entry in Path("both").iterdir()} == {
        "compare.html",
        "compare.json",
        "flat-rate",
        "fifo",
    }
    numbers = json.loads(Path("both/compare.json").read_text())
    assert numbers["policies"]["flat-rate"]["summary"]["total_utility"] == 16.0
    assert read_run(Path("both/fifo")).info["seed"] == 3
    assert read_run(Path("both/fifo")).policy == "fifo"
    assert call(*words, "--out", "both", "-o", "json").status == 0  # replaces its own result
    queued = list(read_run(Path("both/fifo")).decisions(True))
    assert {line["outcome"] for line in queued} == {"queued"}
    assert all("plan" not in line for line in queued)


def test_compare_takes_variants_of_one_policy(call: Call) -> None:
    variants = "flat-rate,flat-rate?price=1"
    answer = call("compare", "-c", "c.yaml", "-j", "j.yaml", "-p", variants, "--out", "both")
    assert answer.status == 0, answer.err
    assert Path("both/flat-rate-price=1/report.html").exists()
    numbers = json.loads(Path("both/compare.json").read_text())["policies"]
    assert numbers["flat-rate price=1"]["summary"]["total_utility"] == 16.0
    assert numbers["flat-rate"]["parameters"] != numbers["flat-rate price=1"]["parameters"]
    wrong = call("compare", "-c", "c.yaml", "-j", "j.yaml", "-p", "flat-rate?prize=1")
    assert wrong.status == 2
    assert "did you mean 'price'" in wrong.err


def test_trace_input_includes_its_cluster(call: Call) -> None:
    rows = [
        f"2017-10-03 0{index}:00:00,{1800 * index + 600},{index % 2 + 1},0,vc{index % 2}"
        for index in range(6)
    ]
    Path("t.csv").write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows, ""]))
    answer = call("simulate", "--trace", "philly:t.csv", "-p", "fifo", "--out", "run")
    assert answer.status == 0, answer.err
    assert "a cluster sized to the trace" in answer.err
    info = json.loads(Path("run/run.json").read_text())
    assert info["summary"]["finished"] == 6
    assert info["inputs"][0]["kind"] == "trace"
    assert info["inputs"][0]["begins"] == "2017-10-03T00:00:00"
    assert call("simulate", "--trace", "philly:t.csv", "-j", "j.yaml").status == 2


def test_skip_invalid_omits_invalid_jobs(call: Call) -> None:
    Path("j.yaml").write_text(JOBS.replace("name: second", "name: first"))
    assert call(*SIMULATE).status == 2
    answer = call(*SIMULATE, "--skip-invalid", "-o", "json")
    assert json.loads(answer.out)["summary"]["jobs"] == 2


# ---------------------------------------------------------------- what is refused


def _jobs(change: Callable[[str], str]) -> Callable[[], object]:
    return lambda: Path("j.yaml").write_text(change(JOBS))


def _bytes(name: str, data: bytes) -> Callable[[], object]:
    return lambda: Path(name).write_bytes(data)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "unknown key": (_jobs(lambda t: t.replace("chunks", "chunk")), "did you mean 'chunks'?"),
    "missing unit": (_jobs(lambda t: t.replace("60s", "60")), "without a unit"),
    "negative": (
        _jobs(lambda t: t.replace("value: 10", "value: -1")),
        "must be at least 0, got -1",
    ),
    "zero workers": (_jobs(lambda t: t.replace("chunks: 4", "chunks: 0")), "chunks"),
    "rising utility": (_jobs(lambda t: t.replace("decay: 0", "decay: -1")), "decay"),
    "duplicate": (_jobs(lambda t: t.replace("third", "first")), "duplicate job name 'first'"),
    "never fits": (_jobs(lambda t: t.replace("gpu: 1", "gpu: 3")), "can never run here"),
    "unknown resource": (_jobs(lambda t: t.replace("gpu: 1", "tpu: 1")), "no server has 'tpu'"),
    "not yaml": (_jobs(lambda t: t + "  - {"), "not YAML"),
    "no list": (_bytes("j.yaml", b"jobs: 3\n"), "contains no job list"),
    "empty": (_bytes("j.yaml", b""), "the file is empty"),
    "binary": (_bytes("j.yaml", b"\0" * 1000), "is binary, not text"),
    "encoding": (_bytes("j.yaml", "jobs: caf\u00e9".encode("latin-1")), "is not UTF-8"),
    "cluster without slot": (
        _bytes("c.yaml", CLUSTER.replace("slot: 10min\n", "").encode()),
        "slot: is missing",
    ),
    "cluster null": (_bytes("c.yaml", b"null\n"), "c.yaml: expected a mapping with the keys slot"),
    "cluster of nothing": (
        _bytes("c.yaml", CLUSTER.replace("gpu: 2", "gpu: 0").encode()),
        "a server needs some capacity",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_files_with_errors_are_refused(call: Call, kind: str) -> None:
    spoil, said = BAD[kind]
    spoil()
    answer = call(*SIMULATE, "--out", "run")
    assert answer.status == 2
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert not Path("run").exists()


def test_a_truncated_archive_is_refused(call: Call) -> None:
    line = json.dumps({"name": "a", "minibatch_time": "1s", "worker": {"gpu": 1}})
    Path("j.jsonl.gz").write_bytes(gzip.compress(line.encode() * 100)[:-20])
    answer = call("simulate", "-c", "c.yaml", "-j", "j.jsonl.gz", "-p", "flat-rate")
    assert answer.status == 2
    assert answer.err == (
        "error: j.jsonl.gz: line 1: truncated gzip stream; copy or download the file again\n"
    )


def test_a_job_file_may_be_one_of_several_in_a_zip_file(call: Call) -> None:
    with zipfile.ZipFile("all?.zip", "w") as archive:
        archive.writestr("what ever.yaml", JOBS)
        archive.writestr("other.yaml", JOBS)
    words = ("simulate", "-c", "c.yaml", "-p", "flat-rate", "-s", "price=1", "-o", "json")
    refused = call(*words, "-j", "all?.zip")
    assert refused.status == 2
    [path] = shlex.split(refused.err.partition("select one: ")[2])
    answer = call(*words, "-j", path, "--out", "run")
    assert answer.status == 0, answer.err
    plain = json.loads(call(*SIMULATE, "-o", "json").out)
    assert json.loads(answer.out)["summary"]["total_utility"] == plain["summary"]["total_utility"]
    inputs = json.loads(Path("run", "run.json").read_text())["inputs"]
    [file] = [entry for entry in inputs if entry["name"] == path]
    assert file["sha256"] == hashlib.sha256(Path("all?.zip").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("simulate",), "no workload is given; give --jobs with --cluster, or give --trace"),
        (("simulate", "-j", "j.yaml"), "--cluster is missing"),
        (("simulate", "-c", "no.yaml", "-j", "j.yaml"), "no.yaml: no such file"),
        ((*SIMULATE, "-p", "flat-rat"), "did you mean 'flat-rate'?"),
        (
            (*SIMULATE, "-s", "prise=1"),
            "policy flat-rate: prise: unknown key; did you mean 'price'?",
        ),
        ((*SIMULATE, "-s", "price=much"), "price"),
        ((*SIMULATE, "--until", "30"), "--until: '30' is a duration without a unit"),
        ((*SIMULATE, "--until", "5min"), "--until: '5min' is less than a slot"),
        ((*SIMULATE, "--seed", "-1"), "--seed"),
        ((*SIMULATE, "--journal"), "--journal: needs a directory to write to"),
        ((*SIMULATE, "--params", "c.yaml"), "not TOML"),
        ((*SIMULATE, "--frob"), "No such option: --frob"),
        (("simulte",), "no command 'simulte'; did you mean 'simulate'?"),
        (("compare", "-c", "c.yaml", "-j", "j.yaml", "-p", "fifo,fifo"), "'fifo' is repeated"),
        (("compare", "-c", "c.yaml", "-j", "j.yaml", "-p", ","), "names no policy"),
        (("explain", "nowhere", "a"), "nowhere: is not a run directory"),
        (("report", "."), "holds no run"),
        (("policies", "fi"), "unknown policy 'fi'"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    call: Call, words: tuple[str, ...], said: str
) -> None:
    answer = call(*words)
    assert answer.status == 2
    assert answer.out == ""
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert sorted(entry.name for entry in Path().iterdir()) == ["c.yaml", "j.yaml"]


def test_error_of_the_policy_fails_the_run(call: Call) -> None:
    answer = call(*SIMULATE, "-p", "broken", "--out", "run")
    assert (answer.status, answer.out) == (1, "")
    assert "the policy decided nothing" in answer.err
    assert answer.err.count("\n") == 1
    answer = call(*SIMULATE, "-p", "failing", "--out", "run")
    assert answer.status == 1
    assert answer.err == (
        "error: unexpected ZeroDivisionError: nothing to divide by; this is a bug: run again with "
        "--debug and report the trace\n"
    )
    assert "Traceback" in call("--debug", *SIMULATE, "-p", "failing").err
    assert "Traceback" in call(*SIMULATE, "-p", "failing", "--debug").err
    assert not Path("run").exists()


@pytest.mark.parametrize("damage", ["run.json", "jobs.parquet", "decisions.jsonl", "heat.parquet"])
def test_damaged_run_is_refused_with_a_hint(call: Call, damage: str) -> None:
    call(*SIMULATE, "--out", "run")
    Path("run", damage).write_text("{")
    answer = call("report", "run")
    assert answer.status == 2
    assert "damaged" in answer.err
    for version in (0, 99):
        Path("run/run.json").write_text(json.dumps({"format": version}))
        assert f"unknown format {version}; expected 1" in call("explain", "run", "first").err


def test_unwritable_output_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        AtomicDirectory(tmp_path / "file" / "run", lambda path: True)


# ---------------------------------------------------------------- prints of libraries


@pytest.mark.extended
def test_json_output_excludes_what_libraries_print(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "j.yaml").write_text(JOBS)
    (tmp_path / "chatty.py").write_text(
        "import os\n"
        "from dataclasses import replace\n"
        "from shadowprice.policies.registry import policy_info\n"
        "print('printed by Python')\n"
        "os.write(1, b'printed by a library\\n')\n"
        "os.system('echo printed by a child process')\n"
        "CHATTY = replace(policy_info('fifo'), name='chatty')\n"
    )
    for command, start in (
        (["simulate", "-p", "./chatty.py:CHATTY"], "{"),
        (["compare", "-p", "./chatty.py:CHATTY,fifo"], "{"),
        (["policies", "./chatty.py:CHATTY"], "{"),
    ):
        files = [] if command[0] == "policies" else ["-c", "c.yaml", "-j", "j.yaml", "-q"]
        with (tmp_path / "out").open("w") as out:
            ran = subprocess.run(
                [sys.executable, "-m", "shadowprice", *command, *files, "-o", "json"],
                cwd=tmp_path,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                check=True,
                timeout=WAIT_LIMIT_SECONDS,
            )
        text = (tmp_path / "out").read_text()
        assert text.startswith(start), text
        json.loads(text)
        for line in ("printed by Python", "printed by a library", "printed by a child process"):
            assert line in ran.stderr.splitlines()


# ---------------------------------------------------------------- Ctrl-C


def test_ctrl_c_keeps_completed_slots(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    with (tmp_path / "j.jsonl").open("w") as file:
        for index in range(20_000):
            record = {
                "name": f"job-{index}",
                "arrival": f"{index} slots",
                "chunks": 4,
                "minibatches": 10,
            }
            record |= {"minibatch_time": "60s", "worker": {"gpu": 1}}
            record |= {"utility": {"kind": "constant", "value": 9}}
            file.write(json.dumps(record) + "\n")
    code = (
        "import sys; from shadowprice.policies import registry; from tests.support.flat_rate "
        "import INFO; registry.builtin_policies = lambda: {'flat-rate': INFO}; "
        "from shadowprice.cli.main import main; sys.exit(main())"
    )
    words = ["simulate", "-c", "c.yaml", "-j", "j.jsonl", "-p", "flat-rate", "--out", "run"]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words, "--journal"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def is_under_way() -> bool:
        journals = list(tmp_path.glob(".shadowprice.*/journal.jsonl"))
        return process.poll() is not None or any(path.stat().st_size for path in journals)

    wait_until(is_under_way)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_LIMIT_SECONDS)
    assert process.returncode == 130, err
    assert "flat-rate (partial)" in out
    match = re.search(r"interrupted in slot (\d+) of flat-rate; what was done is in run", err)
    assert match is not None, err
    run = read_run(tmp_path / "run")
    assert run.info["partial"] is True
    assert run.info["interrupted_in_slot"] == int(match[1])
    assert 0 < run.summary["finished"] < 20_000
    assert run.summary["not_arrived"] > 0
    assert run.allocations["slot"].max() < int(match[1])  # type: ignore[operator]  # an integer
    assert "Partial result" in (tmp_path / "run" / "report.html").read_text()
    assert {entry.name for entry in tmp_path.iterdir()} == {"c.yaml", "j.jsonl", "run"}


def test_explain_prints_what_was_proved_about_a_plan(call: Call) -> None:
    examples = Path(__file__).parents[2] / "examples"
    ran = ["simulate", "-c", str(examples / "cluster.yaml"), "-j", str(examples / "jobs.yaml")]
    for gap in ("0", "0.5"):
        assert call(*ran, "-p", "oasis", "--set", f"gap={gap}", "--out", f"gap-{gap}").status == 0
    output = call("explain", "gap-0", "resnet50").out
    assert "no plan pays more than this one at these prices" in output
    output = call("explain", "gap-0.5", "resnet50").out
    assert re.search(r"no plan pays more than \d+\.\d+, [\d.]+ % above, at these prices", output)
    record = json.loads(call("explain", "gap-0.5", "resnet50", "-o", "json").out)
    (admitted,) = (line for line in record["decisions"] if line["outcome"] == "admitted")
    assert admitted["payoff"] < admitted["payoff_bound"] <= 2 * admitted["payoff"]


def test_advice_holds_when_the_file_is_changed(call: Call) -> None:
    call(*SIMULATE, "--out", "run", "-q")
    job_advice = json.loads(call("explain", "run", "third", "-o", "json").out)["advice"]
    assert job_advice["advice"]
    text = Path("j.yaml").read_text()
    for advice in job_advice["advice"]:
        entries = yaml.safe_load(text)["jobs"]
        place = next(entry for entry in entries if entry["name"] == "third")
        *parents, last = advice["key"].split(".")
        for part in parents:
            place = place[part]
        place[last] = yaml.safe_load(advice["after"])
        Path("j.yaml").write_text(yaml.safe_dump({"jobs": entries}))
        call(*SIMULATE, "--out", "again", "-q")
        explained = json.loads(call("explain", "again", "third", "-o", "json").out)
        assert explained["job"]["outcome"] != "refused", advice
        Path("j.yaml").write_text(text)
    explained = re.sub(r"[│\s]+", " ", call("explain", "run", "third").out)
    assert f"sufficient {job_advice['advice'][0]['key']}: " in explained
    assert "assuming" in explained
    assert "sufficient" not in call("explain", "run", "third", "--no-advice").out


def test_advice_needs_the_files_as_they_were(call: Call) -> None:
    call(*SIMULATE, "--out", "run", "-q")
    Path("j.yaml").write_text(Path("j.yaml").read_text() + "\n")
    output = re.sub(r"[│\s]+", " ", call("explain", "run", "third").out)
    assert "advice not available: j.yaml: has changed since the run" in output
    refused = call("explain", "run", "third", "--advice")
    assert refused.status == 2
    assert "j.yaml: has changed since the run; run it again" in refused.err
    Path("j.yaml").unlink()
    assert "file not found" in call("explain", "run", "third", "--advice").err
