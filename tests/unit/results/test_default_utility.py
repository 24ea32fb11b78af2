"""`run.json` and `compare.json` say which default utility applied, and to how many jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shadowprice.cli.main import main
from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec, JobSpec, validate
from shadowprice.core.specs.utilities import PRIORITY_LEVELS, VALUE_PER_GPU_HOUR
from shadowprice.results.run_directory import read_run

JOBS = """\
jobs:
  - {name: plain, minibatches: 2, minibatch_time: 1h, worker: {gpu: 3}}
  - {name: urgent, minibatches: 2, minibatch_time: 1h, worker: {gpu: 1}, priority: urgent, by: 5h}
  - name: stated
    minibatches: 2
    minibatch_time: 1h
    worker: {gpu: 1}
    utility: {kind: constant, value: 6}
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "c.yaml").write_text("slot: 1h\nservers: [{name: g, capacity: {gpu: 8}}]\n")
    (tmp_path / "j.yaml").write_text(JOBS)
    return ["-c", str(tmp_path / "c.yaml"), "-j", str(tmp_path / "j.yaml"), "-q"]


def check(record: dict[str, object], jobs: int) -> None:
    assert record["jobs"] == jobs
    assert record["value_per_gpu_hour"] == VALUE_PER_GPU_HOUR
    assert record["priorities"] == {name: level.multiple for name, level in PRIORITY_LEVELS.items()}
    assert "GPU-hour" in str(record["rule"])


def test_a_run_and_a_comparison_say_which_default_applied(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *files, "-p", "fifo", "--out", str(tmp_path / "run")]) == 0
    run = read_run(tmp_path / "run")
    check(run.info["default_utility"], 2)
    # 2 h x 3 GPUs, and 2 h x 1 GPU at 16 times.
    assert run.jobs["utility"].to_list() == [6.0, 32.0, 6.0]
    out = tmp_path / "compared"
    capsys.readouterr()
    assert main(["compare", *files, "-p", "fifo,drf", "-o", "json", "--out", str(out)]) == 0
    check(json.loads(capsys.readouterr().out)["default_utility"], 2)
    check(json.loads((out / "compare.json").read_text())["default_utility"], 2)
    for policy in ("fifo", "drf"):
        check(read_run(out / policy).info["default_utility"], 2)


def test_a_run_whose_jobs_all_state_a_utility_says_so(tmp_path: Path, files: list[str]) -> None:
    (tmp_path / "j.yaml").write_text("jobs:\n" + JOBS[JOBS.index("  - name: stated") :])
    assert main(["simulate", *files, "-p", "fifo", "--out", str(tmp_path / "run")]) == 0
    check(read_run(tmp_path / "run").info["default_utility"], 0)


def test_the_journal_keeps_which_jobs_had_the_default() -> None:
    servers = {"slot": "1h", "servers": [{"name": "g", "capacity": {"gpu": 8}}]}
    spec, _ = validate(ClusterSpec, servers, "c")
    assert spec is not None
    entry = {"name": "plain", "minibatches": 2, "minibatch_time": "1h", "worker": {"gpu": 1}}
    for utility in ({}, {"utility": {"kind": "constant", "value": 6}}):
        stated, _ = validate(JobSpec, entry | utility, "j")
        assert stated is not None
        resolved = stated.resolve(spec.resolve("c"))
        assert resolved.has_default_utility is not bool(utility)
        again = Job.from_record(json.loads(json.dumps(resolved.record())))
        assert again.has_default_utility is resolved.has_default_utility
