"""Types of GPU: the example in the documentation, and jobs that request any type."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from shadowprice.cli.main import main
from shadowprice.results.run_directory import read_run

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.mark.parametrize("policy", ["oasis", "drf", "las", "backfill"])
def test_typed_jobs_run_on_and_pay_for_servers_of_their_type(
    tmp_path: Path, policy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    section = PAGE.read_text().partition("### Types of GPU, and money")[2].partition("\n## ")[0]
    cluster, jobs = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (tmp_path / "c.yaml").write_text(cluster)
    (tmp_path / "j.yaml").write_text(jobs)
    files = ("-c", str(tmp_path / "c.yaml"), "-j", str(tmp_path / "j.yaml"))
    assert main(("simulate", *files, "-p", policy, "--out", str(tmp_path / "run"), "-q")) == 0
    assert "utility per cost used" in capfd.readouterr().out
    run = read_run(tmp_path / "run")
    assert set(run.jobs["outcome"]) == {"finished"}
    stood = run.allocations.group_by("job").agg(pl.col("server").unique())
    names = {
        job: {run.server_names[server][:3] for server in servers} for job, servers in stood.rows()
    }
    assert names == {"resnet-v100": {"new"}, "resnet-k80": {"old"}}
    for job, cost, worker_slots in run.jobs.select("job", "cost", "worker_slots").rows():
        price = {"resnet-v100": 24.48 / 8, "resnet-k80": 3.60 / 4}[job]
        assert cost == pytest.approx(worker_slots * price)


CLUSTER = """
slot: 20min
servers:
  - {name: a, count: 2, capacity: {gpu/a100: 8, cpu: 64}}
  - {name: v, count: 2, capacity: {gpu/v100: 8, cpu: 64}}
"""
JOBS = """
jobs:
  - {name: any, steps: 100_000, worker: {gpu: 1}, minibatch_time: 1s, workers: {min: 24, max: 24}}
  - {name: a, steps: 9_000, worker: {gpu/a100: 1}, minibatch_time: 1s, workers: {min: 8, max: 8}}
  - {name: b, steps: 9_000, worker: {gpu/a100: 1}, minibatch_time: 1s, workers: {min: 8, max: 8}}
"""


@pytest.mark.parametrize("policy", ["rolling", "oasis", "pdors", "drf", "srtf", "backfill"])
def test_a_job_without_a_type_runs_on_any_type(tmp_path: Path, policy: str) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "j.yaml").write_text(JOBS)
    files = ("-c", str(tmp_path / "c.yaml"), "-j", str(tmp_path / "j.yaml"))
    assert main(("simulate", *files, "-p", policy, "--out", str(tmp_path / "run"), "-q")) == 0
    run = read_run(tmp_path / "run")
    assert set(run.jobs["outcome"]) == {"finished"}
    kinds = run.allocations.with_columns(
        kind=pl.Series([run.server_names[at][0] for at in run.allocations["server"]])
    )
    assert set(kinds.filter(pl.col("job") == "any")["kind"]) == {"a", "v"}
    assert set(kinds.filter(pl.col("job") != "any")["kind"]) == {"a"}
    on_server = kinds.group_by("slot", "server").agg(pl.col("workers").sum())
    assert on_server["workers"].max() <= 8  # no GPU is given to jobs of both requests
    used = kinds.group_by("slot").agg(
        pl.col("workers").filter(pl.col("kind") == kind).sum().cast(pl.Float64).alias(name)
        for kind, name in (("a", "used_gpu/a100"), ("v", "used_gpu/v100"))
    )
    slots = run.slots.select("slot", "used_gpu/a100", "used_gpu/v100", "used_gpu")
    for slot, *usage, total in slots.rows():
        expected = used.filter(pl.col("slot") == slot).drop("slot").rows() or [(0.0, 0.0)]
        assert tuple(usage) == expected[0]
        assert total == sum(usage)


@pytest.mark.parametrize("typed", [True, False])
def test_trace_jobs_run_on_servers_of_any_type(tmp_path: Path, typed: bool) -> None:
    rows = [(1, 2, "a100"), (2, 12, "v100"), (3, 4, "")]
    lines = ["job_id,submit_time,start_time,end_time,num_gpus" + ",gpu_type" * typed]
    for job, gpus, kind in rows:
        times = (f"2026-01-05 {hour}:00:00" for hour in ("08", "09", "12"))
        lines.append(",".join([str(job), *times, str(gpus), *([kind] if typed else [])]))
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "c.yaml").write_text(CLUSTER)
    source = ("--trace", f"csv:{tmp_path / 'log.csv'}", "-c", str(tmp_path / "c.yaml"))
    assert main(("simulate", *source, "-p", "fifo", "--out", str(tmp_path / "run"), "-q")) == 0
    assert set(read_run(tmp_path / "run").jobs["outcome"]) == {"finished"}
