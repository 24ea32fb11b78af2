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


@pytest.mark.parametrize(
    "policy",
    [
        "rolling",
        "backfill",
        *(
            pytest.param(name, marks=pytest.mark.extended)
            for name in ("oasis", "pdors", "drf", "srtf")
        ),
    ],
)
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


def write_log(folder: Path, *kinds: str) -> None:
    """Write a log of jobs of 3 hours with types of GPU, and the cluster."""
    lines = ["job_id,submit_time,start_time,end_time,num_gpus,gpu_type"]
    for job, kind in enumerate(kinds, start=1):
        times = (f"2026-01-05 {hour}:00:00" for hour in ("08", "09", "12"))
        lines.append(",".join([str(job), *times, "4", kind]))
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    (folder / "c.yaml").write_text(CLUSTER)


def simulate_log(folder: Path, *more: str, form: str = "csv", options: str = "") -> int:
    spec = f"{form}:{folder / 'log.csv'}{options}"
    files = ("--trace", spec, "-c", str(folder / "c.yaml"), "--out", str(folder / "run"))
    return main(("simulate", *files, "-p", "fifo", *more))


def kinds_used(folder: Path) -> dict[str, set[str]]:
    """Return the first letters of the servers on which each job ran."""
    run = read_run(folder / "run")
    assert set(run.jobs["outcome"]) == {"finished"}
    used: dict[str, set[str]] = {}
    for job, server in run.allocations.select("job", "server").rows():
        used.setdefault(job, set()).add(run.server_names[server][0])
    return used


@pytest.mark.parametrize(
    ("kind", "server"),
    [
        *(("a100", "a"), ("V100", "v"), ("NVIDIA A100-SXM4-80GB", "a"), ("v100|k80", "v")),
        *(("v100|a100", None), ("", None), ("any", None), ("Tesla V100", "v"), ("k80;A100", "a")),
    ],
)
def test_jobs_of_a_log_run_on_their_type_of_gpu(
    tmp_path: Path, kind: str, server: str | None
) -> None:
    # So many that they take turns: 16 GPUs of each type.
    write_log(tmp_path, *(kind,) * 9)
    assert simulate_log(tmp_path) == 0
    used = kinds_used(tmp_path)
    assert len(used) == 9
    assert set().union(*used.values()) == ({server} if server else {"a", "v"})


@pytest.mark.parametrize(
    ("kind", "server"),
    [("A100", "a"), ("a100-80gb", "l"), ("NVIDIA A100-SXM4-80GB", "l"), ("A100-SXM4-40GB", "a")],
)
def test_the_closest_type_is_the_one_that_is_meant(tmp_path: Path, kind: str, server: str) -> None:
    write_log(tmp_path, kind)
    large = "  - {name: l, capacity: {gpu/a100-80gb: 8, cpu: 64}}\n"
    (tmp_path / "c.yaml").write_text(CLUSTER + large)
    assert simulate_log(tmp_path) == 0
    assert kinds_used(tmp_path) == {"1": {server}}


def test_jobs_of_slurm_run_on_their_type_of_gpu(tmp_path: Path) -> None:
    write_log(tmp_path)
    head = "JobID|Submit|Start|End|State|Elapsed|AllocTRES|NNodes"
    times = "2026-01-05T08:00:00|2026-01-05T09:00:00|2026-01-05T12:00:00|COMPLETED|03:00:00"
    rows = [f"{n}|{times}|cpu=8,gres/gpu:v100=4,gres/gpu=4,node=1|1" for n in range(1, 10)]
    (tmp_path / "log.csv").write_text("\n".join([head, *rows]) + "\n")
    assert simulate_log(tmp_path, form="sacct") == 0
    assert set().union(*kinds_used(tmp_path).values()) == {"v"}


def test_a_type_of_gpu_that_no_server_has_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path, "a100", "h100", "k80", "k80", "k80", "K80", "k80")
    assert simulate_log(tmp_path) == 2
    error = capfd.readouterr().err
    assert "job '2': no server has GPUs of type 'h100'; the cluster's types are a100, v100" in error
    assert "jobs '3', '4', '5' and 1 more: no server has GPUs of type 'k80'" in error
    for more in (("--skip-invalid",), ()):
        options = "" if more else "?skip_invalid=yes"
        assert simulate_log(tmp_path, *more, options=options) == 0
        assert kinds_used(tmp_path) == {"1": {"a"}}
        assert "1 x no server has GPUs of type 'h100' (dropped)" in capfd.readouterr().err
    assert simulate_log(tmp_path, options="?gpu_types=any") == 0
    assert len(kinds_used(tmp_path)) == 7


def test_a_cluster_without_types_runs_jobs_of_all_types(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path, "a100", "h100", "")
    (tmp_path / "c.yaml").write_text(CLUSTER.replace("gpu/a100", "gpu").replace("gpu/v100", "gpu"))
    assert simulate_log(tmp_path) == 0
    assert len(kinds_used(tmp_path)) == 3
    note = "2 x the cluster names no types of GPU: any type"
    assert note in capfd.readouterr().err


@pytest.mark.parametrize("policy", ["fifo,rolling", "drf,backfill"])
def test_compare_plans_jobs_of_a_log_on_their_type(
    tmp_path: Path, policy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path, "a100", "v100", "")
    files = ("--trace", f"csv:{tmp_path / 'log.csv'}", "-c", str(tmp_path / "c.yaml"))
    assert main(("compare", *files, "-p", policy, "-o", "json")) == 0
    write_log(tmp_path, "a100", "h100", "")
    assert main(("compare", *files, "-p", policy, "-o", "json")) == 2
    assert "no server has GPUs of type 'h100'" in capfd.readouterr().err
