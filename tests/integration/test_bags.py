"""A bag of tasks from its file to its history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shadowprice.cli.main import main

CLUSTER = """\
slot: 1min
horizon: 30
servers:
  - {name: gpu, count: 6, role: worker, capacity: {gpu: 8}}
"""
JOBS = """\
jobs:
  - name: train
    chunks: 8
    minibatches: 20
    minibatch_time: 6s
    worker: {gpu: 1}
    utility: {kind: sigmoid, value: 100, decay: 0.1, target: 9 slots}
  - name: trials
    arrival: 2 slots
    tasks:
      - {count: 12, duration: {kind: pareto, shape: 2.0, mean: 90s}}
      - {count: 4, duration: {kind: log-normal, sigma: 1.0, mean: 60s}}
    deadline: 8min
    miss_probability: 0.05
    worker: {gpu: 1}
    utility: {kind: linear, value: 60, slope: -3}
"""


def called(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_bag_of_tasks_runs_from_file_to_job_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CLUSTER, encoding="utf-8")
    Path("j.yaml").write_text(JOBS, encoding="utf-8")
    given = ("simulate", "-c", "c.yaml", "-j", "j.yaml", "--policy", "oasis", "--quiet")
    called(capsys, *given, "--out", "run")
    called(capsys, *given, "--out", "again")
    called(capsys, *given, "--out", "other", "--seed", "5")
    runs = {name: Path(name, "decisions.jsonl").read_bytes() for name in ("run", "again", "other")}
    assert runs["run"] == runs["again"] == runs["other"]  # the plan draws no durations

    decision = next(
        line for line in map(json.loads, runs["run"].splitlines()) if line["job"] == "trials"
    )
    by_group = [0, 0]
    for group, tasks, _ in decision["copies"]:
        by_group[group] += tasks
    assert by_group == [12, 4]
    first = [row for row in decision["plan"] if row[0] == decision["plan"][0][0]]
    assert sum(row[2] for row in first) == sum(n * r for _, n, r in decision["copies"])

    output = called(capsys, "explain", "run", "trials")
    assert "group 1: 4 tasks, log-normal, 1min on average" in output
    assert "copies each of" in output
    assert "missed with a probability of at most 0.05" in output
    history = json.loads(called(capsys, "explain", "run", "trials", "-o", "json"))
    assert history["job"]["outcome"] == "finished"
    assert history["job"]["progress"] == 16

    called(
        capsys, "simulate", "-c", "c.yaml", "-j", "j.yaml", "--policy", "fifo", "-q", "--out", "f"
    )
    assert "a bag of tasks needs a policy that plans copies" in called(
        capsys, "explain", "f", "trials"
    )
